"""make bench, as far as it needs no GPU: formulas, the command lines it gives the steps, pages, comparison of two runs."""
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import BACKEND, ROOT, STEPS, binary, make

import bench  # beside reference, which conftest made importable
import measure
from bench import STEP05, STEP06, TUNED, Case, decode, square

NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
PROGRAM = [sys.executable, str(ROOT / "common/bench.py")]


def small(mask="full", layout="dense", seq_q=700, seq_kv=700, batch=3, heads=4, kv_heads=4):
    return Case(batch, heads, kv_heads, seq_q, seq_kv, 64, "f16", mask, layout)


def visible(case):
    """[Sq, Skv] of one head, by the definition."""
    own = np.arange(case.seq_q)[:, None] + case.seq_kv - case.seq_q
    key = np.arange(case.seq_kv)
    seen = np.full((case.seq_q, case.seq_kv), True) if case.mask == "full" else key <= own
    return seen & (key >= own - bench.WINDOW) if case.mask == "window" else seen


# ---- formulas ----

def test_work_of_the_known_shapes():
    assert bench.flops(square(4096, 64)) == 4 * 4 * 16 * 4096 ** 2 * 64
    assert bench.flops(square(16384, 128, "causal")) == 2 * 16 * 16384 ** 2 * 128
    assert bench.rate(square(4096, 128), 1.0) == pytest.approx(549.755813888)  # TFLOP/s if it took 1 ms
    assert bench.kv_bytes(decode(16, 8192)) == 2 * 16 * 8 * 8192 * 128 * 2
    assert bench.rate(decode(1, 131072), 0.1) == pytest.approx(5.36870912)  # TB/s


@pytest.mark.parametrize("mask, seq_q, seq_kv", [("full", 700, 700), ("window", 700, 700), ("window", 300, 1500),
                                                 ("window", 1500, 900)])
def test_visible_pairs(mask, seq_q, seq_kv):
    case = small(mask, seq_q=seq_q, seq_kv=seq_kv)
    assert bench.visible_pairs(case) == case.batch * case.heads * int(visible(case).sum())


