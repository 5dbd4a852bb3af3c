"""make bench: every kernel's time on this machine's GPU, beside the hardware's ceilings and PyTorch's kernels.

    python3 common/bench.py            measures; writes bench_gpu.json, bench_gpu.md, bench_gpu.svg and ladder_gpu.md
        --quick                        one length and two peers only (to build/bench unless --out says otherwise)
        --peers NAME,NAME              only these of FlashAttention-2, cuDNN, memory-efficient, math, FlexAttention
        --within SECONDS               starts no new problem after that; what is left has no numbers
        --out FOLDER                   where to write (docs/results)
        --against FILE.json            how far the times are from those of an earlier run
        --render FILE.json             measures nothing: writes the pages and the picture of that file anew
        --note TEXT                    a sentence under the machine's line

Needs a GPU, nvcc and NumPy; PyTorch for the peers and matplotlib for the picture, where they are.  Exit code: 1 if a
step is wrong or does not run (it is not timed), 2 for a wrong option or file, 3 without a GPU, nvcc or NumPy.
"""
import argparse
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("bench: this python3 has no NumPy; it makes the index arrays and takes the medians", file=sys.stderr)
    sys.exit(3)

from measure import RESULTS, ROOT, STEP06, STEPS, build, build_folder, lacking, machine, make


def constants_for(head_dim):
    """{constant: value}: what common/tuned.mk has for it; without make, which nothing works without, nothing."""
    if not shutil.which("make"):
        return {}
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS")}
    printed = subprocess.run(["make", "-s", "tuned", f"HEAD_DIM={head_dim}"], cwd=ROOT, env=environment, check=True,
                             capture_output=True, text=True).stdout.splitlines()[-1]
    return {name: int(value) for name, value in (word.split("=") for word in printed.split())}


STEP05 = STEPS[-2]
TUNED = {head_dim: constants_for(head_dim) for head_dim in (64, 128)}  # the constants that an H200 wants
PEERS = {"FlashAttention-2": "FLASH_ATTENTION", "cuDNN": "CUDNN_ATTENTION", "memory-efficient": "EFFICIENT_ATTENTION",
         "math": "MATH"}  # names in torch.nn.attention.SDPBackend
FLEX = "FlexAttention"
LENGTHS, TOKENS, HEADS = (2048, 4096, 16384), 16384, 16
WINDOW = 512  # keys to the left of the row's own
PAGE = 16     # keys of a page
DECODE = ((16, 8192), (1, 32768), (1, 131072))  # batch, keys


# ---- a problem, and what it costs ----

class Case(namedtuple("Case", "batch heads kv_heads seq_q seq_kv head_dim dtype mask layout")):
    """mask: full, causal, window; layout: dense [B,H,S,D], bshd [B,S,H,D], varlen (packed), paged (K and V)"""
    def __str__(self):
        words = [f"D={self.head_dim}", self.dtype, self.mask]
        words += [f"S={self.seq_q}"] if self.seq_q == self.seq_kv else [f"Sq={self.seq_q}", f"Skv={self.seq_kv}"]
        words += [f"B={self.batch}", f"H={self.heads}" + (f"/{self.kv_heads}" if self.kv_heads != self.heads else "")]
        return " ".join(words + [self.layout] * (self.layout != "dense"))


