"""The command line and the input files of every step: what is refused, how, and what the rest does.

A refusal is exit code 2 and one line on standard error that names what was given; it leaves every file as it was."""
import json
import math
import os
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
from conftest import BACKEND, ROOT, STEPS, Runner, binary, make, reference, small_disk

steps = pytest.mark.parametrize("step", [s for s in STEPS if s[:6] in ("step01", "step02", "step05")])
on_cpu = pytest.mark.skipif(BACKEND != "cpu", reason="about the CPU executor")
on_gpu = pytest.mark.skipif(BACKEND == "cpu", reason="the CPU executor prints no speed")
ONE = STEPS[1]  # where the step does not matter
SIX = "step06_variants"
SMALL = ("--seq-q", "5", "--seq-kv", "9")
FILES = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")
OUTPUTS = {"--out": "o.npy", "--lse": "lse.npy", "--json": "report.json", "--row": "table.txt"}


def contents(folder):
    """Every file below the folder: its bytes, or its size if it is a huge one."""
    return {path: path.read_bytes() if path.stat().st_size < 1 << 24 else path.stat().st_size
            for path in sorted(folder.rglob("*")) if path.is_file()}


def assert_refused(done, words):
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.endswith("\n") and done.stderr.count("\n") == 1, done.stderr
    assert "PASS" not in done.stdout
    for word in words:
        assert word in done.stderr, (word, done.stderr)


def refused(runner, step, arguments, *words, **settings):
    """One line with all these words; the outputs are asked for, exist from an older run, and stay as they were."""
    outputs, arguments = [], [*map(str, arguments)]
    for option, name in OUTPUTS.items():
        (runner.folder / name).write_text("older " + name)
        if not any(a.split("=")[0] == option for a in arguments):
            outputs += [option, name]
    before = contents(runner.folder)
    done = runner.run(step, *outputs, *arguments, **settings)
    assert_refused(done, (step, *words))
    assert contents(runner.folder) == before
    return done.stderr


def save_inputs(folder, dtype=np.float16, **changed):
    """q, k and v, of which the named ones are another array."""
    for name, rows in dict(q=5, k=9, v=9).items():
        random = np.random.default_rng(rows).standard_normal((1, 2, rows, 64))
        np.save(folder / f"{name}.npy", changed.get(name, random.astype(dtype)))


def npy(text, data=b"", version=(1, 0), length=None):
    """The bytes of an .npy file with this header, true or not."""
    length = len(text) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", length) + text.encode() + data


def header(descr="'<f2'", shape="(1, 2, 5, 64)"):
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


# ---- options ----

@steps
@pytest.mark.parametrize("arguments, words", [
    # unknown, junk
    (["--head", "3"], ["'--head'", "--help"]),
    (["--heads2", "3"], ["'--heads2'"]),
    (["--causal"], ["'--causal'"]),
    (["--"], ["'--'"]),
    (["-q", "q.npy"], ["'-q'"]),
    (["-"], ["'-'"]),
    ([""], ["''"]),
    (["q.npy"], ["'q.npy'", "--help"]),
    (["--heads", "2", "3"], ["'3'"]),
    (["two\nlines"], ["'two?lines'"]),
    # twice
    (["--heads", "2", "--heads", "3"], ["--heads", "twice"]),
    (["--heads", "2", "--heads=2"], ["--heads", "twice"]),
    (["--bshd", "--bshd"], ["--bshd", "twice"]),
    # no value, or one too many
    (["--heads"], ["--heads", "no value", "--heads N"]),
    (["--heads", "--bshd"], ["--heads", "no value"]),
    (["--out"], ["--out", "no value", "--out FILE"]),
    (["--heads="], ["--heads ''"]),
    (["--q", "", "--k", "k.npy", "--v", "v.npy"], ["--q", "empty"]),
    (["--json="], ["--json", "empty"]),
    (["--bshd=1"], ["'--bshd=1'", "no value"]),
    (["--help=all"], ["'--help=all'", "no value"]),
    # whole numbers
    (["--batch", "0"], ["--batch '0'", "1 to 2147483647"]),
    (["--heads", "-2"], ["--heads '-2'"]),
    (["--heads", "+2"], ["--heads '+2'"]),
    (["--seq-q", "12x"], ["--seq-q '12x'"]),
    (["--seq-q", " 12"], ["--seq-q ' 12'"]),
    (["--seq-kv", "1e3"], ["--seq-kv '1e3'"]),
    (["--seq-kv", "0x10"], ["--seq-kv '0x10'"]),
    (["--seq-kv", "2.0"], ["--seq-kv '2.0'"]),
    (["--seq-q", "2147483648"], ["--seq-q '2147483648'", "2147483647"]),
    (["--seq-q", "18446744073709551617"], ["'18446744073709551617'"]),
    (["--bench", "0"], ["--bench '0'"]),
    (["--seed", "-1"], ["--seed '-1'", "0 to 18446744073709551615"]),
    (["--seed", "18446744073709551616"], ["--seed '18446744073709551616'"]),
    # the scale
    (["--scale", "nan"], ["--scale 'nan'", "finite"]),
    (["--scale", "-inf"], ["--scale '-inf'", "finite"]),
    (["--scale", "1e39"], ["--scale '1e39'", "1e38"]),
    (["--scale", "0.1f"], ["--scale '0.1f'"]),
    (["--scale", "0,1"], ["--scale '0,1'"]),
    (["--scale="], ["--scale ''"]),
    # what goes together
    (["--q", "q.npy"], ["--q", "--k", "all three"]),
    (["--q", "q.npy", "--k", "k.npy"], ["--q", "--v", "all three"]),
    (["--v", "v.npy"], ["--v", "--q", "all three"]),
    ([*FILES, "--heads", "2"], ["--heads", "generated"]),
    ([*FILES, "--head-dim", "64"], ["--head-dim", "generated"]),
    ([*FILES, "--seed", "1"], ["--seed", "generated"]),
    (["--no-flush"], ["--no-flush", "--bench"]),
    (["--no-check", "--previous-out", "p.npy"], ["--previous-out", "--no-check"]),
    (["--no-check", "--previous-lse", "p.npy"], ["--previous-lse", "--no-check"]),
    # head dimensions
    (["--head-dim", "20"], ["D = 20", "multiple of 8", "24", f"--scale {20 ** -0.5:g}"]),
    (["--head-dim", "46"], ["D = 46", "multiple of 8", "48", f"--scale {46 ** -0.5:g}"]),
    (["--head-dim", "63"], ["D = 63", "multiple of 8", "64", "--scale 0.125988"]),
    (["--head-dim", "63", "--scale", "0.5"], ["D = 63", "--scale 0.5"]),
    (["--head-dim", "72"], ["D = 72", "HEAD_DIM = 64", "HEAD_DIM=96"]),
    (["--head-dim", "256"], ["D = 256", "HEAD_DIM = 64", "HEAD_DIM=256"]),
    (["--head-dim", "264"], ["D = 264", "256"]),
    (["--head-dim", "1000000"], ["D = 1000000", "256"]),
])
def test_options_that_are_refused(step, arguments, words, runner):
    save_inputs(runner.folder)
    refused(runner, step, arguments, *words)


@steps
def test_head_dim_over_the_compiled_one_names_the_make_command(step, runner):
    assert f"make {step[:6]} HEAD_DIM=128" in refused(runner, step, ["--head-dim", "104"], "D = 104 (--head-dim)")


@on_cpu
@steps
def test_bench_needs_a_gpu(step, runner):
    refused(runner, step, [*SMALL, "--bench", "3"], "--bench", "BACKEND=cuda")
    refused(runner, step, [*SMALL, "--bench=3", "--no-flush", "--no-observe"], "--bench", "BACKEND=cuda")


