"""The CPU executor: errors named by line, warp instructions counted as the hardware counts them."""
import ctypes
import json
import os
import platform
import re
import shutil
import subprocess

import numpy as np
import pytest
from conftest import BACKEND, CC, ROOT, STEPS, binary, make, own_environment

import compare  # common/, on the path since conftest

pytestmark = pytest.mark.skipif(BACKEND != "cpu", reason="the executor is the CPU backend")
SOURCE = ROOT / "tests/kernels/faults.cu"


def line_of(mark):
    return next(i for i, line in enumerate(SOURCE.read_text().splitlines(), 1) if mark in line)


@pytest.fixture(scope="module")
def faults():
    make("build/cpu/test_faults")
    return lambda name: subprocess.run([ROOT / "build/cpu/test_faults", name], capture_output=True, text=True, timeout=60)


def test_a_right_kernel_has_no_report(faults):
    done = faults("right")
    assert done.returncode == 0 and done.stderr == ""
    # 3 blocks of 2 warps load and store 4 bytes a thread: 4 sectors each
    assert done.stdout.startswith("loads 6 requests 24 sectors 768 bytes, stores 6 requests 24 sectors 768 bytes\n")
    x = np.arange(192, dtype=float).reshape(3, 64)[:, ::-1].copy()
    x[:, :32] += x[:, np.arange(32) ^ 1]
    expected = np.concatenate([np.repeat(x[:, i:i + 1], 16, 1) for i in (3, 20, 35, 52)], 1)
    assert np.array_equal(np.loadtxt(done.stdout.splitlines()[1:]), expected)


@pytest.mark.parametrize("name", ["no_race", "no_race_when_read_again", "early_waits", "partial_right"])
def test_ordered_accesses_are_no_race(faults, name):
    done = faults(name)
    assert done.returncode == 0 and done.stderr == ""


def test_a_vote(faults):
    """1 for all lanes of the mask if any of them is for it."""
    done = faults("votes")
    assert done.returncode == 0 and done.stderr == ""
    expected = np.tile(1000 + np.repeat([100, 0, 101, 1], 16), (3, 1))
    assert np.array_equal(np.loadtxt(done.stdout.splitlines()[1:]), expected)


def test_a_shuffle_hands_on_bits(faults):
    """An int or two packed halves arrive as they are; where there is no lane to ask, a thread keeps its own."""
    done = faults("shuffled_bits")
    assert done.returncode == 0 and done.stderr == ""
    assert (np.loadtxt(done.stdout.splitlines()[1:]) == 111).all()


def test_copies_and_sets_are_seen(faults):
    done = faults("copies_and_sets")
    assert done.returncode == 0 and done.stderr == ""
    assert (np.loadtxt(done.stdout.splitlines()[1:]) == np.concatenate([np.arange(32), np.zeros(32)])).all()
    assert done.stdout.startswith("loads 96 requests 96 sectors 384 bytes")  # a lane of each of 3 blocks, 32 times