def square(seq, head_dim, mask="full", dtype="f16", layout="dense"):
    return Case(TOKENS // seq, HEADS, HEADS, seq, seq, head_dim, dtype, mask, layout)


def decode(batch, keys, layout="dense"):
    return Case(batch, 32, 8, 1, keys, 128, "f16", "full", layout)


def sequence_lengths(case):
    """Unequal lengths, no multiples of a tile, with as many rows in all as case.batch sequences of case.seq_q."""
    total, weights = case.batch * case.seq_q, np.random.default_rng(1).permutation(case.batch) + 1
    lengths = total * weights // weights.sum()
    lengths[-1] += total - lengths.sum()
    return lengths


def visible_pairs(case):
    """Pairs of a query row and a key that count; causal: by convention half of all."""
    heads, q, kv = case.batch * case.heads, case.seq_q, case.seq_kv
    if case.layout == "varlen":
        return case.heads * int((sequence_lengths(case).astype(np.int64) ** 2).sum())
    if case.mask == "window":
        own = np.arange(q) + kv - q  # the key across from each row
        return heads * int((np.clip(own + 1, 0, kv) - np.clip(own - WINDOW, 0, kv)).sum())
    return heads * q * kv // (2 if case.mask == "causal" else 1)


def flops(case):
    return 4 * case.head_dim * visible_pairs(case)


def kv_bytes(case):
    return 2 * 2 * case.batch * case.kv_heads * case.seq_kv * case.head_dim


def is_decode(case):
    return case.seq_q == 1


def rate(case, ms):
    """TFLOP/s; of a decode step TB/s of K and V."""
    return (kv_bytes(case) if is_decode(case) else flops(case)) / ms * 1e-9


def visited_tiles(case, constants):
    """Tiles that the blocks of step06 visit: those that hold a key which a row of the block sees."""
    block_m, block_n = 16 * constants.get("ROW_TILES", 1) * constants.get("WARPS", 4), constants.get("BLOCK_N", 64)
    tiles, q, kv = 0, case.seq_q, case.seq_kv
    for first in range(0, q, block_m):
        last = min(first + block_m, q) - 1
        begin = 0 if case.mask != "window" else max(0, first + kv - q - WINDOW)
        end = kv if case.mask == "full" else max(0, last + kv - q + 1)
        tiles += max(0, -(-end // block_n) - begin // block_n)
    return case.batch * case.heads * tiles


# ---- what is measured ----

def plan(quick=False):
    """[(case, [(step, constants)], [peer])]"""
    todo, peers = [], list(PEERS)[:2] if quick else list(PEERS)
    for head_dim, tuned in TUNED.items():
        best = [(STEP05, tuned), (STEP06, tuned)]
        ladder = [(step, constants) for step in STEPS for constants in [{}] + [tuned] * ((step, tuned) in best)]
        for seq in LENGTHS[1:2] if quick else LENGTHS:
            fit = [peer for peer in peers if peer != "math" or seq < 16384]  # there it takes long, and much memory
            if seq == 4096:
                todo.append((square(seq, head_dim), ladder, fit + [FLEX] * (not quick)))
                todo.append((square(seq, head_dim, "causal"), best[1:], fit + [FLEX] * (not quick)))
            else:
                plain = [(STEP06, {})] * (seq == 16384)  # beside the window below
                todo.append((square(seq, head_dim), best + plain, fit))
                todo.append((square(seq, head_dim, "causal"), best[1:], fit))
    todo += [(decode(*shape), [(STEP06, {})], list(PEERS)[:2]) for shape in (DECODE[1:2] if quick else DECODE)]
    if not quick:
        for head_dim, tuned in TUNED.items():
            for mask in ("full", "causal"):
                todo.append((square(4096, head_dim, mask, "bf16"), [(STEP06, tuned)], list(PEERS)[:3]))
            todo.append((square(16384, head_dim, "window"), [(STEP06, tuned), (STEP06, {})], [FLEX]))
            todo.append((square(2048, head_dim, layout="varlen"), [(STEP06, tuned)], []))
        todo += [(decode(*DECODE[0], layout), [(STEP06, {})], []) for layout in ("bshd", "paged")]
    return todo


def launches(case, name):
    if is_decode(case):
        return 100  # they are short
    return {"step01": 3, "step02": 10, "step03": 10, "step04": 10}.get(name[:6], 40)


def program_settings(case, constants):
    return dict(constants, DTYPE=case.dtype)


def step_arguments(case, folder):
    """The command line of a step; where generated input does not do, files are written to this folder."""
    words = []
    if case.mask == "causal":
        words += ["--causal"]
    if case.mask == "window":
        words += ["--window", f"{WINDOW},0"]
    if case.layout in ("varlen", "paged"):
        return words + [word for name, array in input_files(case).items() for word in save(folder, name, array)]
    words += ["--batch", case.batch, "--heads", case.heads, "--seq-q", case.seq_q, "--seq-kv", case.seq_kv]
    if case.kv_heads != case.heads:
        words += ["--kv-heads", case.kv_heads]
    return words + ["--bshd"] * (case.layout == "bshd")


def input_files(case):
    """{option: array}"""
    rng = np.random.default_rng(1)

    def normal(*shape):
        return rng.standard_normal(shape, dtype=np.float32).astype(np.float16)
    if case.layout == "varlen":
        starts = np.concatenate([[0], np.cumsum(sequence_lengths(case))]).astype(np.int32)
        arrays = {name: normal(starts[-1], case.heads, case.head_dim) for name in "qkv"}
        return arrays | {"cu-seqlens-q": starts, "cu-seqlens-kv": starts}
    slots = -(-case.seq_kv // PAGE)
    pool = (case.batch * slots, PAGE, case.kv_heads, case.head_dim)
    return {"q": normal(case.batch, case.heads, case.seq_q, case.head_dim), "k": normal(*pool), "v": normal(*pool),
            "block-table": rng.permutation(pool[0]).reshape(case.batch, slots).astype(np.int32),
            "kv-lens": np.full(case.batch, case.seq_kv, np.int32)}


def save(folder, name, array):
    path = Path(folder) / f"{name}.npy"
    np.save(path, array)
    return [f"--{name}", path]


# ---- the steps ----

def build_all(todo):
    """{(step, D, settings): executable} and that of the ceilings; what all share is built first."""
    wanted = {(step, case.head_dim, tuple(sorted(program_settings(case, constants).items())))
              for case, steps, _ in todo for step, constants in steps}
    build("cuda", STEPS[0], 64)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ceilings = pool.submit(make, str((build_folder("cuda") / "ceilings").relative_to(ROOT)), "BACKEND=cuda")
        jobs = {key: pool.submit(build, "cuda", key[0], key[1], **dict(key[2])) for key in sorted(wanted)}
        ceilings.result()
        return {key: job.result() for key, job in jobs.items()}, build_folder("cuda") / "ceilings"


def time_step(program, arguments, runs):
    """(milliseconds, None) of a step whose result is right; else (None, what it said)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        try:
            done = subprocess.run([program, *map(str, arguments), "--bench", str(runs), "--json", path],
                                  capture_output=True, text=True, timeout=180)
        except subprocess.TimeoutExpired:
            return None, "no end within 180 s"
        if done.returncode:
            said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            failed = [line for line in said if line.startswith("FAIL")]
            return None, (failed or said or [f"exit code {done.returncode}"])[-1]
        report = json.loads(path.read_text())
        assert report["pass"] is True and report["time_ms"] > 0
        return report["time_ms"], None


# ---- the peers ----

def load_torch():
    """(torch, None), or (None, why not)"""
    try:
        import torch
    except ImportError:
        return None, "no PyTorch"
    if not torch.cuda.is_available():
        return None, "PyTorch finds no GPU"
    return torch, None


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:100]


class Peers:
    """PyTorch's kernels on one problem, each checked on a few rows; reasons: why one is missing."""

    def __init__(self, torch, case, names, device="cuda"):
        self.torch, self.case, self.device = torch, case, device
        dtype = dict(f16=torch.float16, bf16=torch.bfloat16)[case.dtype]
        torch.manual_seed(1)
        self.q = torch.randn(case.batch, case.heads, case.seq_q, case.head_dim, device=device, dtype=dtype)
        self.k, self.v = (torch.randn(case.batch, case.kv_heads, case.seq_kv, case.head_dim, device=device, dtype=dtype)
                          for _ in range(2))
        self.calls, self.reasons = {}, {}
        for name in names:
            try:
                context, call = self.flex() if name == FLEX else self.sdpa(PEERS[name])
                with context():
                    self.check(call())
                self.calls[name] = context, call
            except Exception as error:  # whatever stops a peer must not stop the steps
                self.reasons[name] = first_line(error)

    def sdpa(self, backend):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        attend = self.torch.nn.functional.scaled_dot_product_attention
        words = dict(is_causal=self.case.mask == "causal", enable_gqa=self.case.kv_heads != self.case.heads)
        return lambda: sdpa_kernel(getattr(SDPBackend, backend)), lambda: attend(self.q, self.k, self.v, **words)

    def flex(self):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        case, mask = self.case, None
        import torch._dynamo
        torch._dynamo.reset()  # a compilation for this shape, not one for all
        attend = self.torch.compile(flex_attention, dynamic=False)
        if case.mask != "full":
            sees = {"causal": lambda b, h, row, key: row >= key,
                    "window": lambda b, h, row, key: (row >= key) & (row - key <= WINDOW)}[case.mask]
            mask = create_block_mask(sees, None, None, case.seq_q, case.seq_kv, device=self.device)
        return contextlib.nullcontext, lambda: attend(self.q, self.k, self.v, block_mask=mask,
                                                      enable_gqa=case.kv_heads != case.heads)

    def check(self, o):
        """The first and last rows of the first and the last head, against the formula in float32."""
        torch, case = self.torch, self.case
        rows = sorted({*range(min(32, case.seq_q)), *range(max(0, case.seq_q - 32), case.seq_q)})
        rows = torch.tensor(rows, device=self.device)
        own, keys = (rows + case.seq_kv - case.seq_q)[:, None], torch.arange(case.seq_kv, device=self.device)
        for batch, head in ((0, 0), (case.batch - 1, case.heads - 1)):
            k, v = (x[batch, head * case.kv_heads // case.heads].float() for x in (self.k, self.v))
            scores = self.q[batch, head, rows].float() @ k.T / case.head_dim ** 0.5
            if case.mask != "full":
                scores[keys > own] = -float("inf")
            if case.mask == "window":
                scores[keys < own - WINDOW] = -float("inf")
            expected = scores.softmax(-1) @ v
            error = ((o[batch, head, rows].float() - expected).norm() / expected.norm()).item()
            if not error < 1e-2:
                raise ValueError(f"wrong result: relative error {error:.3g}")

    def time(self):
        """{name: median milliseconds}, as backend_time in common/cuda/backend.c takes it: three to warm up, the L2 cache
        flushed before each launch by reading, events.  The flush is long enough for Python to queue the launch behind it."""
        torch, times = self.torch, {}
        flush = torch.zeros(128 << 20, dtype=torch.float32, device=self.device)
        for name, (context, call) in list(self.calls.items()):
            found, runs = [], launches(self.case, name)
            try:
                with context():
                    while len(found) < runs + 3:
                        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                        flush.sum()
                        start.record()
                        call()
                        stop.record()
                        stop.synchronize()
                        found.append(start.elapsed_time(stop))
                        if len(found) == 3 and found[-1] > 10:
                            runs = 5
                times[name] = float(np.median(found[3:]))
            except Exception as error:
                self.reasons[name] = first_line(error)
                del self.calls[name]
        del flush
        torch.cuda.empty_cache()
        return times


# ---- the measurement ----

def new_row(case, name, constants=None, ms=None, ms_after=None, note=None):
    """One line of bench_gpu.json.  ms, ms_after: of a peer, before and after the steps of the same problem."""
    row = dict(name=name, constants=constants, **case._asdict(), ms=ms, ms_after=ms_after, note=note)
    row["rate"] = rate(case, mean_ms(row)) if ms else None
    row["unit"] = "TB/s" if is_decode(case) else "TFLOP/s"
    return row


def mean_ms(row):
    return row["ms"] if row["ms_after"] is None else (row["ms"] + row["ms_after"]) / 2


def measure_case(case, steps, names, torch, reason, run, say):
    """Rows of one problem: its peers, its steps, its peers again."""
    peers = Peers(torch, case, names) if torch and names else None
    before = peers.time() if peers else {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        arguments = step_arguments(case, folder)
        for step, constants in steps:
            ms, note = run(case, step, constants, arguments)
            rows.append(new_row(case, step, constants, ms, note=note))
            say(rows[-1])
    after = peers.time() if peers else {}
    for name in names:
        found = name in before and name in after
        why = None if found else peers.reasons[name] if peers else reason
        rows.append(new_row(case, name, None, before[name] if found else None, after[name] if found else None, why))
        say(rows[-1])
    return rows


def shown_words(options):
    """The options that say what is measured, where they are not the defaults."""
    return (["--quick"] * options.quick + ["--peers", options.peers] * (options.peers.count(",") < len(PEERS)) +
            ["--within", str(options.within)] * (options.within < 3600))


def measure(options, folder):
    """The record: where, ceilings and rows; written after each problem, so that what is measured is not lost."""
    start = time.time()

    def say(row):
        print(f"{time.time() - start:4.0f} s  {label(row):<42} {Case(*(row[f] for f in Case._fields))!s:<44} " +
              (f"{mean_ms(row):9.3f} ms {row['rate']:7.2f} {row['unit']}" if row["ms"] else f"- {row['note']}"), flush=True)
    todo = [(case, steps, [name for name in names if name in options.peers.split(",")]) for case, steps, names in plan(options.quick)]
    print("building", flush=True)
    programs, ceilings = build_all(todo)
    print(f"{time.time() - start:4.0f} s  {len(programs)} programs built", flush=True)
    torch, reason = load_torch()
    if not torch:
        print(f"{reason}: no peers", flush=True)
    record = dict(where=dict(machine(), torch=torch.__version__ if torch else reason,
                             cudnn=torch.backends.cudnn.version() if torch else None,
                             command=" ".join(["python3 common/bench.py", *shown_words(options)])),
                  ceilings=json.loads(subprocess.run([ceilings], stdout=subprocess.PIPE, check=True).stdout), rows=[])
    print(f"{time.time() - start:4.0f} s  ceilings {record['ceilings']}", flush=True)

    def run(case, step, constants, arguments):
        key = step, case.head_dim, tuple(sorted(program_settings(case, constants).items()))
        return time_step(programs[key], arguments, launches(case, step))
    for case, steps, names in todo:
        if time.time() - start > options.within:
            print(f"no time for {case}", flush=True)
            continue
        record["rows"] += measure_case(case, steps, names, torch, reason, run, say)
        (folder / "bench_gpu.json").write_text(json.dumps(record, indent=1) + "\n")
    return record


# ---- the pages ----

def constants_text(constants):
    return ", ".join(f"{key}={value}" for key, value in constants.items()) or "default"


def label(row):
    """A step with its constants, or a peer."""
    return row["name"] + (f", {constants_text(row['constants'])}" if row["constants"] else "")


def find(record, case, name, constants=None):
    """The timed row, or None."""
    for row in record["rows"]:
        if row["name"] == name and row["constants"] == constants and row["ms"] and case == row_case(row):
            return row
    return None


def row_case(row):
    return Case(*(row[field] for field in Case._fields))


def ceiling(record, case):
    """What a problem's rate is a share of."""
    ceilings = record["ceilings"]
    return ceilings["read_tb_s"] if is_decode(case) else ceilings[f"mma_{case.dtype}_tflops"]


def cell(record, row, ours=None):
    """A rate, both rates of a peer that changed by more than 2 %, the share of the ceiling; ours / row for a peer."""
    if not row:
        return "-"
    case, digits = row_case(row), 2 if row["unit"] == "TB/s" else 0
    rates = [f"{row['rate']:.{digits}f}"]
    if row["ms_after"] and abs(row["ms_after"] / row["ms"] - 1) > 0.02:
        rates = [f"{rate(case, row[which]):.{digits}f}" for which in ("ms", "ms_after")]
    text = f"{' / '.join(rates)} ({100 * row['rate'] / ceiling(record, case):.0f} %)"
    return text + (f" {mean_ms(row) / mean_ms(ours):.2f} x" if ours else "")


def table(head, lines):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(line) + " |" for line in lines]


def where_lines(record):
    where = record["where"]
    cudnn = f", cuDNN {where['cudnn']}" if where["cudnn"] else ""
    return [f"{where['gpu']}, driver {where['driver']}, nvcc {where['nvcc']}, PyTorch {where['torch']}{cudnn}, "
            f"{where['date']}", ""] + ([where["note"], ""] if where.get("note") else [])


def ladder_page(record):
    b, h, s = square(4096, 64).batch, HEADS, 4096
    lines = ["# The ladder on a GPU", "", *where_lines(record),
             f"`{record['where']['command']}`: B = {b}, H = {h}, S = {s}, f16, no mask; median of event-timed launches",
             "(3 of step01, 10 of steps 02 to 04, 40 of the others) after a warm-up, L2 flushed before each; TFLOP/s =",
             "4 B H S S D / time; outputs checked before timing. The ceiling is that of mma.sync from registers,",
             f"{record['ceilings']['mma_f16_tflops']:.0f} TFLOP/s here. All else is in [bench_gpu.md](bench_gpu.md).", ""]
    body = []
    for head_dim in TUNED:
        case = square(4096, head_dim)
        peer = find(record, case, "FlashAttention-2")
        for row in record["rows"]:
            if row_case(row) != case or row["constants"] is None:
                continue
            constants = constants_text(row["constants"])
            if row["ms"]:
                share = f"{100 * row['rate'] / ceiling(record, case):.1f} %"
                ratio = f"{mean_ms(peer) / row['ms']:.3f} x" if peer else "-"
                body.append([row["name"], constants, str(head_dim), f"{row['ms']:.3f}", f"{row['rate']:.1f}", share, ratio])
            else:
                body.append([row["name"], constants, str(head_dim), "-", "-", "-", row["note"]])
        if peer:
            body.append(["FlashAttention-2 (PyTorch SDPA), before and after", "", str(head_dim),
                         f"{peer['ms']:.3f}, {peer['ms_after']:.3f}",
                         ", ".join(f"{rate(case, peer[which]):.1f}" for which in ("ms", "ms_after")),
                         f"{100 * peer['rate'] / ceiling(record, case):.1f} %", ""])
    lines += table(["step", "constants", "D", "ms", "TFLOP/s", "of the ceiling", "of FlashAttention-2"], body)
    return "\n".join(lines) + "\n"


def lengths_table(record, head_dim, mask, dtype="f16"):
    """Kernels down, lengths across."""
    tuned, lines = TUNED[head_dim], []
    cases = [square(seq, head_dim, mask, dtype) for seq in LENGTHS]
    cases = [case for case in cases if any(row_case(row) == case for row in record["rows"])]
    ours = [find(record, case, STEP06, tuned) for case in cases]
    for step in (STEP05, STEP06):
        if any(find(record, case, step, tuned) for case in cases):
            name = label(dict(name=step, constants=tuned))
            lines.append([name] + [cell(record, find(record, case, step, tuned)) for case in cases])
    for name in (*PEERS, FLEX):
        if any(row["name"] == name and row_case(row) in cases for row in record["rows"]):
            lines.append([name] + [cell(record, find(record, case, name), own) for case, own in zip(cases, ours)])
    head = [f"D = {head_dim}, {mask}, {dtype}"] + [f"S = {case.seq_q}" for case in cases]
    return table(head, lines) + [""] if cases else []


def decode_table(record):
    cases = [decode(*shape) for shape in DECODE]
    cases = [case for case in cases if any(row_case(row) == case for row in record["rows"])]
    ours = [find(record, case, STEP06, {}) for case in cases]
    lines = [[STEP06] + [cell(record, row) for row in ours]]
    lines += [[name] + [cell(record, find(record, case, name), own) for case, own in zip(cases, ours)]
              for name in list(PEERS)[:2]]
    return table(["TB/s"] + [f"B = {case.batch}, Skv = {case.seq_kv}" for case in cases], lines)


def variants_table(record):
    """Each variant beside the plain run that does the same work."""
    lines = []

    def line(name, row, own, beside, other):
        ratio = float(own.split()[0]) / float(other.split()[0])
        lines.append([name, f"{row['ms']:.3f}", own, beside, other, f"{ratio:.2f}"])

    def shown(row):
        return f"{row['rate']:.{2 if row['unit'] == 'TB/s' else 1}f} {row['unit']}"
    for head_dim, tuned in TUNED.items():
        varlen, dense = (find(record, square(2048, head_dim, layout=x), STEP06, tuned) for x in ("varlen", "dense"))
        if varlen and dense:
            line(f"8 unequal sequences, D = {head_dim}", varlen, shown(varlen), "8 sequences of 2048", shown(dense))
        flex = find(record, square(16384, head_dim, "window"), FLEX)
        for constants in (tuned, {}):
            window, full = (find(record, square(16384, head_dim, mask), STEP06, constants) for mask in ("window", "full"))
            name = f"window {WINDOW},0, S = 16384, D = {head_dim}, {constants_text(constants)}"
            if window and full:
                tiles = [f"{visited_tiles(row_case(row), constants) / row['ms'] * 1e-3:.1f} tiles/us" for row in (window, full)]
                line(name, window, tiles[0], "no mask", tiles[1])
            if window and flex:
                line(name, window, shown(window), FLEX, shown(flex))
    paged, *plain = (find(record, decode(*DECODE[0], x), STEP06, {}) for x in ("paged", "bshd", "dense"))
    for beside, row in zip(("contiguous [B,S,H,D]", "contiguous [B,H,S,D]"), plain):
        if paged and row:
            line(f"decode from pages of {PAGE}", paged, shown(paged), beside, shown(row))
    return table(["step06 with", "ms", "rate", "beside", "its rate", "ratio"], lines) + [""] if lines else []


def missing_lines(record):
    """Peers that were asked for and gave no time, a line for each reason."""
    reasons = {}
    for row in record["rows"]:
        if not row["ms"]:
            reasons.setdefault((row["name"], row["note"]), []).append(str(row_case(row)))
    return [f"- {name}: {note} ({'; '.join(cases)})" for (name, note), cases in reasons.items()]


PICTURE = ["![TFLOP/s of the ladder, and over the sequence length](bench_gpu.svg)", ""]


def bench_page(record, picture=True):
    c = record["ceilings"]
    lines = ["# The bench on a GPU", "", *where_lines(record),
             f"`{record['where']['command']}`: medians of event-timed launches after a warm-up, the L2 cache flushed",
             "before each by reading other memory. The output of a step was checked against float64 before it was timed.",
             "TFLOP/s = 4 B H Sq Sk D / time, halved for causal; in brackets the share of the ceiling. PyTorch's kernels (the",
             "backends of SDPA, and FlexAttention) ran before and after the steps of each problem: the mean, or both where they",
             "differ by more than 2 %. \"1.10 x\" beside one: the rate of step06 over its rate. \"-\": not measured.",
             "", *PICTURE * picture, "## Ceilings", "",
             *table(["what", "measured"], [
                 ["mma.sync m16n8k16, f16 / bf16", f"{c['mma_f16_tflops']:.0f} / {c['mma_bf16_tflops']:.0f} TFLOP/s"],
                 ["ex2.approx", f"{c['ex2_per_second'] * 1e-12:.2f} · 10¹² / s"],
                 ["device copy, read + write", f"{c['copy_tb_s']:.2f} TB/s"], ["read", f"{c['read_tb_s']:.2f} TB/s"]]), "",
             "They are measured by [common/cuda/ceilings.cu](../../common/cuda/ceilings.cu). `mma.sync` is the instruction of these",
             "steps and of FlashAttention-2. From sm_90 on there is `wgmma`, which is faster; cuDNN takes it and can be above 100 %.", "",
             "## The ladder", "", "[ladder_gpu.md](ladder_gpu.md): steps 01 to 06 at S = 4096.", "",
             "## Over the sequence length", "", f"B S = {TOKENS} tokens, H = {HEADS}; TFLOP/s.", ""]
    for head_dim in TUNED:
        for dtype in ("f16", "bf16"):
            for mask in ("full", "causal"):
                lines += lengths_table(record, head_dim, mask, dtype)
    lines += ["## Decode", "", "GQA, 32 query heads, 8 KV heads, D = 128, Sq = 1, f16. TB/s of the bytes of K and V; in brackets",
              "the share of the read's rate. \"x\": the rate of step06 over the peer's.", "",
              *decode_table(record), ""]
    variants = variants_table(record)
    if variants:
        lines += ["## Variants of step 06", "", "Tiles: those visited, of BLOCK_M query rows and BLOCK_N keys of a head.", "",
                  *variants]
    if missing_lines(record):
        lines += ["## What gave no time", "", *missing_lines(record), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def draw(record):
    """The picture, or None without matplotlib."""
    try:
        import matplotlib
        matplotlib.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        return None
    matplotlib.rcParams.update({"svg.hashsalt": "bench", "svg.fonttype": "none"})
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.6))
    top = record["ceilings"]["mma_f16_tflops"]
    for place, head_dim in enumerate(TUNED):
        case = square(4096, head_dim)
        bars = [row for row in record["rows"] if row["constants"] is not None and row_case(row) == case and row["ms"]]
        at = np.arange(len(bars)) + 0.4 * place - 0.2
        axes[0].bar(at, [row["rate"] for row in bars], 0.4, label=f"D = {head_dim}")
        for x, row in zip(at, bars):
            axes[0].text(x, row["rate"] * 1.06, f"{row['rate']:.3g}", ha="center", fontsize=6.5)
        names = [row["name"][:6] + ("\ntuned" if row["constants"] else "") for row in bars]
        axes[0].set_xticks(range(len(bars)), names, fontsize=8)
    axes[0].axhline(top, color="black", linewidth=0.8, linestyle=":")
    axes[0].set(yscale="log", ylabel="TFLOP/s", title="The ladder, S = 4096", ylim=(0.3, 2 * top))
    axes[0].legend()
    for axis, (head_dim, tuned) in zip(axes[1:], TUNED.items()):
        for color, (name, constants) in enumerate([(STEP06, tuned), *((peer, None) for peer in list(PEERS)[:3])]):
            for mask, style in (("full", "-"), ("causal", "--")):
                found = [find(record, square(seq, head_dim, mask), name, constants) for seq in LENGTHS]
                points = [(row["seq_q"], row["rate"]) for row in found if row]
                if points:
                    axis.plot(*zip(*points), style, marker="o", color=f"C{color}", label=f"{name}, {mask}")
        axis.axhline(top, color="black", linewidth=0.8, linestyle=":")
        axis.set_xscale("log", base=2)
        axis.set_xticks(LENGTHS, LENGTHS)
        axis.set(xlabel="S", title=f"D = {head_dim}, B S = {TOKENS}, H = {HEADS}", ylim=(0, 1.35 * top))
        axis.legend(fontsize=7, ncols=2, loc="upper center", handlelength=4)
    figure.suptitle(f"{record['where']['gpu']}, f16; dotted: the mma.sync ceiling", fontsize=10)
    figure.tight_layout()
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata=dict(Date=None))
    plt.close(figure)
    return file.getvalue()


def render(record, folder):
    """All is made before any of it is written: a file of an earlier run outlives an error."""
    picture = draw(record)
    if not picture:
        print("no matplotlib: no picture; --render draws it elsewhere")
    files = {"bench_gpu.json": json.dumps(record, indent=1) + "\n", "bench_gpu.md": bench_page(record, bool(picture)),
             "ladder_gpu.md": ladder_page(record)}
    for name, text in files.items():
        (folder / name).write_text(text)
    if picture:
        (folder / "bench_gpu.svg").write_bytes(picture)
    print(f"wrote {', '.join(files)}{', bench_gpu.svg' if picture else ''} to {folder}")


def refuse(sentence):
    print(f"bench: {sentence}", file=sys.stderr)
    sys.exit(2)


def read_record(option, path):
    """A record of which the pages can be made."""
    try:
        record = json.loads(path.read_text())
        assert bench_page(record) and ladder_page(record) and differences(record, record) is not None
        return record
    except OSError as error:
        refuse(f"{option} {path}: {error.strerror}")
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        refuse(f"{option} {path}: it is no bench_gpu.json that make bench wrote")


# ---- two runs ----

def differences(new, old):
    """[(relative difference, what, old, new)] of the times and ceilings that both have, the largest first."""
    found = []
    for row in new["rows"]:
        other = find(old, row_case(row), row["name"], row["constants"])
        if row["ms"] and other:
            a, b = mean_ms(other), mean_ms(row)
            found.append((abs(b / a - 1), f"{label(row)}, {row_case(row)}", f"{a:.4g} ms", f"{b:.4g} ms"))
    for name, value in new["ceilings"].items():
        if name in old["ceilings"]:
            a = old["ceilings"][name]
            found.append((abs(value / a - 1), f"ceiling {name}", f"{a:.4g}", f"{value:.4g}"))
    return sorted(found, reverse=True)


def print_differences(new, old):
    found = differences(new, old)
    if not found:
        print("the two runs have nothing in common")
        return
    far = sum(line[0] > 0.05 for line in found)
    print(f"{len(found)} numbers in both runs, {far} of them more than 5 % apart; the largest:")
    for share, what, a, b in found[:10]:
        print(f"  {100 * share:5.1f} %  {what}: {a}, now {b}")


def main():
    parser = argparse.ArgumentParser(usage="make bench [ARGS='option ...']", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peers", default=",".join([*PEERS, FLEX]), metavar="NAME,NAME")
    parser.add_argument("--within", type=int, default=3600, metavar="SECONDS")
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    parser.add_argument("--against", type=Path, metavar="FILE.json")
    parser.add_argument("--render", type=Path, metavar="FILE.json")
    parser.add_argument("--note", metavar="TEXT")
    options = parser.parse_args()
    if not set(options.peers.split(",")) <= {*PEERS, FLEX}:
        refuse(f"--peers {options.peers}: choose from {', '.join([*PEERS, FLEX])}")
    folder = (options.out or (ROOT / "build/bench" if options.quick else RESULTS)).resolve()
    earlier = read_record("--against", options.against) if options.against else None
    if options.render:
        record = read_record("--render", options.render)
    elif missing := lacking():
        print(f"bench: no {missing} here; it times steps on an NVIDIA GPU and builds them with nvcc", file=sys.stderr)
        return 3
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        refuse(f"--out {folder}: {error.strerror}")
    if not options.render:
        try:
            record = measure(options, folder)
        except subprocess.CalledProcessError as error:
            print(f"bench: {' '.join(map(str, error.cmd))} failed", file=sys.stderr)
            return 1
    if options.note:
        record["where"]["note"] = options.note
    render(record, folder)
    if earlier:
        print_differences(record, earlier)
    wrong = [row for row in record["rows"] if row["constants"] is not None and not row["ms"]]
    for row in wrong:
        print(f"bench: {label(row)} at {row_case(row)} was not timed: {row['note']}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