# ---- variants: the options, their files, and what contradicts them ----

VARIANT_OPTIONS = {"--kv-heads": "1", "--causal": None, "--window": "3,0", "--block-causal": "8", "--softcap": "30",
                   "--splits": "2", "--sinks": "x.npy", "--kv-lens": "x.npy", "--cu-seqlens-q": "x.npy",
                   "--cu-seqlens-kv": "x.npy", "--block-table": "x.npy", "--block-mask": "x.npy", "--block-size": "8"}
VARLEN = (*FILES, "--cu-seqlens-q", "cu_q.npy", "--cu-seqlens-kv", "cu_kv.npy")
PAGED = (*FILES, "--block-table", "table.npy", "--kv-lens", "lens.npy")
DENSE = (*FILES, "--kv-lens", "lens.npy")
MASK = ("--block-mask", "mask.npy", "--block-size", "4")


def save_variants(folder, arguments, **changed):
    """The files that belong to the arguments: two sequences of 2 and 3 queries, of 4 and 5 keys where they are packed
    or paged (pages of 3, four of them), of 9 keys where they are dense; two heads.  The named ones are another array;
    an array of no type of its own gets the type of index arrays."""
    shapes = dict(q=(2, 2, 5, 64), k=(2, 2, 9, 64), v=(2, 2, 9, 64))
    if "--cu-seqlens-q" in arguments:
        shapes = dict(q=(5, 2, 64), k=(9, 2, 64), v=(9, 2, 64))
    if "--block-table" in arguments:
        shapes.update(k=(4, 3, 2, 64), v=(4, 3, 2, 64))
    files = {name: np.random.default_rng(1).standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    files |= dict(cu_q=[0, 2, 5], cu_kv=[0, 4, 9], lens=[4, 5], table=[[3, 1, -7], [0, 2, 99]], sinks=np.zeros(2, "f4"),
                  mask=np.ones((2, 2 if "--block-table" in arguments else 3), bool))
    for name, array in (files | changed).items():
        np.save(folder / f"{name}.npy", array if hasattr(array, "dtype") else np.asarray(array, np.int64))


@pytest.mark.parametrize("step", [s for s in STEPS if s != SIX])
@pytest.mark.parametrize("option", VARIANT_OPTIONS)
def test_variants_belong_to_step06(step, option, runner):
    value = VARIANT_OPTIONS[option]
    for words in ([option] if value is None else [option, value], [option] if value is None else [f"{option}={value}"]):
        refused(runner, step, words, f"'{option}'", "step06 has it")


@pytest.mark.parametrize("arguments, words", [
    (["--causal=1"], ["'--causal=1'", "no value"]),
    (["--window", "3"], ["--window '3'", "two whole numbers from -1"]),
    (["--window", "3", "0"], ["--window '3'"]),
    (["--window", "-1,-3"], ["--window '-1,-3'", "from -1"]),
    (["--window", "-2,0"], ["--window '-2,0'"]),
    (["--window", "3,0,1"], ["--window '3,0,1'"]),
    (["--window", "3, 0"], ["--window '3, 0'"]),
    (["--window", ",3"], ["--window ',3'"]),
    (["--window", "3,"], ["--window '3,'"]),
    (["--window", "+3,0"], ["--window '+3,0'"]),
    (["--window", "2147483648,0"], ["--window '2147483648,0'", "2147483647"]),
    (["--window", "000000000000000000000000003,0"], ["--window '000"]),
    (["--window"], ["--window", "no value", "--window L,R"]),
    (["--window=3,0", "--window=3,0"], ["--window", "twice"]),
    (["--block-causal", "0"], ["--block-causal '0'"]),
    (["--softcap", "-1"], ["--softcap '-1'", "negative"]),
    (["--softcap", "inf"], ["--softcap 'inf'", "finite"]),
    (["--softcap", "nan"], ["--softcap 'nan'", "finite"]),
    (["--softcap", "1e-38", "--scale", "1"], ["--softcap 1e-38", "too small", "1e37"]),
    (["--splits", "0"], ["--splits '0'"]),
    (["--splits", "-1"], ["--splits '-1'"]),
    (["--splits", "2147483647", "--seq-q", "100000", "--no-check"], ["--splits 2147483647", "bytes of workspace"]),
    (["--kv-heads", "0"], ["--kv-heads '0'"]),
    (["--heads", "3", "--kv-heads", "2"], ["3 heads (--heads)", "2 (--kv-heads)", "multiple"]),
    (["--heads", "33", "--kv-heads", "2"], ["33 heads", "multiple"]),
    (["--heads", "2", "--kv-heads", "4"], ["2 heads", "4 (--kv-heads)", "multiple"]),
    ([*FILES, "--kv-heads", "2"], ["--kv-heads", "generated"]),
    # what goes together
    (MASK[:2], ["--block-mask without --block-size"]),
    (MASK[2:], ["--block-size without --block-mask"]),
    ([*FILES, "--cu-seqlens-kv", "cu_kv.npy"], ["--cu-seqlens-kv without --cu-seqlens-q"]),
    ([*FILES, "--cu-seqlens-q", "cu_q.npy"], ["--cu-seqlens-q without --cu-seqlens-kv", "--block-table"]),
    ([*FILES, "--cu-seqlens-q", "cu_q.npy", "--kv-lens", "lens.npy"], ["--cu-seqlens-q without --cu-seqlens-kv"]),
    ([*FILES, "--block-table", "table.npy"], ["--block-table without --kv-lens"]),
    ([*PAGED, "--cu-seqlens-q", "cu_q.npy", "--cu-seqlens-kv", "cu_kv.npy"], ["--cu-seqlens-kv beside --block-table"]),
    ([*VARLEN, "--kv-lens", "lens.npy"], ["--kv-lens beside --cu-seqlens-kv"]),
    ([*VARLEN, *MASK], ["--block-mask beside --cu-seqlens-q"]),
    ([*PAGED, *MASK, "--cu-seqlens-q", "cu_q.npy"], ["--block-mask beside --cu-seqlens-q"]),
    ([*VARLEN, "--bshd"], ["--bshd beside --cu-seqlens-q"]),
    (VARLEN[6:], ["--cu-seqlens-q without --q"]),
    (PAGED[6:], ["--block-table without --q"]),
])
def test_variants_that_are_refused(arguments, words, runner):
    save_variants(runner.folder, arguments)
    refused(runner, SIX, arguments, *words)


@on_gpu
@pytest.mark.parametrize("arguments, pairs, keys", [
    (FILES, 2 * 5 * 9, 2 * 9), ((*FILES, "--causal"), 2 * 5 * 9 / 2, 2 * 9), ((*FILES, "--window", "3,0"), 2 * 5 * 9, 2 * 9),
    (DENSE, 5 * 4 + 5 * 5, 4 + 5), (PAGED, 5 * 4 + 5 * 5, 4 + 5), (VARLEN, 2 * 4 + 3 * 5, 4 + 5)])
def test_what_bench_counts(arguments, pairs, keys, runner):
    save_variants(runner.folder, arguments)
    done = runner.run(SIX, *arguments, "--bench", "3", "--json", "report.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = finite_json(runner.folder / "report.json")
    assert math.isclose(report["tflops"], 4 * pairs * 2 * 64 / report["time_ms"] * 1e-9, rel_tol=1e-6)
    assert math.isclose(report["tb_per_s"], 2 * keys * 2 * 64 * 2 / report["time_ms"] * 1e-9, rel_tol=1e-6)


def half(*shape):
    return np.zeros(shape, np.float16)


@pytest.mark.parametrize("arguments, changed, words", [
    # offsets
    (VARLEN, dict(cu_q=[1, 2, 5]), ["--cu-seqlens-q cu_q.npy", "starts with 1", "0"]),
    (VARLEN, dict(cu_kv=[-1, 4, 9]), ["--cu-seqlens-kv cu_kv.npy", "starts with -1"]),
    (VARLEN, dict(cu_q=[0, 6, 5]), ["--cu-seqlens-q cu_q.npy", "falls from 6 to 5", "entry 2"]),
    (VARLEN, dict(cu_kv=[0, -4, 9]), ["--cu-seqlens-kv cu_kv.npy", "falls from 0 to -4"]),
    (VARLEN, dict(cu_q=[0, 2, 4]), ["--cu-seqlens-q cu_q.npy", "ends with 4", "5 rows of --q"]),
    (VARLEN, dict(cu_q=[0, 2, 6]), ["ends with 6", "5 rows of --q"]),
    (VARLEN, dict(cu_kv=[0, 4, 1 << 40]), ["ends with 1099511627776", "9 rows of --k"]),
    (VARLEN, dict(cu_kv=[0, 4, 4, 9]), ["--cu-seqlens-kv cu_kv.npy has 3", "--cu-seqlens-q cu_q.npy has 2"]),
    (VARLEN, dict(cu_q=[0]), ["--cu-seqlens-q cu_q.npy", "1 entries"]),
    (VARLEN, dict(cu_q=np.zeros(0, np.int32)), ["--cu-seqlens-q cu_q.npy", "0 entries"]),
    (VARLEN, dict(cu_q=[[0, 2, 5]]), ["--cu-seqlens-q cu_q.npy", "2 dimensions", "[B+1]"]),
    (VARLEN, dict(cu_q=np.array([0, 2, 5], "f4")), ["--cu-seqlens-q cu_q.npy", "is f32", "i32 or i64"]),
    (VARLEN, dict(cu_kv=np.array([0, 4, 9], "u1")), ["--cu-seqlens-kv cu_kv.npy", "is u8", "i32 or i64"]),
    (VARLEN, dict(cu_kv=np.array([0, 4, 9], "f8")), ["--cu-seqlens-kv: cu_kv.npy", "float64"]),
    (VARLEN, dict(q=half(1, 2, 5, 64)), ["--q q.npy has 4 dimensions", "three, [T,H,D]"]),
    (VARLEN, dict(k=half(1, 2, 9, 64)), ["--k k.npy has 4 dimensions", "three, [T,H,D]"]),
    (VARLEN, dict(q=half(0, 2, 64)), ["--q q.npy has size 0 along dimension 0"]),
    (VARLEN, dict(v=half(8, 2, 64)), ["T = 8 in --v", "9 in --k"]),
    (VARLEN, dict(k=half(9, 2, 32), v=half(9, 2, 32)), ["D = 32 in --k", "64 in --q"]),
    (VARLEN, dict(q=half(5, 3, 64)), ["3 heads in --q", "2 in --k", "multiple"]),
    # lengths
    (DENSE, dict(lens=[4, -1]), ["--kv-lens lens.npy", "length -1 at entry 1", "0 to 9"]),
    (DENSE, dict(lens=[10, 9]), ["length 10 at entry 0", "0 to 9"]),
    (DENSE, dict(lens=[1 << 32, 9]), ["length 4294967296 at entry 0"]),
    (DENSE, dict(lens=[4]), ["--kv-lens lens.npy has 1 entries", "2 batch entries"]),
    (DENSE, dict(lens=[4, 5, 6]), ["--kv-lens lens.npy has 3 entries", "2 batch entries"]),
    (DENSE, dict(lens=[[4, 5]]), ["--kv-lens lens.npy", "2 dimensions", "[B]"]),
    (DENSE, dict(lens=np.array([4, 5], "f4")), ["--kv-lens lens.npy", "is f32"]),
    (PAGED, dict(lens=[4, -5]), ["--kv-lens lens.npy", "length -5 at entry 1"]),
    (PAGED, dict(lens=[4, 10]), ["length 10 at entry 1", "0 to 9", "slots times page size"]),
    # pages
    (PAGED, dict(table=[[3, 4, 0], [0, 2, 0]]), ["--block-table table.npy", "page 4 in [0,1]", "0 to 3", "--k k.npy"]),
    (PAGED, dict(table=[[3, 1, 0], [-1, 2, 0]]), ["page -1 in [1,0]"]),
    (PAGED, dict(table=[[3, 1, 0], [1 << 32, 2, 0]]), ["page 4294967296 in [1,0]"]),
    (PAGED, dict(lens=[7, 5]), ["page -7 in [0,2]"]),
    (PAGED, dict(table=[[3, 1, 0]]), ["--block-table table.npy has 1 rows", "2 batch entries"]),
    (PAGED, dict(table=[3, 1, 0]), ["--block-table table.npy has 1 dimension:", "two, [B,slots]"]),
    (PAGED, dict(table=np.zeros((2, 3), "f4")), ["--block-table table.npy", "is f32", "i32 or i64"]),
    (PAGED, dict(k=half(3, 4, 2, 64), v=half(3, 4, 2, 64)), ["page 3 in [0,0]", "0 to 2"]),
    (PAGED, dict(k=half(12, 2, 64), v=half(12, 2, 64)), ["--k k.npy has 3 dimensions", "[pages,page size,H,D]"]),
    (PAGED, dict(v=half(4, 4, 2, 64)), ["page size = 4 in --v", "3 in --k"]),
    (PAGED, dict(k=half(4, 3, 2, 56), v=half(4, 3, 2, 56)), ["D = 56 in --k", "64 in --q"]),
    ([*PAGED, "--cu-seqlens-q", "cu_q.npy"], dict(cu_q=[0, 5]), ["--block-table table.npy has 2 rows", "1 batch"]),
    # the block mask
    ([*FILES, *MASK], dict(mask=np.ones((2, 2), bool)), ["--block-mask mask.npy has shape [2,2]", "[2,3]"]),
    ([*FILES, *MASK], dict(mask=np.ones((3, 2), bool)), ["has shape [3,2]", "--block-size 4", "[2,3]"]),
    ([*FILES, *MASK], dict(mask=np.ones((2, 2, 3), bool)), ["has shape [2,2,3]", "[2,3]", "[1 or 2,1 or 2]"]),
    ([*FILES, *MASK], dict(mask=np.ones((3, 1, 2, 3), bool)), ["has shape [3,1,2,3]"]),
    ([*FILES, *MASK], dict(mask=np.ones((1, 3, 2, 3), bool)), ["has shape [1,3,2,3]"]),
    ([*FILES, *MASK], dict(mask=np.ones((1,) * 8, bool)), ["has shape [1,1,1,1,1,1,1,1]"]),
    ([*FILES, *MASK], dict(mask=np.ones((2, 3), np.int32)), ["--block-mask mask.npy is i32", "u8 or bool"]),
    ([*PAGED, *MASK], dict(mask=np.ones((2, 1), bool)), ["has shape [2,1]", "[2,2 or more]"]),
    ([*PAGED, *MASK], dict(mask=np.ones((3, 2), bool)), ["has shape [3,2]", "[2,2 or more]"]),
    ([*PAGED, *MASK], dict(mask=np.ones((1, 2, 2, 1), bool)), ["has shape [1,2,2,1]", "[2,2 or more]"]),
    # sinks
    ([*FILES, "--sinks", "sinks.npy"], dict(sinks=np.zeros(3, "f4")), ["--sinks sinks.npy", "3 values", "[H], and 2"]),
    ([*FILES, "--sinks", "sinks.npy"], dict(sinks=np.zeros((1, 2), "f4")), ["--sinks sinks.npy", "2 dimensions"]),
    ([*FILES, "--sinks", "sinks.npy"], dict(sinks=np.zeros(2, "f2")), ["--sinks sinks.npy is f16", "f32"]),
    ([*FILES, "--sinks", "sinks.npy"], dict(sinks=np.array([0, np.inf], "f4")), ["--sinks sinks.npy is inf at head 1"]),
    ([*FILES, "--sinks", "sinks.npy"], dict(sinks=np.array([np.nan, 0], "f4")), ["--sinks sinks.npy is NaN at head 0"]),
    # files that are none
    ([*VARLEN[:-1], "missing.npy"], {}, ["--cu-seqlens-kv: missing.npy", "No such file"]),
    ([*FILES, "--sinks", "missing.npy"], {}, ["--sinks: missing.npy", "No such file"]),
    ([*FILES, "--block-mask", "missing.npy", "--block-size", "4"], {}, ["--block-mask: missing.npy", "No such file"]),
    ([*PAGED[:-1], "missing.npy"], {}, ["--kv-lens: missing.npy", "No such file"]),
    ([*VARLEN, "--previous-out", "q.npy", "--previous-lse", "q.npy"], {}, ["--previous-lse q.npy", "type or shape"]),
    ([*DENSE, "--previous-out", "x.npy"], dict(x=half(5, 2, 64)), ["--previous-out x.npy", "type or shape"]),
])
def test_variant_files_that_are_refused(arguments, changed, words, runner):
    save_variants(runner.folder, arguments, **changed)
    refused(runner, SIX, arguments, *words)


@pytest.mark.parametrize("integers", [np.int32, np.int64])
@pytest.mark.parametrize("arguments, expected, rows", [
    (VARLEN, dict(layout="thd", batch=2, seq_q=3, seq_kv=5, kv_heads=2), 10),
    ([*PAGED, "--cu-seqlens-q", "cu_q.npy"], dict(layout="thd", batch=2, seq_q=3, seq_kv=5), 10),
    (PAGED, dict(layout="bhsd", batch=2, seq_q=5, seq_kv=5), 20),
    ([*PAGED, "--bshd"], dict(layout="bshd", batch=2, heads=5, seq_q=2), None),  # q is taken for [B,S,H,D]: refused
    (DENSE, dict(layout="bhsd", seq_q=5, seq_kv=9), 20),
    ([*FILES, *MASK], dict(seq_q=5, seq_kv=9), 20),
    ([*PAGED, *MASK], dict(seq_q=5, seq_kv=5), 20),
    ([*FILES, "--sinks", "sinks.npy"], dict(batch=2), 20),
])
def test_variant_files_that_are_taken(arguments, expected, rows, integers, runner):
    indices = dict(cu_q=[0, 2, 5], cu_kv=[0, 4, 9], lens=[4, 5], table=[[3, 1, -7], [0, 2, 99]])
    save_variants(runner.folder, arguments, **{name: np.array(x, integers) for name, x in indices.items()})
    if rows is None:
        refused(runner, SIX, arguments, "5 heads in --q", "2 in --k")
        return
    done = runner.run(SIX, *arguments, "--out", "o.npy", "--lse", "lse.npy", "--json", "report.json")
    assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr
    report = finite_json(runner.folder / "report.json")
    assert {key: report[key] for key in expected} == expected and report["rows"] == report["rows_checked"] == rows
    o, lse, q = (np.load(runner.folder / f"{name}.npy") for name in ("o", "lse", "q"))
    assert o.shape == q.shape and lse.dtype == np.float32
    assert lse.shape == (q.shape[1::-1] if q.ndim == 3 else q.shape[:3])


def test_json_and_the_first_line_name_the_variants(runner):
    arguments = ["--heads", "4", "--kv-heads", "2", *SMALL, "--causal", "--window", "2,7", "--block-causal=4",
                 "--softcap", "20", "--splits", "3"]
    done = runner.run(SIX, *arguments, "--json", "report.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = finite_json(runner.folder / "report.json")
    assert report["kv_heads"] == 2 and report["variants"] == {
        "causal": True, "window": [2, 0], "block_causal": 4, "softcap": 20, "sinks": False, "block_size": 0,
        "varlen": False, "kv_lens": False, "page_size": 0, "splits": 3}
    for words in "H=4 Hkv=2", "causal", "window 2,0", "block-causal 4", "softcap 20", "splits 3":
        assert words in done.stdout.splitlines()[0]


@pytest.mark.parametrize("words", [["--window", "-1,-1"], ["--window=-1,0"], ["--window", "2147483647,2147483647"],
                                   ["--softcap", "1e38"], ["--softcap", "0"], ["--softcap", "30", "--scale", "0"],
                                   ["--softcap", "30", "--scale", "-0.3"], ["--softcap", "1e38", "--scale", "1e-38"],
                                   ["--softcap", "1e-30"], ["--splits", "64"], ["--scale", "1e38"], ["--block-causal", "2147483647"]])
def test_extreme_variants(words, runner):
    done = runner.run(SIX, *SMALL, *words)
    assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr


@pytest.mark.parametrize("name, index, place", [("o", (3, 1, 7), "O against the step before: 1 of 640 "),
                                                ("lse", (1, 4), "LSE against the step before: 1 of 10 ")])
def test_places_in_packed_arrays(name, index, place, runner):
    save_variants(runner.folder, VARLEN)
    words = [*VARLEN, "--causal"]
    assert runner.run(SIX, *words, "--out", "o.npy", "--lse", "lse.npy").returncode == 0
    wrong = np.load(runner.folder / f"{name}.npy")
    wrong[index] += 0.25
    np.save(runner.folder / f"{name}.npy", wrong)
    done = runner.run(SIX, *words, "--previous-out", "o.npy", "--previous-lse", "lse.npy")
    at = "[" + ",".join(map(str, index)) + "]"
    assert done.returncode == 1 and re.search(rf"^FAIL +{place}.*{re.escape(at)}$", done.stdout, re.M), done.stdout


def test_a_block_mask_may_be_wider_than_a_paged_cache_is_full(runner):
    """Columns beyond the longest sequence do not matter."""
    mask = np.random.default_rng(2).random((2, 2, 2, 5)) < 0.6
    results = []
    for columns in 2, 5:
        save_variants(runner.folder, PAGED, mask=mask[..., :columns])
        done = runner.run(SIX, *PAGED, *MASK, "--out", "o.npy", "--lse", "lse.npy")
        assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr
        results.append([(runner.folder / name).read_bytes() for name in ("o.npy", "lse.npy")])
    assert results[0] == results[1]


def test_no_keys_at_all(runner):
    """Packed keys of no sequence: every row sees none."""
    save_variants(runner.folder, VARLEN, k=half(0, 2, 64), v=half(0, 2, 64), cu_kv=[0, 0, 0])
    done = runner.run(SIX, *VARLEN, "--out", "o.npy", "--lse", "lse.npy")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not np.load(runner.folder / "o.npy").any() and np.all(np.load(runner.folder / "lse.npy") == -np.inf)


# ---- sizes ----

@steps
@pytest.mark.parametrize("sizes", [(2147483647,) * 4, (65536, 65536, 65536, 65536), (1, 1, 2147483647, 2147483647),
                                   (4, 1000, 1000000, 7)])
def test_sizes_that_do_not_fit(step, sizes, runner):
    """Also those whose product wraps round to 0 in 64 bits."""
    arguments = [word for pair in zip(("--batch", "--heads", "--seq-q", "--seq-kv"), sizes) for word in pair]
    line = refused(runner, step, arguments, *(f"={n} " for n in sizes))
    needed, free = map(int, re.search(r"needs (\d+) bytes and (\d+) are free", line).groups())
    batch, heads, seq_q, seq_kv = sizes
    assert needed >= 2 * 64 * 2 * batch * heads * (seq_q + seq_kv) * (1 - 1e-9) and free < needed


@pytest.mark.parametrize("keys, block_size, words", [
    (2 ** 31 - 65537, 0, ["Sq=1 Skv=2147418111", "2147418111 together"]),
    (2 ** 31 - 1, 0, ["Skv=2147483647", "2147418111"]),
    (16 * 10 ** 8, 15 * 10 ** 8, ["--block-size 1500000000", "Skv=1600000000", "beyond 2147483647"])])
def test_more_keys_than_32_bits_count(keys, block_size, words, runner):
    """One page, 2048 times in the table: the files are small."""
    page = 1 << 20
    for name, shape in dict(q=(1, 1, 1, 8), k=(1, page, 1, 8), v=(1, page, 1, 8)).items():
        np.save(runner.folder / f"{name}.npy", np.zeros(shape, np.float16))
    np.save(runner.folder / "table.npy", np.zeros((1, 2048), np.int32))
    np.save(runner.folder / "lens.npy", np.array([keys], np.int64))
    np.save(runner.folder / "mask.npy", np.ones((1, 2), bool))
    mask = ["--block-mask", "mask.npy", "--block-size", block_size] if block_size else []
    refused(runner, SIX, [*PAGED, *mask, "--no-check", "--no-observe"], *words)


def test_the_workspace_of_step01(runner):
    """65,536 tokens and many heads: the arrays are small, the scores are a terabyte."""
    arguments = "--heads 64 --seq-q 65536 --head-dim 8 --no-check".split()
    line = refused(runner, STEPS[0], arguments, "65536 x 65536", "step02")
    assert int(re.search(r"(\d+) bytes of workspace", line).group(1)) >= 64 * 65536 ** 2 * 4


@on_cpu
@pytest.mark.parametrize("step, block_n, needed", [
    ("step03_tiled_smem", 256, 2 * 256 * 256 * 2), ("step04_pipelined", 128, 2 * 2 * 128 * 256 * 2),
    ("step05_mma_ldmatrix", 128, (2 * 2 * 128 + 64) * 256 * 2), (SIX, 128, (2 * 2 * 128 + 64) * 256 * 2)])
def test_shared_memory_that_does_not_fit(step, block_n, needed, runner):
    """The limit is a GPU's; a smaller tile, or single buffers, fit."""
    def run(*arguments, **settings):
        make(step[:6], "HEAD_DIM=256", *(f"{k}={v}" for k, v in settings.items()))
        name = f"{step}_d256_f16_n{settings['BLOCK_N']}" + ("_s1" if "STAGES" in settings else "")
        return subprocess.run([ROOT / "build/cpu" / name, *SMALL, *arguments], capture_output=True, text=True,
                              cwd=runner.folder)

    outputs = [word for pair in OUTPUTS.items() for word in pair]
    (runner.folder / "o.npy").write_text("older")
    before = contents(runner.folder)
    assert_refused(run(*outputs, BLOCK_N=block_n), (str(needed), "232448", "shared memory", "BLOCK_N"))
    assert contents(runner.folder) == before
    smaller = dict(BLOCK_N=block_n, STAGES=1) if step > "step04" else dict(BLOCK_N=block_n // 2)
    assert run(*outputs, **smaller).returncode == 0 and contents(runner.folder) != before


# ---- input files ----

NPY_REFUSALS = {
    "missing": (None, ["No such file"]),
    "directory": (Path.mkdir, ["directory"]),
    "pipe": (os.mkfifo, ["pipe"]),
    "empty": (b"", ["not an .npy file"]),
    "text": (b"1.0 2.0 3.0 4.0\n", ["not an .npy file", "31 2e 30"]),
    "npz": (b"PK\3\4" + bytes(60), ["not an .npy file", ".npz"]),
    "version": (npy(header(), bytes(1280), (4, 0)), ["version 4.0"]),
    "cut in the magic": (npy(header())[:7], ["truncated header", "7 bytes", "10 needed"]),
    "cut in the header": (npy(header())[:40], ["truncated header", "40 bytes"]),
    "header length": (npy(header(), length=65000), ["truncated header", "65010"]),
    "long header": (npy(header() + " " * 20000), ["header of 20"]),
    "no dict": (npy("[1, 2]\n"), ["malformed header", "[1, 2]"]),
    "cut dict": (npy("{'descr': '<f2', "), ["malformed header", "ends"]),
    "no order": (npy("{'descr': '<f2', 'shape': (1, 2, 5, 64), }\n"), ["fortran_order"]),
    "a key twice": (npy(header()[:-2] + "'descr': '<f2'}\n"), ["'descr'", "twice"]),
    "another key": (npy("{'colour': 1}\n"), ["'colour'"]),
    "fields": (npy(header("[('a', '<f2')]")), ["structured type"]),
    "float64": (npy(header("'<f8'"), bytes(5120)), ["<f8", "float64", "float16"]),
    "complex": (npy(header("'<c8'"), bytes(5120)), ["<c8", "complex"]),
    "int8": (npy(header("'|i1'"), bytes(640)), ["|i1", "int8"]),
    "uint32": (npy(header("'<u4'"), bytes(2560)), ["<u4", "uint32"]),
    "objects": (npy(header("'|O'"), bytes(640)), ["|O", "objects"]),
    "2-byte values": (npy(header("'|V2'"), bytes(1280)), ["|V2", "uint16"]),
    "unknown type": (npy(header("'<q9'")), ["<q9", "unknown"]),
    "list": (npy(header(shape="[1, 2, 5, 64]")), ["malformed header", "[1, 2, 5, 64]"]),
    "negative size": (npy(header(shape="(1, -2, 5, 64)")), ["-2", "negative"]),
    "huge size": (npy(header(shape="(1, 99999999999999999999, 5, 64)")), ["99999999999999999999", "overflows"]),
    "huge product": (npy(header(shape="(4294967296, 4294967296, 1, 64)")), ["(4294967296, 4294967296,", "overflows"]),
    "nine dimensions": (npy(header(shape="(1, 1, 1, 1, 1, 1, 1, 1, 1)")), ["dimensions", "8"]),
    "truncated": (npy(header(), bytes(1279)), ["truncated data", "1279", "1280 needed", "(1, 2, 5, 64)"]),
    "claims terabytes": (npy(header(shape="(1, 2, 99999999999, 64)"), bytes(64)),
                         ["truncated data", "64 bytes", str(2 * 99999999999 * 64 * 2)]),
    "trailing bytes": (npy(header(), bytes(1281)), ["trailing bytes", "1281", "1280"]),
    # read, and refused by the step
    "int32": (npy(header("'<i4'"), bytes(2560)), ["i32", "f32"]),
    "int64": (npy(header("'<i8'"), bytes(5120)), ["i64", "f32"]),
    "uint8": (npy(header("'|u1'"), bytes(640)), ["u8", "f32"]),
    "bool": (npy(header("'|b1'"), bytes(640)), ["bool", "f32"]),
    "scalar": (npy(header(shape="()"), bytes(2)), ["0 dimensions", "four, [B,H,S,D]"]),
    "three dimensions": (npy(header(shape="(2, 5, 64)"), bytes(1280)), ["3 dimensions", "four"]),
    "five dimensions": (npy(header(shape="(1, 1, 2, 5, 64)"), bytes(1280)), ["5 dimensions", "four"]),
    "no rows": (npy(header(shape="(1, 2, 0, 64)")), ["size 0 along dimension 2", "[B,H,S,D]"]),
    "more than 31 bits": (npy(header(shape="(0, 3000000000, 1, 64)")), ["size 0"]),
    "more heads than 31 bits": (npy(header(shape="(1, 3000000000, 0, 64)")), ["3000000000", "2147483647"]),
}


def write_input(path, content):
    path.unlink()
    if callable(content):
        content(path)
    elif content is not None:
        path.write_bytes(content)


@steps
@pytest.mark.parametrize("name", NPY_REFUSALS)
def test_input_files_that_are_refused(step, name, runner):
    content, words = NPY_REFUSALS[name]
    save_inputs(runner.folder)
    write_input(runner.folder / "q.npy", content)
    line = refused(runner, step, FILES, "--q", "q.npy", *words)
    assert "DTYPE=" not in line  # no other build would take it either


@pytest.mark.parametrize("option", ["k", "v", "previous-out", "previous-lse"])
@pytest.mark.parametrize("name", ["missing", "truncated", "float64", "huge product"])
def test_every_input_is_looked_at(option, name, runner):
    content, words = NPY_REFUSALS[name]
    save_inputs(runner.folder)
    path = runner.folder / f"{option}.npy"
    path.touch()
    write_input(path, content)
    arguments = [*FILES, *([f"--{option}", path.name] if option not in "kv" else [])]
    refused(runner, ONE, arguments, f"--{option}", path.name, *words)


def test_a_file_larger_than_the_memory(runner):
    save_inputs(runner.folder)
    path = runner.folder / "k.npy"
    path.write_bytes(start := npy(header(shape="(1, 2, 8589934592, 64)")))
    try:
        os.truncate(path, len(start) + 2 ** 41)
    except OSError:
        pytest.skip("this file system takes no sparse file of 2 TiB")
    refused(runner, ONE, FILES, "--k", "k.npy", str(2 ** 41), "memory")


@steps
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_the_other_16_bit_type(step, name, runner):
    save_inputs(runner.folder, **{name: np.zeros((1, 2, 5 if name == "q" else 9, 64), np.uint16)})
    refused(runner, step, FILES, f"--{name}", f"{name}.npy", "u16 (bf16)", "f16 or f32", "DTYPE=bf16")
    save_inputs(runner.folder, np.uint16, **{name: np.zeros((1, 2, 5 if name == "q" else 9, 64), np.float16)})
    refused(runner, step, FILES, f"--{name}", f"{name}.npy", "is f16", "u16 (bf16) or f32", "DTYPE=f16", DTYPE="bf16")


@steps
@pytest.mark.parametrize("bshd, shapes, words", [
    (0, dict(k=(2, 2, 9, 64), v=(2, 2, 9, 64)), ["B = 2 in --k k.npy", "1 in --q q.npy"]),
    (0, dict(k=(1, 2, 9, 32), v=(1, 2, 9, 32)), ["D = 32 in --k", "64 in --q"]),
    (0, dict(v=(2, 2, 9, 64)), ["B = 2 in --v v.npy", "1 in --k k.npy"]),
    (0, dict(v=(1, 1, 9, 64)), ["H = 1 in --v", "2 in --k"]),
    (0, dict(v=(1, 2, 10, 64)), ["S = 10 in --v", "9 in --k"]),
    (0, dict(v=(1, 2, 9, 56)), ["D = 56 in --v", "64 in --k"]),
    (0, dict(k=(1, 1, 9, 64), v=(1, 1, 9, 64)), ["2 heads in --q", "1 in --k", "step06 is the one with GQA"]),
    (0, dict(q=(1, 3, 5, 64)), ["3 heads in --q", "2 in --k", "step06"]),
    (0, dict(q=(1, 1, 5, 64)), ["1 heads in --q", "2 in --k"]),
    (0, dict(q=(1, 2, 5, 20), k=(1, 2, 9, 20), v=(1, 2, 9, 20)), ["D = 20 of --q", "multiple of 8", "24"]),
    (0, dict(q=(1, 2, 5, 46), k=(1, 2, 9, 46), v=(1, 2, 9, 46)), ["D = 46 of --q", "multiple of 8", "48"]),
    (0, dict(q=(1, 2, 5, 63), k=(1, 2, 9, 63), v=(1, 2, 9, 63)), ["D = 63 of --q", "multiple of 8", "64"]),
    (0, dict(q=(1, 2, 5, 80), k=(1, 2, 9, 80), v=(1, 2, 9, 80)), ["D = 80 of --q", "HEAD_DIM = 64", "HEAD_DIM=96"]),
    (0, dict(q=(1, 2, 5, 512), k=(1, 2, 9, 512), v=(1, 2, 9, 512)), ["D = 512 of --q", "256"]),
    (1, dict(v=(1, 2, 10, 64)), ["H = 10 in --v", "9 in --k"]),
    (1, dict(v=(1, 3, 9, 64)), ["S = 3 in --v", "2 in --k"]),
    (1, dict(), ["5 heads in --q", "9 in --k"]),
    (1, dict(q=(1, 5, 64)), ["3 dimensions", "[B,S,H,D]"]),
])
def test_shapes_that_disagree(step, bshd, shapes, words, runner):
    save_inputs(runner.folder, **{name: np.zeros(shape, np.float16) for name, shape in shapes.items()})
    refused(runner, step, [*FILES, *(["--bshd"] if bshd else [])], *words)


@pytest.mark.parametrize("option, array", [
    ("--previous-out", np.zeros((1, 2, 5, 64), np.float32)), ("--previous-out", np.zeros((1, 2, 5, 64), np.uint16)),
    ("--previous-out", np.zeros((1, 2, 4, 64), np.float16)), ("--previous-out", np.zeros((2, 5, 64), np.float16)),
    ("--previous-lse", np.zeros((1, 2, 5), np.float16)), ("--previous-lse", np.zeros((1, 5, 2), np.float32)),
    ("--previous-lse", np.zeros((1, 2, 5, 1), np.float32))])
def test_results_of_another_run(option, array, runner):
    np.save(runner.folder / "before.npy", array)
    refused(runner, ONE, [*SMALL, option, "before.npy"], option, "before.npy", "type or shape")


# ---- output files ----

@steps
@pytest.mark.parametrize("option", OUTPUTS)
@pytest.mark.parametrize("path, word", [("nowhere/x", "does not exist"), ("notes.txt/x", "does not exist"),
                                        ("folder", "no regular file"), ("/dev/full", "no regular file"),
                                        ("x" * 300, "too long")])
def test_outputs_that_cannot_be_written(step, option, path, word, runner):
    (runner.folder / "folder").mkdir()
    (runner.folder / "notes.txt").touch()
    refused(runner, step, [*SMALL, option, path], option, path, word)


@pytest.mark.parametrize("first, second", [("--out", "--lse"), ("--out", "--json"), ("--lse", "--row"),
                                           ("--row", "--json")])
@pytest.mark.parametrize("name, other", [("x", "x"), ("x", "./x"), ("x", "folder/../x"), ("x", "link/x"),
                                         ("x", "{folder}/x"), ("older", "alias")])
def test_two_outputs_of_one_name(first, second, name, other, runner):
    (runner.folder / "folder").mkdir()
    (runner.folder / "older").write_text("older")
    (runner.folder / "alias").symlink_to("older")
    (runner.folder / "link").symlink_to(".", target_is_directory=True)
    other = other.format(folder=runner.folder)
    refused(runner, ONE, [*SMALL, first, name, second, other], f"{first} {name}", f"{second} {other}", "overwrite")


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("option, path", [("--q", "q.npy"), ("--k", "./k.npy"), ("--v", "alias"),
                                          ("--previous-out", "p.npy"), ("--previous-lse", "p.npy")])
def test_an_output_over_an_input(output, option, path, runner):
    save_inputs(runner.folder)
    (runner.folder / "p.npy").write_text("an earlier result")
    (runner.folder / "alias").symlink_to("v.npy")
    words = [*FILES, *([] if option in FILES else [option, path]), output, path]
    refused(runner, ONE, words, f"{output} {path}", f"{option} ", "overwrite")


def test_a_sink_is_not_overwritten(runner):
    save_variants(runner.folder, FILES)
    refused(runner, SIX, [*FILES, "--sinks", "sinks.npy", "--row", "sinks.npy"], "--sinks sinks.npy", "--row sinks.npy")


@pytest.mark.parametrize("option", OUTPUTS)
def test_links_and_modes_stay(option, runner):
    """Also a link to what is not there yet."""
    for name in ("older", "closed"):
        (runner.folder / name).touch(mode=0o600)
    for name, target in dict(link="older", again="./link", dangling="new").items():
        (runner.folder / name).symlink_to(target)
    for path in "closed", "again", "dangling":
        assert runner.run(ONE, *SMALL, option, path).returncode == 0
    assert sorted(p.name for p in runner.folder.iterdir()) == ["again", "closed", "dangling", "link", "new", "older"]
    assert all((runner.folder / name).is_symlink() for name in ("link", "again", "dangling"))
    for name, mode in dict(older=0o600, closed=0o600, new=None).items():
        status = (runner.folder / name).stat()
        assert status.st_size > 0 and mode in (None, status.st_mode & 0o777)


@pytest.mark.parametrize("option", OUTPUTS)
def test_a_long_name(option, runner):
    """As long as a file's name can be: none is left for what is written first."""
    name = "x" * 255
    assert runner.run(ONE, *SMALL, option, name).returncode == 0
    assert [p.name for p in runner.folder.iterdir()] == [name]


@pytest.mark.parametrize("words", [SMALL, ["--help"], [*SMALL, "--no-observe"]])
def test_a_full_disk_under_standard_output(words):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run([binary(ONE), *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "standard output" in done.stderr


def test_outputs_of_the_same_name_in_two_folders(runner):
    for name in ("a", "b"):
        (runner.folder / name).mkdir()
    done = runner.run(ONE, *SMALL, "--out", "a/x", "--lse", "b/x", "--json", "x")
    assert done.returncode == 0, done.stderr
    assert np.load(runner.folder / "a/x").ndim == 4 and np.load(runner.folder / "b/x").ndim == 3


@pytest.fixture
def unprivileged():
    """A Runner whose steps may do less than root: as another user, if the tests run as root."""
    built = binary(ONE)
    folder = Path(tempfile.mkdtemp(prefix="steps-"))
    folder.chmod(0o777)
    rights = dict(user=65534, group=65534, extra_groups=[]) if os.geteuid() == 0 else {}
    program = shutil.copy(built, folder.parent / f"{folder.name}.program")

    class Unprivileged(Runner):
        def run(self, step, *arguments):
            try:
                return subprocess.run([program, *arguments], capture_output=True, text=True, cwd=folder, **rights)
            except PermissionError:
                pytest.skip("no right to run as another user")

    yield Unprivileged(folder)
    for path in folder.iterdir():
        path.chmod(0o700)
    shutil.rmtree(folder)
    os.remove(program)


@pytest.mark.parametrize("option", OUTPUTS)
def test_outputs_without_the_right_to_write(option, unprivileged):
    (unprivileged.folder / "closed").mkdir(mode=0o555)
    done = unprivileged.run(ONE, *SMALL, option, "closed/x")
    assert_refused(done, (option, "closed/x", "may not be written"))
    (unprivileged.folder / "link").symlink_to("closed/x")
    assert_refused(unprivileged.run(ONE, *SMALL, option, "link"), (option, "link", "may not be written"))
    (unprivileged.folder / "link").unlink()
    (unprivileged.folder / "older").write_text("older")
    (unprivileged.folder / "older").chmod(0o444)
    others = [word for pair in OUTPUTS.items() if pair[0] != option for word in pair]
    before = contents(unprivileged.folder)
    done = unprivileged.run(ONE, *SMALL, *others, option, "older")
    assert_refused(done, (option, "older", "Permission denied"))
    assert contents(unprivileged.folder) == before


def test_a_row_goes_on_in_a_file_that_may_be_written(unprivileged):
    """It is no new file, so its directory need not be writable."""
    folder = unprivileged.folder / "closed"
    folder.mkdir()
    (folder / "table").write_text("a line\n")
    (folder / "table").chmod(0o666)
    folder.chmod(0o555)
    done = unprivileged.run(ONE, *SMALL, "--row", "closed/table")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"a line\n{ONE} .*PASS\n", (folder / "table").read_text())


def test_a_row_that_does_not_fit_leaves_no_half_line(tmp_path):
    table = tmp_path / "table"
    table.write_text("older\n" * 160)  # 960 bytes
    done = subprocess.run([binary(ONE), *SMALL, "--row", table], capture_output=True, text=True, **small_disk(1024))
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--row" in done.stderr and "writing failed" in done.stderr
    assert table.read_text() == "older\n" * 160


def test_a_long_path_does_not_hide_the_reason(runner):
    done = runner.run(ONE, "--out", "x/" * 520 + "o.npy")
    assert_refused(done, ("--out", "o.npy: its directory does not exist"))


def test_inputs_without_the_right_to_read(unprivileged):
    save_inputs(unprivileged.folder)
    (unprivileged.folder / "v.npy").chmod(0)
    assert_refused(unprivileged.run(ONE, *FILES), ("--v", "v.npy", "Permission denied"))


# ---- what is taken ----

@pytest.mark.parametrize("step", [s for s in STEPS if s[:6] in ("step01", "step05", "step06")])
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_lists_every_option(step, word, runner):
    rows = re.findall(r'\{[A-Z]+, "(--[a-z-]+)", "([A-Z,]*)"', (ROOT / "common/options.c").read_text())
    done = runner.run(step, word)
    assert done.returncode == 0 and done.stderr == "" and len(rows) > 20
    assert set(VARIANT_OPTIONS) < {option for option, _ in rows}
    for option, value in rows:
        listed = re.search(rf"^  {option} {value} +\S", done.stdout, re.M)
        assert bool(listed) == (step == SIX or option not in VARIANT_OPTIONS), option
    assert f"make {step[:6]} " in done.stdout and "Exit code" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


@on_cpu
def test_a_value_that_rounds_to_infinity_is_said(runner):
    """A mean of the largest f16 may round up to infinity: within the bound, but no NaN, and not to be hidden."""
    rng = np.random.default_rng(12)
    arrays = 4 * rng.standard_normal((1, 1, 64, 64)), rng.standard_normal((1, 1, 70, 64)), np.full((1, 1, 70, 64), 65504)
    for name, array in zip("qkv", arrays):
        np.save(runner.folder / f"{name}.npy", array.astype("f2"))
    done = runner.run("step05_mma_ldmatrix", *FILES, "--out", "o.npy", "--row", "table.txt")
    infinite = int(np.isinf(np.load(runner.folder / "o.npy")).sum())
    assert done.returncode == 0 and infinite > 0 and f"{infinite} values rounded to infinity" in done.stdout
    assert (runner.folder / "table.txt").read_text().splitlines()[-1].split()[1] == "inf"


def finite_json(path):
    """The report; NaN and Infinity, which JSON does not have, are errors."""
    def no_constant(name):
        raise AssertionError(name)

    def numbers(value):
        if isinstance(value, dict):
            return [n for part in value.values() for n in numbers(part)]
        return [value] if isinstance(value, (int, float)) else []

    report = json.loads(path.read_text(), parse_constant=no_constant)
    assert all(map(math.isfinite, numbers(report)))
    return report


@steps
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_json(step, dtype, runner):
    done = runner.run(step, "--batch", "2", "--heads", "3", *SMALL, "--head-dim", "40", "--scale", "-0.25", "--bshd",
                      "--json", "report.json", DTYPE=dtype)
    assert done.returncode == 0, done.stderr
    report = finite_json(runner.folder / "report.json")
    expected = {"step": step, "backend": BACKEND, "dtype": dtype, "layout": "bshd", "batch": 2, "heads": 3, "kv_heads": 3,
                "seq_q": 5, "seq_kv": 9, "head_dim": 40, "scale": -0.25, "rows": 30, "rows_checked": 30, "pass": True,
                "o_previous": None, "lse_previous": None, "time_ms": None, "tflops": None, "tb_per_s": None}
    assert {key: report[key] for key in expected} == expected
    assert report["o"]["compared"] == 2 * 3 * 5 * 40 and report["lse"]["compared"] == 30
    assert 0 <= report["o"]["max_error"] < report["o"]["bound"] and report["o"]["worst_ratio"] < 1
    if BACKEND == "cpu":
        assert report["counters"]["load_bytes"] > 0 and report["counters"]["store_sectors"] > 0


def test_json_of_a_run_without_finite_values(runner):
    save_inputs(runner.folder, q=np.full((1, 2, 5, 64), np.nan, np.float16))
    done = runner.run(ONE, *FILES, "--json", "report.json")
    report = finite_json(runner.folder / "report.json")
    assert done.returncode == 0 and report["pass"] is True and report["o"]["max_error"] is None


@steps
@pytest.mark.parametrize("descr, order", [(">f4", "C"), ("<f4", "F"), (">f4", "F"), ("<f2", "C"), (">f2", "C"),
                                          ("<f2", "F")])
def test_byte_and_axis_orders_give_the_same_bits(step, descr, order, runner):
    q, k, v = (x.astype(np.float32) for x in reference.generate(21, 2, 3, 3, 5, 9, 64))
    o, lse, _ = runner.attend(step, q, k, v)
    for changed in "q", "kv", "qkv":
        arrays = [x.astype(descr, order=order) if name in changed else x for name, x in zip("qkv", (q, k, v))]
        o_changed, lse_changed, _ = runner.attend(step, *arrays)
        assert o.tobytes() == o_changed.tobytes() and lse.tobytes() == lse_changed.tobytes()


@steps
def test_value_after_an_equals_sign(step, runner):
    words = "--batch 1 --heads 3 --seq-q 6 --seq-kv 10 --head-dim 16 --seed 7 --scale -0.5".split()
    spaced = runner.run(step, *words, "--out", "a.npy")
    joined = runner.run(step, *map("=".join, zip(words[::2], words[1::2])), "--out=b=1.npy")
    assert spaced.returncode == joined.returncode == 0 and spaced.stdout == joined.stdout
    assert (runner.folder / "a.npy").read_bytes() == (runner.folder / "b=1.npy").read_bytes()
    assert np.load(runner.folder / "a.npy").shape == (1, 3, 6, 16)


def test_seeds(runner):
    for name, seed in dict(a=[], b=["--seed", "1"], c=["--seed", "18446744073709551615"], d=["--seed", "0"]).items():
        assert runner.run(ONE, *SMALL, *seed, "--out", name).returncode == 0
    a, b, c, d = ((runner.folder / name).read_bytes() for name in "abcd")
    assert a == b and len({a, c, d}) == 3


@steps
def test_no_check(step, runner):
    done = runner.run(step, *SMALL, "--no-check", "--json", "report.json", "--row", "table.txt", "--out", "o.npy")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "not checked" and "PASS" not in done.stdout
    report = finite_json(runner.folder / "report.json")
    assert report["pass"] is None and report["o"] is None and report["lse"] is None
    assert (runner.folder / "table.txt").read_text().splitlines()[-1].split()[-1] == "-"
    assert np.all(np.isfinite(np.load(runner.folder / "o.npy")))


@on_cpu
@steps
def test_no_observe(step, runner):
    """The program without observation gives the same bits and counts nothing."""
    for name, words in dict(a=[], b=["--no-observe"]).items():
        done = runner.run(step, *SMALL, *words, "--out", f"{name}.npy", "--json", f"{name}.json")
        assert done.returncode == 0 and ("sectors" in done.stdout) == (name == "a")
    assert (runner.folder / "a.npy").read_bytes() == (runner.folder / "b.npy").read_bytes()
    assert finite_json(runner.folder / "b.json")["counters"] is None


def test_row_appends(runner):
    for step in STEPS:
        assert runner.run(step, *SMALL, "--row", "table.txt").returncode == 0
    head, *lines = (runner.folder / "table.txt").read_text().splitlines()
    assert head.startswith("step ") and head.endswith("check")
    assert [line.split()[0] for line in lines] == STEPS
    assert all(line.endswith("PASS") and len(line) == len(lines[0]) for line in lines)


@steps
@pytest.mark.parametrize("bshd", [[], ["--bshd"]])
def test_a_difference_from_the_step_before_is_found(step, bshd, runner):
    words = [*SMALL, *bshd, "--previous-out", "before.npy", "--previous-lse", "before_lse.npy"]
    assert runner.run(step, *SMALL, *bshd, "--out", "before.npy", "--lse", "before_lse.npy").returncode == 0
    done = runner.run(step, *words, "--json", "report.json")
    assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout
    assert finite_json(runner.folder / "report.json")["o_previous"]["max_error"] == 0

    for name, index, place in ("before.npy", (0, 1, 1, 63), "O against the step before: 1 of 640 "), \
                              ("before_lse.npy", (0, 1, 4), "LSE against the step before: 1 of 10 "):
        right = np.load(runner.folder / name)
        wrong = right.copy()
        wrong[index] += 0.25
        np.save(runner.folder / name, wrong)
        done = runner.run(step, *words, "--json", "report.json", "--row", "table.txt")
        at = "[" + ",".join(map(str, index)) + "]"
        assert done.returncode == 1 and "PASS" not in done.stdout
        assert re.search(rf"^FAIL +{place}.*{re.escape(at)}$", done.stdout, re.M), done.stdout
        assert finite_json(runner.folder / "report.json")["pass"] is False
        assert (runner.folder / "table.txt").read_text().endswith("FAIL\n")
        np.save(runner.folder / name, right)


# ---- wrong kernels ----

@pytest.mark.parametrize("bug, hidden, shown", [
    ("no_rescale_of_o", 64, 200),     # one tile has nothing to rescale
    ("no_rescale_of_o", 40, 128),
    ("tail_scored_as_zero", 128, 200),  # whole tiles have no tail
    ("tail_scored_as_zero", 64, 63),
])
def test_a_planted_bug_fails(bug, hidden, shown):
    """The kernel with a mistake passes where the mistake does not matter, and only there."""
    def run(seq_kv, target="run-step02"):
        return make(target, f"BUG={bug}", f"ARGS=--seq-q 100 --seq-kv {seq_kv}", check=False)

    done = run(hidden)
    assert done.returncode == 0 and "PASS" in done.stdout and "FAIL" not in done.stdout, done.stdout + done.stderr
    done = run(shown)
    assert done.returncode != 0, done.stdout
    assert re.search(r"^FAIL +O: \d+ of 12800 values", done.stdout, re.M), done.stdout + done.stderr
    assert "PASS" not in done.stdout
    done = run(shown, "bug-step02")  # to look at: the failure is what was asked for
    assert done.returncode == 0 and "FAIL" in done.stdout
    assert make("run-step02", f"ARGS=--seq-q 100 --seq-kv {shown}").stdout.endswith("PASS\n")