@pytest.mark.parametrize("name, words", [
    ("load_past_end", "load out of bounds: block ., warp 1, lane 31 reads 4 bytes at byte 768 of in, which has 768"),
    ("store_before_start", "store out of bounds: block ., warp 0, lane 0 writes 4 bytes at byte -4 of out"),
    ("offset_overflow", "load out of bounds"),
    ("uninitialised", "uninitialised: .* reads byte 0 of never_written"),
    ("shared_past_end", "store out of bounds: .* warp 1, lane 31 writes 4 bytes at byte 256 of shared memory"),
    ("shared_far_below", "store out of bounds: .* writes 4 bytes at byte -80000 of shared memory"),
    ("shared_far_above", "load out of bounds: .* reads 4 bytes at byte 32000000 of shared memory"),
    ("null_pointer", "load out of bounds: .* lane 0 reads 4 bytes at address 0x0: a null or uninitialised pointer"),
    pytest.param("divided_by_zero", "lane 0 divides an integer by zero", marks=pytest.mark.skipif(
        platform.machine() not in ("x86_64", "AMD64"), reason="arm64's division gives 0")),
    ("misaligned", "misaligned: .* reads 16 bytes at byte 4 of in"),
    ("barrier_not_reached", "waits in __syncthreads for block ., warp 1, lane 0, which has returned"),
    ("two_barriers", "__syncthreads"),
    ("barrier_against_shuffle", "they never meet"),
    ("two_shuffles", "__shfl_sync"),
    ("vote_against_shuffle", "meets in __any_sync .* waits in __shfl_sync"),
    ("two_votes", "meets in __any_sync .* waits in __any_sync"),
    ("race_past_a_vote", "race: .* byte .* of shared memory, .*: no .* lies between"),
    ("lane_not_in_mask", "lane 16 calls __shfl_sync with mask 0x0000ffff, in which it is not itself"),
    ("source_not_in_mask", "reads lane 16 in __shfl_sync, which is not in mask 0x0000ffff"),
    ("absent_lane", "lane 7, which has returned"),
    ("partial_shuffle", "__shfl_sync for block ., warp 1, lane 16, which does not exist: the block has 48 threads"),
    ("partial_syncwarp", "lane 0 waits in __syncwarp for block ., warp 1, lane 16, which does not exist"),
    ("partial_ldmatrix", "lane 0 waits in ldmatrix for block ., warp 1, lane 16, which does not exist"),
    ("race_with_one_reader", "lane 0 writes byte .*, which block ., warp ., lane 2 read at"),
    ("race_with_an_older_reader", "lane 0 writes byte .*, which block ., warp ., lane 30 read at"),
    ("race_of_a_wide_load", "race: .* byte 12 of shared memory"),
    ("copy_not_seen", "race: .* of shared memory"),
    ("set_past_end", "store out of bounds: .* lane 0 writes 4 bytes at byte 256 of shared memory, which has 256"),
    ("race_between_warps", "race: .* byte .* of shared memory, .*: no .* lies between"),
    ("race_within_a_warp", "race: .* byte .* of shared memory, .*: no .* lies between"),
    ("race_past_a_partial_mask", "race: .* byte .* of shared memory, .*: no .* lies between"),
    ("overwrite_too_early", "race: .* byte .* of shared memory, .*: no .* lies between"),
    ("shared_uninitialised", "uninitialised: .* of shared memory, which nothing in this block has written"),
    ("copy_not_waited_for", "the copy is in flight, no cp_async_wait has covered it"),
    ("copy_without_barrier", "race: .* reads byte"),
    ("copy_without_use", "the copy is in flight when .* returns from the kernel, no cp_async_wait has covered it"),
    ("copy_outside", "cp.async at byte 256 of shared memory, which has 256"),
    ("copy_from_shared", "cp.async from an address that is not in global memory"),
    ("ldmatrix_misaligned", "ldmatrix at byte .* of shared memory, .* at a multiple of 16"),
    ("race_between_blocks", "race between blocks: .* writes byte 0 of out, which another block wrote"),
    ("early_overwrites", "race between kernels: .* of in, which the kernel before read .* no wait_for_previous_kernel"),
    ("block_overwrites_what_all_read", "race between blocks: .* of out, which another block"),
])
def test_faults_are_named_by_line(faults, name, words):
    done = faults(name)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr  # one cause, one report
    assert re.search(words, done.stderr), done.stderr
    assert f"faults.cu:{line_of(f'FAULT({name})')}" in done.stderr
    if f"OTHER({name})" in SOURCE.read_text():
        assert f"faults.cu:{line_of(f'OTHER({name})')}" in done.stderr


def test_lines_wherever_the_checkout_lies(tmp_path):
    """Below another folder named common, and with an apostrophe in the path: lines of the kernel, not of helpers."""
    copy = tmp_path / "it's" / "common" / "f"
    for folder in ("common", "step02_online_softmax", "step03_tiled_smem"):
        shutil.copytree(ROOT / folder, copy / folder)
    shutil.copy(ROOT / "Makefile", copy)
    done = subprocess.run(["make", "bug-step03", "BUG=no_barrier_after_copy", "BACKEND=cpu", f"CC={CC}"], cwd=copy,
                          capture_output=True, text=True, env=own_environment())
    kernel = "step03_tiled_smem/attention.cu"
    lines = re.search(rf"error: {kernel}:(\d+): .* at {kernel}:(\d+):", done.stderr)
    source = (ROOT / kernel).read_text().splitlines()
    assert lines and "LOAD16(" in source[int(lines[1]) - 1] and "STORE16(" in source[int(lines[2]) - 1], done.stderr