@pytest.mark.parametrize("mask", ["full", "causal", "window"])
@pytest.mark.parametrize("seq_q, seq_kv", [(700, 700), (300, 1500), (128, 128), (1500, 900), (1, 700)])
@pytest.mark.parametrize("constants", [{}, dict(ROW_TILES=2, WARPS=4), dict(ROW_TILES=2, BLOCK_N=32)])
def test_visited_tiles(mask, seq_q, seq_kv, constants):
    """A block of rows visits the tiles that hold a key one of its rows sees."""
    case = small(mask, seq_q=seq_q, seq_kv=seq_kv)
    block_m, block_n = 64 * constants.get("ROW_TILES", 1), constants.get("BLOCK_N", 64)
    seen = np.pad(visible(case), ((0, -seq_q % block_m), (0, -seq_kv % block_n)))
    tiles = seen.reshape(len(seen) // block_m, block_m, -1, block_n).any(axis=(1, 3))
    assert bench.visited_tiles(case, constants) == case.batch * case.heads * int(tiles.sum())


def test_sequences_have_unequal_lengths_and_the_same_total():
    case = square(2048, 64, layout="varlen")
    lengths = bench.sequence_lengths(case)
    assert lengths.sum() == 16384 and len(set(lengths)) == case.batch and lengths.min() > 0
    assert bench.visible_pairs(case) == 16 * sum(int(n) ** 2 for n in lengths) > bench.visible_pairs(square(2048, 64))


# ---- what it will run ----

def test_plan_holds_what_the_pages_show():
    todo = {(case, step, bench.constants_text(constants)) for case, steps, _ in bench.plan() for step, constants in steps}
    for head_dim, tuned in TUNED.items():
        assert {(square(4096, head_dim), step, "default") for step in STEPS} <= todo
        for seq in bench.LENGTHS:
            for step, mask in ((STEP05, "full"), (STEP06, "full"), (STEP06, "causal")):
                assert (square(seq, head_dim, mask), step, bench.constants_text(tuned)) in todo
    assert all((decode(*shape), STEP06, "default") in todo for shape in bench.DECODE)
    cases = [case for case, *_ in bench.plan()]
    assert len(set(cases)) == len(cases)
    assert {case for case, *_ in bench.plan(quick=True)} < set(cases)


@pytest.mark.skipif(BACKEND != "cpu", reason="the executor runs what is small")
@pytest.mark.parametrize("step, case", [
    (STEP05, small(seq_q=128, seq_kv=128)), (STEP06, small("causal", seq_q=128, seq_kv=128)),
    (STEP06, small("window", seq_q=20, seq_kv=700)), (STEP06, small(layout="varlen", seq_q=40, seq_kv=40)),
    (STEP06, small(seq_q=1, seq_kv=300, heads=8, kv_heads=2)),
    (STEP06, small(layout="bshd", seq_q=1, seq_kv=100, kv_heads=2)),
    (STEP06, small(layout="paged", seq_q=1, seq_kv=100, kv_heads=2))], ids=str)
def test_the_steps_understand_their_command_lines(step, case, tmp_path):
    """The same words, on the executor: right, and with as many heads, rows and keys as the case says."""
    words = bench.step_arguments(case, tmp_path)
    report = tmp_path / "report.json"
    done = subprocess.run([binary(step), *map(str, words), "--json", report], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["pass"] is True
    assert (found["batch"], found["heads"], found["kv_heads"]) == (case.batch, case.heads, case.kv_heads)
    longest = bench.sequence_lengths(case).max() if case.layout == "varlen" else case.seq_kv
    assert found["seq_kv"] == longest and found["layout"] == {"varlen": "thd", "bshd": "bshd"}.get(case.layout, "bhsd")
    if step == STEP06:
        assert found["variants"]["window"] == {"window": [bench.WINDOW, 0], "causal": [-1, 0]}.get(case.mask, [-1, -1])
        assert found["variants"]["page_size"] == (bench.PAGE if case.layout == "paged" else 0)


def program(tmp_path, text):
    path = tmp_path / "step"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_only_a_right_step_has_a_time(tmp_path):
    report = 'for last; do :; done; echo \'{"pass": true, "time_ms": 1.5}\' >"$last"'
    assert bench.time_step(program(tmp_path, report), ["--causal"], 3) == (1.5, None)
    wrong = program(tmp_path, "echo 'FAIL     O: 3 values'; echo more; exit 1")
    assert bench.time_step(wrong, [], 3) == (None, "FAIL     O: 3 values")
    broken = program(tmp_path, "echo 'CUDA error' >&2; exit 3")
    assert bench.time_step(broken, [], 3) == (None, "CUDA error")


# ---- the pages ----

CEILINGS = dict(multiprocessors=132, mma_f16_tflops=640.0, mma_bf16_tflops=640.0, ex2_per_second=4.16e12, copy_tb_s=4.27,
                read_tb_s=4.5)


def fake_record(quick=False, factor=1.0, wrong=None):
    """A record as measure makes it: each step at half its ceiling, each peer 10 % slower, cuDNN 4 % slower afterwards."""
    record = dict(where=dict(gpu="Some GPU", driver="1.2", nvcc="13.0", date="2026-11-29", torch="2.11", cudnn=91900,
                             command="make bench"), ceilings=CEILINGS, rows=[])

    def half(case):
        return bench.rate(case, 1) / bench.ceiling(record, case) * 2 * factor
    for case, steps, names in bench.plan(quick):
        for step, constants in steps:
            ms, note = (None, "FAIL     O") if (step, case.mask) == wrong else (half(case), None)
            record["rows"].append(bench.new_row(case, step, constants, ms, note=note))
        for name in names:
            if name == "math":
                record["rows"].append(bench.new_row(case, name, note="out of memory"))
            else:
                after = 1.1 * (1.04 if name == "cuDNN" else 1.001)
                record["rows"].append(bench.new_row(case, name, None, 1.1 * half(case), after * half(case)))
    return json.loads(json.dumps(record))


def rows_of(page, first):
    lines = [line for line in page.splitlines() if line.startswith("| " + first)]
    return [[part.strip() for part in line.strip("|").split("|")] for line in lines]


def test_pages_show_rates_shares_and_ratios():
    record = fake_record()
    page, ladder = bench.bench_page(record), bench.ladder_page(record)
    for text in (page, ladder):
        assert "Some GPU, driver 1.2, nvcc 13.0, PyTorch 2.11, cuDNN 91900, 2026-11-29" in text and "`make bench`" in text
        assert "nan" not in text.lower() and "None" not in text
    assert rows_of(page, "step05")[0][1:] == ["320 (50 %)"] * 3
    assert rows_of(page, "FlashAttention-2")[0][1:] == ["291 (45 %) 1.10 x"] * 3
    assert rows_of(page, "cuDNN")[0][1:] == ["291 / 280 (45 %) 1.12 x"] * 3
    assert rows_of(page, "math")[0][1:] == ["-"] * 3 and "- math: out of memory (D=64 f16 full S=2048 B=8 H=16;" in page
    assert rows_of(page, "FlexAttention")[0][1:] == ["-", "291 (45 %) 1.10 x", "-"]
    assert rows_of(page, "TB/s")[0][1:] == ["B = 16, Skv = 8192", "B = 1, Skv = 32768", "B = 1, Skv = 131072"]
    assert ["FlashAttention-2"] + ["2.04 (45 %) 1.10 x"] * 3 in rows_of(page, "FlashAttention-2")
    window = rows_of(page, "window 512,0, S = 16384, D = 64")
    assert [line[-1] for line in window][1] == "1.10" and "tiles/us" in window[0][2]
    assert len(rows_of(page, "decode from pages")) == 2 and len(rows_of(page, "8 unequal")) == 2
    lines = rows_of(ladder, "step")[1:]
    assert [line[0] for line in lines] == 2 * sorted([*STEPS, STEP05, STEP06])
    assert all(line[4:] == ["320.0", "50.0 %", "1.101 x"] for line in lines)


def test_tables_are_tables():
    whole, quick = fake_record(), fake_record(quick=True)
    for text in (bench.bench_page(whole), bench.ladder_page(whole), bench.bench_page(quick)):
        for part in re.findall(r"(?:^\|.*\n)+", text, re.M):
            assert len({line.count("|") for line in part.splitlines()}) == 1, part


def test_a_record_with_little_in_it():
    """No peers, one problem: what a run that was stopped has left."""
    record = fake_record()
    record["rows"] = [row for row in record["rows"] if row["name"] == STEP06 and bench.row_case(row) == square(4096, 64)]
    record["where"].update(torch="no PyTorch", cudnn=None)
    assert "no PyTorch" in bench.bench_page(record) and "cuDNN 9" not in bench.bench_page(record)
    assert rows_of(bench.ladder_page(record), STEP06)[0][-1] == "-"


def test_pages_are_written_anew_from_a_file(tmp_path):
    source = tmp_path / "record.json"
    source.write_text(json.dumps(fake_record(wrong=(STEP06, "causal"))))
    done = subprocess.run([*PROGRAM, "--render", source, "--out", tmp_path / "pages", "--against", source],
                          capture_output=True, text=True)
    assert done.returncode == 1  # a step was wrong
    assert f"bench: {STEP06}, ROW_TILES=2 at D=64 f16 causal S=2048 B=8 H=16 was not timed: FAIL     O" in done.stderr
    assert re.search(r"\d+ numbers in both runs, 0 of them more than 5 % apart", done.stdout)
    written = {path.name: path.read_text() for path in (tmp_path / "pages").iterdir()}
    assert {"bench_gpu.json", "bench_gpu.md", "ladder_gpu.md"} <= set(written)
    assert json.loads(written["bench_gpu.json"]) == json.loads(source.read_text())
    assert ("bench_gpu.svg" in written) == ("bench_gpu.svg" in written["bench_gpu.md"])
    if "bench_gpu.svg" in written:
        assert "D = 128" in written["bench_gpu.svg"] and STEP06 in written["bench_gpu.svg"]
    subprocess.run([*PROGRAM, "--render", source, "--out", tmp_path / "noted", "--note", "A word."], capture_output=True)
    assert all("\n\nA word.\n\n" in (tmp_path / "noted" / name).read_text() for name in ("bench_gpu.md", "ladder_gpu.md"))


def test_pages_quote_the_saved_record():
    """What README.md, its translation, step 05's and speed_gpu.md repeat of docs/results/bench_gpu.json."""
    rows = {(row["name"], bool(row["constants"]), bench.row_case(row)): row
            for row in json.loads((ROOT / "docs/results/bench_gpu.json").read_text())["rows"]}
    step05, step06, flash, cudnn = (STEP05, True), (STEP06, True), ("FlashAttention-2", False), ("cuDNN", False)

    def rates(kernel, *cases):
        return [f"{rows[(*kernel, case)]['rate']:.0f}" for case in cases]

    def ratios(ours, theirs, *cases):
        return [f"{rows[(*ours, case)]['rate'] / rows[(*theirs, case)]['rate']:.2f}" for case in cases]

    def tile_time(case, constants):
        return rows[(STEP06, bool(constants), case)]["ms"] / bench.visited_tiles(case, constants)

    full, causal = ([square(4096, d, mask) for d in (64, 128)] for mask in ("full", "causal"))
    for page, comma, and_ in (("README.md", ", ", " and "), ("README.zh-CN.md", "，", " 和 ")):
        text = (ROOT / page).read_text()
        assert f"| step 05{comma}`TUNED=1` | {' | '.join(rates(step05, *full))} | | |" in text
        assert f"| step 06{comma}`TUNED=1` | {' | '.join(rates(step06, *full, *causal))} |" in text
        assert f"| FlashAttention-2 | {' | '.join(rates(flash, *full, *causal))} |" in text
        assert and_.join(rates(cudnn, *full)) in text
        assert f"{and_.join(rates(step05, *full))} TFLOP/s" in (ROOT / STEP05 / page).read_text()

    text = (ROOT / "docs/results/speed_gpu.md").read_text()
    for what, ours, theirs, mask in (("step 05, no mask, of FlashAttention-2", step05, flash, "full"),
                                     ("step 06, no mask, of step 05", step06, step05, "full"),
                                     ("step 06, causal, of FlashAttention-2", step06, flash, "causal")):
        cells = [" / ".join(ratios(ours, theirs, *(square(s, d, mask) for s in bench.LENGTHS))) for d in (64, 128)]
        assert f"| {what} | {' | '.join(cells)} |" in text
    cells = ["; default constants ".join(f"{tile_time(square(16384, d, 'window'), c) / tile_time(square(16384, d), c):.2f}"
                                         for c in (TUNED[d], {})) for d in (64, 128)]
    assert f"a run without a mask | {' | '.join(cells)} |" in text
    cases = [decode(1, 32768), decode(1, 131072), decode(16, 8192)]
    few, many, batches = ratios((STEP06, False), cudnn, *cases)
    assert (f"Decode of cuDNN: {few} with 32,768 keys, {many} with 131,072, {batches} with 16 x 8192; of FlashAttention-2 "
            f"{', '.join(ratios((STEP06, False), flash, *cases))}.") in text


@pytest.mark.parametrize("option", ["--render", "--against"])
@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"where": {}, "ceilings": {}, "rows": []}', "row", "array"])
def test_a_wrong_record_is_refused_and_nothing_written(option, text, tmp_path):
    """A missing file, one that is no JSON, and others; a row without its time."""
    record, right, source = fake_record(), tmp_path / "right.json", tmp_path / "wrong.json"
    right.write_text(json.dumps(record))
    if text == "row":
        del record["rows"][0]["ms"]
    if text:
        source.write_text(json.dumps(record if text == "row" else [1]) if text in ("row", "array") else text)
    (tmp_path / "bench_gpu.json").write_text("older")
    words = ["--render", source] if option == "--render" else ["--render", right, "--against", source]
    done = subprocess.run([*PROGRAM, *words, "--out", tmp_path], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and f"{option} {source}: " in done.stderr, done.stderr
    assert (tmp_path / "bench_gpu.json").read_text() == "older" and not (tmp_path / "bench_gpu.md").exists()


def test_a_folder_that_cannot_be(tmp_path):
    source = tmp_path / "record.json"
    source.write_text(json.dumps(fake_record()))
    for folder in "/dev/null/x", source:
        done = subprocess.run([*PROGRAM, "--render", source, "--out", folder], capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and f"--out {folder}: " in done.stderr, done.stderr


# ---- two runs ----

def test_the_largest_difference_comes_first(capsys):
    old, new = fake_record(), fake_record(factor=1.02)
    new["rows"][0]["ms"] *= 1.5
    new["ceilings"] = dict(CEILINGS, copy_tb_s=4.27 * 0.9)
    found = bench.differences(new, old)
    assert len(found) == sum(row["ms"] is not None for row in old["rows"]) + len(CEILINGS)
    assert found[0][0] == pytest.approx(0.53) and found[0][1].startswith(STEP05)
    assert found[1][0] == pytest.approx(0.1) and found[1][1] == "ceiling copy_tb_s"
    assert found[2][0] == pytest.approx(0.02)
    bench.print_differences(new, old)
    assert "2 of them more than 5 % apart" in capsys.readouterr().out
    assert bench.differences(old, dict(old, rows=[], ceilings={})) == []


# ---- without a GPU ----

def test_without_a_gpu_it_says_so_in_one_line(tmp_path):
    """An empty PATH: no nvidia-smi, so no GPU, on any machine."""
    done = subprocess.run(PROGRAM, capture_output=True, text=True, env={**os.environ, "PATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (3, "") and re.fullmatch("bench: no GPU here; .*\n", done.stderr)


@pytest.mark.parametrize("words", [["ulp"], ["counters"]])
def test_measuring_without_a_gpu_says_so_in_one_line(words, tmp_path):
    done = subprocess.run([sys.executable, ROOT / "common/measure.py", *words], capture_output=True, text=True,
                          env={**os.environ, "PATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (2, "") and re.fullmatch("measure: no GPU here; .*\n", done.stderr)


def test_hardware_counters_are_summed_over_kernels_and_mma_without_combine(monkeypatch):
    """combine's conversions from half precision go through the tensor pipe too."""
    metrics = " ".join(measure.METRICS.values()).split()
    rows = [["ID", "Kernel Name", *metrics], ["", "", *["inst"] * len(metrics)],
            ["0", "flash_fwd(AttentionParams)", *["1,024"] * len(metrics)], ["1", "combine(AttentionParams)", *["3"] * len(metrics)]]
    printed = "==PROF== noise\n" + "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)
    monkeypatch.setattr(measure.subprocess, "run", lambda *words, **options: subprocess.CompletedProcess(words, 0, printed, ""))
    found = measure.nsight_compute(ROOT / "program", [])
    assert found.pop("mma") == 1024 and found.pop("shared_excess") == 2 * 1027 and set(found.values()) == {1027}


def test_measuring_without_numpy_says_so_in_one_line(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ImportError\n")
    done = subprocess.run([sys.executable, ROOT / "common/measure.py", "ulp"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (2, "") and re.fullmatch("measure: .*no NumPy\n", done.stderr)


@pytest.mark.parametrize("program", ["measure.py", "sass.py"])
def test_without_arguments_it_says_what_it_takes(program):
    done = subprocess.run([sys.executable, ROOT / "common" / program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and f"python3 common/{program}" in done.stderr


def test_make_bench_passes_its_arguments():
    assert "common/bench.py --quick --out x" in make("--dry-run", "bench", "ARGS=--quick --out x").stdout


@pytest.mark.skipif(not NVCC, reason="no nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_ceilings_compile_without_a_warning(arch, tmp_path):
    done = subprocess.run([NVCC, "-arch", arch, "-O3", "-Xcompiler", "-Wall,-Wextra", "-c", "common/cuda/ceilings.cu", "-o",
                           tmp_path / "ceilings.o"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_unknown_peers_are_refused():
    done = subprocess.run([sys.executable, ROOT / "common/bench.py", "--peers", "cuDNN,x"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--peers cuDNN,x: choose from" in done.stderr
