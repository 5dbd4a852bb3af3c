"""Measurements on a GPU machine, written to docs/results/ with card, driver, toolkit and date.

    python3 common/measure.py ulp      how far the outputs of the two backends are apart
    python3 common/measure.py counters the executor's counters beside those of Nsight Compute
    python3 common/measure.py cost     what observing costs the executor (needs no GPU, writes nothing)

Needs NumPy.  Builds what it runs.  Times are bench.py's.  Exit code: 2 without one of these words, NumPy or a GPU's tools.
"""
import csv
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("measure: this python3 has no NumPy", file=sys.stderr)
    sys.exit(2)

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results"
STEPS = sorted(p.parent.name for p in ROOT.glob("step0*/attention.cu"))
STEP06 = STEPS[-1]
DEFAULTS = dict(BLOCK_N=("n", 64), WARPS=("w", 4), ROW_TILES=("r", 1), STAGES=("s", 2))  # as build.mk names a binary


def make(*words):
    """Runs make here as if by hand, whatever make started this program."""
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    subprocess.run(["make", "-s", "--no-print-directory", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
                   env=environment)


def build_folder(backend):
    """Where make puts what it builds."""
    arch = os.environ.get("ARCH", "native")
    return ROOT / "build" / (backend if backend == "cpu" or arch == "native" else f"{backend}-{arch}")


def build(backend, step, head_dim, **settings):
    own = dict(BACKEND=backend, HEAD_DIM=head_dim, DTYPE="f16", **{key: default for key, (_, default) in DEFAULTS.items()})
    own.update(settings)
    make(step.split("_")[0], *(f"{key}={value}" for key, value in own.items()))
    suffix = "".join(f"_{letter}{own[key]}" for key, (letter, default) in DEFAULTS.items() if own[key] != default)
    folder = build_folder(backend) / (f"bugs/{own['BUG']}" if "BUG" in own else "")
    return folder / f"{step}_d{head_dim}_{own['DTYPE']}{suffix}"


def always(step):
    """Arguments without which a step's backends do not make the same launches: step 06 splits small problems on a GPU."""
    return ["--splits", 1] if step == STEP06 else []


def report(program, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        done = subprocess.run([program, *map(str, arguments), "--json", path], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{program.name} {arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return json.loads(path.read_text())


def find_nvcc():
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def lacking(*tools):
    """What of a GPU, nvcc and these tools is not here: the first of them, or None."""
    try:
        gpus = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("GPU ")
    except OSError:
        gpus = 0
    here = dict(GPU=gpus, nvcc=find_nvcc(), **{tool: shutil.which(tool) for tool in tools})
    return next((name for name, found in here.items() if not found), None)


def machine():
    """Card, driver, toolkit and date."""
    card = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                          capture_output=True, text=True).stdout.strip().splitlines()[0]
    toolkit = subprocess.run([find_nvcc(), "--version"], capture_output=True, text=True).stdout
    name, driver = card.split(", ")
    return dict(gpu=name, driver=driver, nvcc=re.search(r"release ([0-9.]+)", toolkit).group(1),
                date=datetime.date.today().isoformat())


def where():
    """The same in one line."""
    found = machine()
    return f"{found['gpu']}, driver {found['driver']}, nvcc {found['nvcc']}, {found['date']}"


def ordered(x):
    """float16 bits as integers in the order of the numbers, so that a difference is a distance in ulp."""
    bits = x.view(np.int16).astype(np.int32)
    return np.where(bits < 0, -(bits & 0x7fff), bits)


def ulp():
    edges = [0, 1, 2, 3, 5, 9, 17]
    lines = ["# The two backends, output by output", "", where(), "",
             "`python3 common/measure.py ulp`: O of the CPU executor and of the GPU on the same generated input (B = 1, H = 2,",
             "Sq = 200, Skv = 328, f16), distance in ulp of f16; the last column is the largest distance as a share of the bound.",
             "", "| step | D | " + " | ".join(["0", "1", "2", "3-4", "5-8", "9-16", "17+"]) + " | largest | error / bound |",
             "|---|---|" + "---|" * (len(edges) + 2)]
    arguments = ["--heads", 2, "--seq-q", 200, "--seq-kv", 328]
    with tempfile.TemporaryDirectory() as folder:
        for head_dim in (64, 128):
            for step in STEPS:
                own = arguments + always(step)
                files = {b: [Path(folder) / f"{b}_{n}.npy" for n in ("o", "lse")] for b in ("cpu", "cuda")}
                report(build("cpu", step, head_dim), *own, "--out", files["cpu"][0], "--lse", files["cpu"][1],
                       "--no-observe")
                done = report(build("cuda", step, head_dim), *own, "--out", files["cuda"][0], "--lse",
                              files["cuda"][1], "--previous-out", files["cpu"][0], "--previous-lse", files["cpu"][1])
                cpu, cuda = (ordered(np.load(files[b][0])) for b in ("cpu", "cuda"))
                distance = np.abs(cpu - cuda)
                counts = np.histogram(distance, edges + [1 << 20])[0]
                lines.append(f"| {step} | {head_dim} | " + " | ".join(map(str, counts)) +
                             f" | {distance.max()} | {done['o_previous']['worst_ratio']:.3f} |")
                print(lines[-1], flush=True)
    (RESULTS / "ulp_gpu.md").write_text("\n".join(lines) + "\n")


# Nsight Compute's metrics for each counter of the executor.  cp.async is inside the global loads.  The tensor pipe also
# carries conversions from half precision (HADD2), so its counter is compared only where there is mma, and without combine.
METRICS = dict(
    load_requests="l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    load_sectors="l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    store_requests="l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    store_sectors="l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    shared_load_wavefronts="l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    shared_store_wavefronts="l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    ldmatrix="smsp__inst_executed_op_ldsm.sum",
    cp_async="smsp__inst_executed_op_ldgsts.sum",
    mma="sm__inst_executed_pipe_tensor_op_hmma.sum",
    shared_excess="l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum "
                  "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
)
SHAPES = [(64, ["--heads", 2, "--seq-q", 128, "--seq-kv", 128]), (64, ["--heads", 3, "--seq-q", 200, "--seq-kv", 328]),
          (128, ["--heads", 1, "--seq-q", 256, "--seq-kv", 512])]
# What runs at each shape: a step, settings, arguments.
RUNS = [(step, {}, always(step)) for step in STEPS]
RUNS += [(STEP06, {}, options.split()) for options in ("--causal --splits 1", "--causal --splits 3",
                                                       "--window 100,20 --block-causal 8 --softcap 5 --splits 1")]
RUNS += [("step03_tiled_smem", dict(BUG="no_swizzle"), [])]


def nsight_compute(program, arguments):
    """{counter: sum over the kernels of one run}"""
    done = subprocess.run(["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base", "--metrics",
                           ",".join(" ".join(METRICS.values()).split()), program, *map(str, arguments), "--no-check"],
                          capture_output=True, text=True)
    rows = list(csv.DictReader(line for line in done.stdout.splitlines() if line.startswith('"')))
    if not rows:
        sys.exit(f"ncu {program.name}: no counters\n{done.stdout}{done.stderr}")
    kernels = [row for row in rows if row["ID"].isdigit()]  # the first row holds the units
    return {name: sum(int(float(row[metric].replace(",", ""))) for row in kernels for metric in metrics.split()
                      if name != "mma" or not row["Kernel Name"].startswith("combine"))
            for name, metrics in METRICS.items()}


def counters():
    lines = ["# The executor's counters and the hardware's", "", where(), "",
             "`python3 common/measure.py counters`: each step at three shapes, summed over its kernels; Nsight Compute's metric",
             "names are in that file.", "",
             "Where shared wavefronts are a little apart, by as much as `shared_excess`, the hardware's differ from run to run",
             "too: conflicts of addresses would not. With `--splits`, `combine` reads each warp's maximum and sum, which",
             "are neighbours: nvcc joins those loads, so that the hardware has fewer of them.", "",
             "| step | shape | counter | executor | hardware | ratio |", "|---|---|---|---|---|---|"]
    different = 0
    for head_dim, arguments in SHAPES:
        shape = f"D {head_dim}, " + ", ".join(f"{a[2:]} {b}" for a, b in zip(arguments[::2], arguments[1::2]))
        for step, bug, options in RUNS:
            ours = report(build("cpu", step, head_dim, **bug), *arguments, *options)["counters"]
            theirs = nsight_compute(build("cuda", step, head_dim, **bug), arguments + options)
            step = " ".join([step, *map(str, options)]) + (" without swizzle" if bug else "")
            for name in METRICS:
                if not ours[name] and (name == "mma" or not theirs[name]):
                    continue
                ratio = f"{ours[name] / theirs[name]:.3f}" if theirs[name] else "-"
                different += ours[name] != theirs[name]
                lines.append(f"| {step} | {shape} | {name} | {ours[name]:,} | {theirs[name]:,} | {ratio} |")
                if ours[name] != theirs[name]:
                    print(lines[-1], flush=True)
    print(f"{sum(line.startswith('| step0') for line in lines)} counters, {different} different")
    (RESULTS / "counters_gpu.md").write_text("\n".join(lines) + "\n")


def cost():
    """CPU: how much longer an observed run takes than an unobserved one."""
    for step in STEPS:
        program = build("cpu", step, 64)
        size = 256 if step == "step01_naive" else 512
        arguments = [program, "--heads", "4", "--seq-q", str(size), "--no-check"]
        times = {}
        for observe in ("", "--no-observe"):
            runs = []
            for _ in range(5):
                start = time.perf_counter()
                subprocess.run(arguments + observe.split(), check=True, stdout=subprocess.DEVNULL)
                runs.append(time.perf_counter() - start)
            times[observe] = float(np.median(runs))
        print(f"{step:<22} {times[''] / times['--no-observe']:.1f} x")


if __name__ == "__main__":
    if sys.argv[1:] not in (["ulp"], ["counters"], ["cost"]):
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    missing = None if sys.argv[1] == "cost" else lacking(*["ncu"] * (sys.argv[1] == "counters"))
    if missing:
        print(f"measure: no {missing} here; {sys.argv[1]} runs steps on an NVIDIA GPU", file=sys.stderr)
        sys.exit(2)
    RESULTS.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    dict(ulp=ulp, counters=counters, cost=cost)[sys.argv[1]]()