def test_wavefronts_are_those_of_the_hardware(tmp_path):
    """Single instructions measured on an H200: the rule in banks.c must give every one."""
    library = tmp_path / "banks.so"
    subprocess.run([CC, "-shared", "-fPIC", "-O1", ROOT / "common/simt/banks.c", "-o", library], check=True)
    banks = ctypes.CDLL(str(library))
    measured = json.loads((ROOT / "tests/goldens/wavefronts_h200.json").read_text())
    access = {"load": 0, "store": 1, "ldmatrix": 2}
    wrong, least = [], ctypes.c_int()
    for case in measured["cases"]:
        unit = case["unit_bytes"]
        kind = next(number for name, number in access.items() if name in case["instruction"])
        size = 16 if kind == 2 else int(re.match(r"(\d+)-byte", case["instruction"]).group(1))
        addresses = (ctypes.c_uint64 * 32)(*[1024 + unit * x for x in case["lane_offset_units"]])
        counted = banks.shared_wavefronts(addresses, ctypes.c_uint(0xffffffff), size, kind, ctypes.byref(least))
        if counted != case["wavefronts"]:
            wrong.append((case, counted))
    assert len(measured["cases"]) > 100 and not wrong, wrong[:3]


def test_portable_fibres_run_too(tmp_path):
    """ucontext and _setjmp, for processors that have no switch of their own here."""
    sources = sorted((ROOT / "common/simt").glob("*.c"))
    program = tmp_path / "faults"
    flags = ["-std=gnu11", "-O1", "-g", "-U_FORTIFY_SOURCE", "-DSIMT_UCONTEXT", "-fno-pie", "-no-pie", "-march=native",
             "-fno-strict-aliasing", "-fno-optimize-sibling-calls"]
    kernel = tmp_path / "faults.o"
    subprocess.run([CC, *flags, "-fsanitize=thread", "-DELEMENT_BF16=0", "-x", "c", "-c", SOURCE, "-o", kernel], check=True)
    subprocess.run([CC, *flags, *sources, kernel, "-o", program, "-lm", "-lpthread", "-ldl"], check=True)
    assert subprocess.run([program, "right"], capture_output=True).returncode == 0
    assert subprocess.run([program, "two_barriers"], capture_output=True).returncode == 1


def counters(folder, step, *arguments, **settings):
    subprocess.run([binary(step, **settings), *arguments, "--json", "counters.json"], cwd=folder, check=True,
                   capture_output=True)
    return json.loads((folder / "counters.json").read_text())["counters"]


