"""What the models share: options that are refused in one line, and NumPy where a model needs it."""
import argparse
import math
import sys


MOST = 2 ** 31 - 1


class Options(argparse.ArgumentParser):
    """argparse, but a wrong option is one line on standard error and exit status 2."""

    def __init__(self, doc):
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def error(self, message):
        print(f"{self.prog}: {message}; --help lists the options", file=sys.stderr)
        sys.exit(2)


def positive(text):
    """A whole number that fits in an array's index."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MOST}")
    return int(text)


def numbers(text):
    """1,2,3 -> [1.0, 2.0, 3.0]"""
    try:
        result = [float(word) for word in text.split(",")]
    except ValueError:
        result = [math.nan]
    if not all(map(math.isfinite, result)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of finite numbers such as 1,2.5,-3")
    return result


def need_numpy():
    try:
        import numpy
        return numpy
    except ImportError:
        print(f"{sys.argv[0]}: it needs NumPy: pip install numpy (or .venv/bin/python, after make test)", file=sys.stderr)
        sys.exit(2)
