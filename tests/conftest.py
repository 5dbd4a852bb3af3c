"""Shared by the tests: builds steps with make, runs them, reads what they write.

BACKEND=cpu|cuda chooses the backend, CC the compiler, WRAPPER words before each run (compute-sanitizer ...).  What a test asks for is built once.
"""
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "common"))
import reference  # noqa: E402

BACKEND = os.environ.get("BACKEND", "cpu")
CC = os.environ.get("CC", "cc")
WRAPPER = os.environ.get("WRAPPER", "").split()
STEPS = sorted(p.parent.name for p in ROOT.glob("step*/attention.cu"))
DEFAULTS = dict(HEAD_DIM=64, BLOCK_N=64, WARPS=4, ROW_TILES=1, STAGES=2, DTYPE="f16")
_built = set()


def own_environment():
    """Without what a make around the tests hands down: its ARGS and flags are not those of a make that a test starts."""
    return {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS")}


def small_disk(size):
    """Arguments of subprocess.run: no file of the program gets longer than so many bytes."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead of ending the program
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return dict(preexec_fn=limit, restore_signals=False)


def make(*words, check=True):
    with open(ROOT / "tests/conftest.py") as lock:  # pytest-xdist: one worker builds at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(["make", "--no-print-directory", f"BACKEND={BACKEND}", f"CC={CC}", *words], cwd=ROOT,
                              capture_output=True, text=True, env=own_environment())
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def binary(step, **settings):
    """The executable of a step, built with these settings."""
    settings = {**DEFAULTS, **settings}
    words = (step.split("_")[0], *(f"{k}={v}" for k, v in settings.items()))
    if words not in _built:
        done = make(f"-j{os.cpu_count()}", *words)
        assert "warning" not in done.stderr, done.stderr
        _built.add(words)
    return where(step, settings)


def where(step, settings, bug=None):
    """Where make puts this executable."""
    settings = {**DEFAULTS, **settings}
    name = f"{step}_d{settings['HEAD_DIM']}_{settings['DTYPE']}"
    for key, letter in dict(BLOCK_N="n", WARPS="w", ROW_TILES="r", STAGES="s").items():
        if settings[key] != DEFAULTS[key]:
            name += f"_{letter}{settings[key]}"
    arch = os.environ.get("ARCH", "native")
    folder = "cpu" if BACKEND == "cpu" else "cuda" if arch == "native" else f"cuda-{arch}"
    return ROOT / "build" / folder / (f"bugs/{bug}" if bug else "") / name


class Runner:
    def __init__(self, folder):
        self.folder = folder

    def run(self, step, *arguments, **settings):
        """CompletedProcess of a run with these arguments."""
        return subprocess.run([*WRAPPER, binary(step, **settings), *map(str, arguments)], capture_output=True, text=True,
                              cwd=self.folder, timeout=300)

    def attend(self, step, q, k, v, *arguments, **settings):
        """(o, lse, report) of a run on these arrays; the step's own check must pass."""
        for name, array in dict(q=q, k=k, v=v).items():
            np.save(self.folder / f"{name}.npy", array)
        done = self.run(step, "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy", "--lse", "lse.npy",
                        "--json", "report.json", *arguments, **settings)
        assert done.returncode == 0, done.stdout + done.stderr
        o, lse = np.load(self.folder / "o.npy"), np.load(self.folder / "lse.npy")
        return o, lse, json.loads((self.folder / "report.json").read_text())


@pytest.fixture
def runner(tmp_path):
    return Runner(tmp_path)


@pytest.fixture(scope="session")
def session_runner(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("runs"))


def assert_close(o, lse, expected, bf16=False):
    """o and lse of a step against a Result of reference.attention, within its bounds; NaN never passes."""
    values = reference.from_bf16(o) if bf16 else o.astype(np.float64)
    error = np.abs(values - expected.o)
    assert np.all(error <= expected.bound_o), f"o: worst {np.nanmax(error / expected.bound_o)} x bound"
    finite = np.isfinite(expected.lse)
    assert np.array_equal(lse[~finite], expected.lse[~finite].astype(np.float32))
    error = np.abs(lse[finite] - expected.lse[finite])
    assert np.all(error <= expected.bound_lse[finite]), f"lse: worst {np.nanmax(error)}"