def test_traffic_of_the_naive_step(tmp_path):
    """What the source says, in closed form: L = 128, D = 64, f16, 2 heads; S and P in f32."""
    B, L, D = 2, 128, 64
    c = counters(tmp_path, STEPS[0], "--heads", "2", "--seq-q", str(L), "--seq-kv", str(L))
    scores = 2 * L * L * D * 2         # a thread reads D elements of q and of k
    softmax = 3 * L * L * 4            # three passes over S
    output = L * L * D * (4 + 2)       # p and v for each product
    assert c["load_bytes"] == B * (scores + softmax + output)
    assert c["store_bytes"] == B * (2 * L * L * 4 + L * D * 2 + L * 4)   # S, P, O, LSE
    # the scores kernel's k: lanes lie one row of 128 bytes apart, each 2-byte load touches 32 sectors; q: one sector
    assert c["load_requests"] == B * (L * L // 32 * D * 2 + 3 * L * L // 32 + L * D // 32 * L * 2)


@pytest.mark.parametrize("step", STEPS[:5])
@pytest.mark.parametrize("shape, tuned", [((1, 2, 128, 128, 64), {}), ((2, 1, 77, 213, 64), dict(ROW_TILES=2)),
                                          ((1, 1, 130, 50, 128), dict(HEAD_DIM=128, WARPS=2, BLOCK_N=32))])
def test_bytes_are_those_of_the_closed_formula(step, shape, tuned, tmp_path):
    arguments = zip(("--batch", "--heads", "--seq-q", "--seq-kv", "--head-dim"), map(str, shape))
    subprocess.run([binary(step, **tuned), *sum(arguments, ()), "--json", "run.json"], cwd=tmp_path, check=True,
                   capture_output=True)
    run = json.loads((tmp_path / "run.json").read_text())
    c = run["counters"]
    assert c["load_bytes"] + c["store_bytes"] == shape[0] * shape[1] * compare.asked(run)[0]


def test_a_sample_of_blocks(tmp_path):
    """Four equal blocks: one of them counts a quarter; as many as there are count all."""
    shape = ["--heads", "2", "--seq-q", "128"]
    every = counters(tmp_path, "step03_tiled_smem", *shape)
    one = counters(tmp_path, "step03_tiled_smem", *shape, "--observe-blocks", "1")
    assert {k: 4 * v for k, v in one.items()} == every
    assert counters(tmp_path, "step03_tiled_smem", *shape, "--observe-blocks", "4") == every
    done = subprocess.run([binary(STEPS[0]), *shape, "--observe-blocks", "3"], capture_output=True, text=True)
    assert done.returncode == 0 and "at most 3 blocks of each kernel" in done.stdout and not done.stderr


def test_counts_by_line_add_up(tmp_path):
    subprocess.run([binary("step05_mma_ldmatrix"), "--profile", "--json", "run.json"], cwd=tmp_path, check=True,
                   capture_output=True)
    run = json.loads((tmp_path / "run.json").read_text())
    c, lines = run["counters"], run["lines"]
    assert sum(line["requests"] for line in lines) == c["load_requests"] + c["store_requests"]
    assert sum(line["wavefronts"] for line in lines) == c["shared_load_wavefronts"] + c["shared_store_wavefronts"]
    assert sum(line["mma"] for line in lines) == c["mma"]
    source = (ROOT / "step05_mma_ldmatrix/attention.cu").read_text().splitlines()
    for line in lines:
        text = source[line["line"] - 1]
        assert not line["mma"] or "mma_m16n8k16(" in text
        assert not line["barriers"] or "__syncthreads()" in text
        assert not line["cp_async"] or "cp_async16(" in text


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("step", STEPS)
def test_lines_are_those_of_the_kernel(step, dtype, tmp_path):
    """Not those of what is inlined there: ours of common/, or the compiler's own."""
    subprocess.run([binary(step, DTYPE=dtype), "--profile", "--json", "run.json"], cwd=tmp_path, check=True, capture_output=True)
    lines = json.loads((tmp_path / "run.json").read_text())["lines"]
    assert lines and {(ROOT / line["file"]).name for line in lines} <= {"attention.cu", "variants.h"}
    assert all(line["line"] > 0 for line in lines)


def test_instructions_of_the_tensor_core_step(tmp_path):
    """One block row of 64, 2 tiles of 64 keys, D = 64: counts a tile that the chapter states."""
    c = counters(tmp_path, "step05_mma_ldmatrix", "--heads", "1", "--seq-q", "64", "--seq-kv", "128")
    warps, tiles = 4, 2
    assert c["mma"] == warps * tiles * 64                         # 32 for Q K^T, 32 for P V
    assert c["ldmatrix"] == warps * (tiles * (16 + 16) + 4)       # K and V of each tile, Q once
    assert c["cp_async"] == warps * 4 * (1 + 2 * tiles)           # 64 x 64 tiles: 4 requests a warp each
    assert c["shared_excess"] == 0 and c["barriers"] == tiles + 1        # and one for Q


@pytest.mark.parametrize("step", [s for s in STEPS if s >= "step03"])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
def test_no_bank_conflicts(step, head_dim, tmp_path):
    c = counters(tmp_path, step, "--heads", "1", "--seq-q", "70", "--seq-kv", "130", HEAD_DIM=head_dim,
                 BLOCK_N=32 if head_dim == 256 else 64)
    assert c["shared_load_wavefronts"] > 0 and c["shared_excess"] == 0


@pytest.mark.parametrize("step", STEPS)
def test_observation_changes_nothing(step, tmp_path):
    for observe in ([], ["--no-observe"]):
        subprocess.run([binary(step), "--heads", "3", "--seq-q", "100", "--seq-kv", "90", "--out",
                        f"{len(observe)}.npy", *observe], cwd=tmp_path, check=True, capture_output=True)
    assert np.array_equal(np.load(tmp_path / "0.npy"), np.load(tmp_path / "1.npy"))


@pytest.mark.skipif(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 8 << 30, reason="takes 4.3 GB")
@pytest.mark.parametrize("step", STEPS[:5])
def test_offsets_beyond_31_bits(step, tmp_path):
    binary(step)
    objects = ROOT / "build/cpu/obj"
    program = tmp_path / "far"
    subprocess.run([CC, "-std=gnu11", "-O1", "-U_FORTIFY_SOURCE", "-fno-pie", "-no-pie", ROOT / "tests/unit/far.c",
                    objects / f"{step}_d64_f16.plain.o", *sorted((objects / "simt").glob("*.o")), "-o", program, "-lm",
                    "-lpthread", "-ldl"], check=True)
    assert subprocess.run([program], capture_output=True, text=True).stdout == "the same\n"
