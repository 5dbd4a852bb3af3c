"""The 16-bit conversions of common/reference.c: exact to float, round to nearest even back, NaN stays NaN."""

import os
import pathlib
import shlex
import subprocess

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
TYPES = ("f16", "bf16")
ALL = np.arange(65536, dtype=np.uint32).astype(np.uint16)


@pytest.fixture(scope="module")
def convert(tmp_path_factory):
    driver = tmp_path_factory.mktemp("convert") / "convert_driver"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    subprocess.run(
        compiler
        + ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'common'}", "-o", str(driver)]
        + [str(ROOT / "tests/unit/convert_driver.c"), str(ROOT / "common/reference.c"), "-lm", "-lpthread"],
        check=True,
    )

    def run(direction, dtype, patterns):
        out = subprocess.run([driver, direction, dtype], input=patterns.tobytes(), stdout=subprocess.PIPE, check=True)
        return np.frombuffer(out.stdout, np.uint32 if direction == "widen" else np.uint16)

    return run


def widened(patterns, dtype):
    """The float patterns of 16-bit patterns, from NumPy (f16) or from the format's definition (bf16)."""
    if dtype == "f16":
        return patterns.view(np.float16).astype(np.float32).view(np.uint32)
    return patterns.astype(np.uint32) << 16


def narrowed(patterns, dtype):
    """The 16-bit patterns of float patterns.  bf16: of the two neighbours the nearer one, in exact arithmetic."""
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return patterns.view(np.float32).astype(np.float16).view(np.uint16)
    below, cut = patterns >> 16, patterns & 0xFFFF
    up = (cut > 0x8000) | ((cut == 0x8000) & (below & 1 == 1))
    return (below + up).astype(np.uint16)


def is_nan(patterns, exponent, fraction):
    return (patterns & exponent == exponent) & (patterns & fraction != 0)


def nan32(patterns):
    return is_nan(patterns, 0x7F800000, 0x7FFFFF)


def nan16(patterns, dtype):
    return is_nan(patterns, 0x7C00, 0x3FF) if dtype == "f16" else is_nan(patterns, 0x7F80, 0x7F)


def check_narrow(convert, dtype, patterns):
    got, nan = convert("narrow", dtype, patterns), nan32(patterns)
    np.testing.assert_array_equal(got[~nan], narrowed(patterns[~nan], dtype))
    assert nan16(got[nan], dtype).all()
    np.testing.assert_array_equal(got[nan] >> 15, patterns[nan] >> 31)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_pattern_widens_exactly(convert, dtype):
    got, nan = convert("widen", dtype, ALL), nan16(ALL, dtype)
    np.testing.assert_array_equal(got[~nan], widened(ALL[~nan], dtype))
    np.testing.assert_array_equal(nan32(got), nan)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_pattern_comes_back(convert, dtype):
    got, nan = convert("narrow", dtype, convert("widen", dtype, ALL)), nan16(ALL, dtype)
    np.testing.assert_array_equal(got[~nan], ALL[~nan])
    np.testing.assert_array_equal(nan16(got, dtype), nan)


@pytest.mark.parametrize("dtype", TYPES)
def test_ties_and_their_neighbours(convert, dtype):
    """Halfway between every two neighbours of the type, and one float below and above it; overflow included."""
    finite = ALL[:0x7C00] if dtype == "f16" else ALL[:0x7F80]
    low = widened(finite, dtype).view(np.float32).astype(np.float64)
    largest_gap = low[-1] - low[-2]
    middle = (low + np.append(low[1:], low[-1] + largest_gap)) / 2
    middle = middle.astype(np.float32).view(np.uint32)  # exact: a float has more bits
    patterns = np.concatenate([middle - 1, middle, middle + 1])
    check_narrow(convert, dtype, np.concatenate([patterns, patterns | np.uint32(0x80000000)]))


@pytest.mark.parametrize("dtype", TYPES)
def test_any_float(convert, dtype):
    """Random patterns (every exponent, NaN with every kind of payload), and the edges of float."""
    edges = np.array(
        [0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7F801FFF, 0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF],
        np.uint32,
    )
    patterns = np.random.default_rng(1).integers(0, 2**32, 1_000_000, dtype=np.uint32)
    check_narrow(convert, dtype, np.concatenate([edges, edges | np.uint32(0x80000000), patterns]))
