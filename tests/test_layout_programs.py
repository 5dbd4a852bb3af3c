"""The layout printer beside the programs: what ldmatrix and mma do (make probe), what the executor counts, what make's
settings say; and the pictures of the chapters, which must be what it prints today."""

import hashlib
import json
import random
import re
import shlex
import subprocess

import pytest
from conftest import BACKEND, ROOT, make

cpu_only = pytest.mark.skipif(BACKEND != "cpu", reason="the executor counts on the CPU")


@pytest.fixture(scope="module")
def layout():
    make("build/layout")

    def run(*words):
        done = subprocess.run([ROOT / "build/layout", *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


# ---- What the instructions do ----


def test_probe_agrees_with_the_maps(layout):
    """Every value of every lane, as the program that ran the instructions prints it."""
    done = make("probe", check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert "PASS" in done.stdout.splitlines()[-1] and "but the layout" not in done.stdout
    sections = dict(re.findall(r"^(ldmatrix\S*|mma [ABC]) \(\S+\)\n((?:  .*\n)+)", done.stdout, re.M))
    maps = {"mma A": ("mma", "A"), "mma B": ("mma", "B"), "mma C": ("mma", "C")}
    maps |= {"ldmatrix.x4": ("ldmatrix",), "ldmatrix.x4.trans": ("ldmatrix", "--trans")}
    assert sections.keys() == maps.keys()
    for name, words in maps.items():
        grid = layout(*words, "--no-colour")
        owners = {}
        for line in grid.splitlines():
            row, *cells = line.split()
            if row.isdigit() and cells and cells[0].startswith("T"):
                owners |= {cell: (int(row), column) for column, cell in enumerate(cells)}
        ran = {}
        for lane, places in re.findall(r"^  lane +(\d+)  ((?: \(\S+\))+)", sections[name], re.M):
            for value, (i, j) in enumerate(re.findall(r"\((\d+),(\d+)\)", places)):
                ran[f"T{lane}V{value}"] = int(i), int(j)
        assert len(ran) >= 128 and ran == owners, name


# ---- Wavefronts ----

ACCESSES = {"load4": 4, "load8": 8, "load16": 16, "store4": 4, "store8": 8, "store16": 16, "ldmatrix": 16}


def wavefronts(access, byte_offsets):
    """What `layout banks` says of each list of 32 offsets."""
    make("build/layout")
    lines = "".join(f"banks {access} ({','.join(map(str, lanes))}) --bytes 1\n" for lanes in byte_offsets)
    out = subprocess.run([ROOT / "build/layout", "-"], input=lines, capture_output=True, text=True, check=True).stdout
    return [int(n) for n in re.findall(r"^1 instructions, (\d+) wavefronts", out, re.M)]


@cpu_only
@pytest.mark.parametrize("access", ACCESSES)
def test_wavefronts_are_the_executors(access):
    make("build/cpu/test_probe")
    size, draw = ACCESSES[access], random.Random(5)
    steps = (0, 2, 4, 8, 16, 36, 64, 128, 144)
    cases = [[lane * step % 16368 // size * size for lane in range(32)] for step in steps]
    for spread in (64, 256, 2048, 16368):
        for _ in range(10):
            cases.append([draw.randrange(0, spread, size) for _ in range(32)])
            half = [draw.randrange(0, spread, size) for _ in range(16)]  # neighbours alike: loads may join phases
            cases.append([x for x in half for _ in range(2)])
            cases.append([half[lane // 4 * 2 + lane % 2] for lane in range(32)])
    if access.startswith("store"):  # two lanes that write one place would be a race, which the executor reports
        cases = [lanes for lanes in cases if len(set(lanes)) == 32]
        cases += [draw.sample(range(0, spread, size), 32) for spread in (512, 2048, 16368) for _ in range(20)]
    lines = "".join(" ".join(map(str, lanes)) + "\n" for lanes in cases)
    done = subprocess.run([ROOT / "build/cpu/test_probe", "banks", access], input=lines, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    counted = [int(n) for n in done.stdout.split()]
    assert counted == wavefronts(access, cases) and len(counted) == len(cases)


def total(layout, pattern, tile):
    return int(re.search(r", (\d+) wavefronts,", layout("banks", pattern, tile))[1])


BLOCKS, TILES, WARPS = 2, 2, 4  # of 128 queries and 128 keys of one head, in tiles of 64


def counters_of(runner, step, d):
    done = runner.run(step, "--heads", 1, "--seq-q", 128, "--seq-kv", 128, "--json", "report.json", HEAD_DIM=d)
    assert done.returncode == 0, done.stderr
    return json.loads((runner.folder / "report.json").read_text())["counters"]


@cpu_only
@pytest.mark.parametrize("d", [32, 64, 96, 128])
@pytest.mark.parametrize("step", ["step03_tiled_smem", "step04_pipelined"])
def test_wavefronts_of_scalar_products(layout, runner, step, d):
    counters, printed = counters_of(runner, step, d), layout(step[:6], "--head-dim", d)

    def at(row, chunk):  # bytes; the swizzle of the steps
        return 2 * (row * d + 8 * (chunk ^ (row % 8 if d % 64 == 0 else row // 2 % 4)))

    chunks = d // 8
    k = [[at(2 * (lane % 4) + c, chunk) for lane in range(32)] for c in (0, 1) for chunk in range(chunks)]
    v = [
        [at(2 * source + c, chunk) + 4 * (lane % 4) for lane in range(32)]
        for c in (0, 1)
        for source in range(4)
        for chunk in range(chunks)
    ]
    groups = 8  # of 8 keys in a tile
    reads = groups * (sum(wavefronts("load16", k)) + sum(wavefronts("load4", v)))
    assert counters["shared_load_wavefronts"] == BLOCKS * TILES * WARPS * reads
    if step >= "step04":
        assert counters["shared_store_wavefronts"] == 0  # cp.async is no store of a warp
    elif "no Sw<>" not in printed:
        copies = total(layout, "copy", re.search(r"k_smem, v_smem +(Sw.*)", printed)[1])
        assert counters["shared_store_wavefronts"] == BLOCKS * TILES * 2 * copies


@cpu_only
@pytest.mark.parametrize("d", [32, 64, 128])
def test_wavefronts_of_ldmatrix(layout, runner, d):
    counters = counters_of(runner, "step05_mma_ldmatrix", d)
    tile = re.search(r"q_smem +(Sw.*)", layout("step05", "--head-dim", d))[1]
    once = total(layout, "ldmatrix-a", tile) + total(layout, "load-rows", tile)
    each_warp = total(layout, "ldmatrix-b", tile) + total(layout, "ldmatrix-v", tile)
    assert counters["shared_load_wavefronts"] == BLOCKS * (once + TILES * WARPS * each_warp)
    assert counters["shared_store_wavefronts"] == BLOCKS * total(layout, "store-c", tile)


# ---- make's settings ----


def test_make_layouts_passes_the_settings(layout):
    settings = {"HEAD_DIM": 128, "BLOCK_N": 32, "WARPS": 2, "ROW_TILES": 2, "STAGES": 1}
    words = [w for k, v in settings.items() for w in ("--" + k.lower().replace("_", "-"), v)]
    printed = make("-s", "layouts-step05", *(f"{k}={v}" for k, v in settings.items())).stdout
    assert printed.endswith(layout("step05", *words))
    assert "HEAD_DIM 128, BLOCK_N 32, WARPS 2, ROW_TILES 2: 64 threads, BLOCK_M 64" in printed
    assert "(4096,2,1):(1,4096,0)" in printed and "(4096,2,2):(1,4096,8192)" in layout("step05")


# ---- Pictures ----

DIAGRAMS = ROOT / "docs/diagrams"
DRAWN = [shlex.split(line)[1:] for line in re.findall(r"^draw .*", (DIAGRAMS / "draw").read_text(), re.M)]


@pytest.mark.parametrize("name, words", [(name, words) for name, *words in DRAWN], ids=[d[0] for d in DRAWN])
def test_pictures_are_not_stale(layout, name, words):
    """`make docs` draws them anew."""
    text = (DIAGRAMS / f"{name}.dot").read_bytes()
    assert text.decode() == layout(*words, "--dot"), "make docs"
    svg = (DIAGRAMS / f"{name}.svg").read_text()
    blob = hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
    assert svg.endswith(f"<!-- {name}.dot: {blob} -->\n"), "make docs"
    assert 'fill="white"' in svg  # its own paper: legible on a dark page too


def test_every_picture_is_drawn_and_shown():
    names = {d[0] for d in DRAWN}
    assert {p.stem for p in DIAGRAMS.glob("*.dot")} >= names
    pages = "".join(p.read_text() for p in ROOT.glob("**/*.md") if "build" not in p.parts and ".venv" not in p.parts)
    assert not [name for name in names if f"diagrams/{name}.svg" not in pages]


def test_the_dictionary_quotes_the_step():
    """First column of the table at the end of the chapter: every piece of code stands in the kernel file."""
    table = (ROOT / "docs/03_layouts.md").read_text().partition("| our line |")[2]
    source = (ROOT / "step05_mma_ldmatrix/attention.cu").read_text()
    pieces = [piece for line in table.splitlines()[2:] if line.startswith("|") for piece in re.findall(r"`(.+?)`", line.split("|")[1])]
    assert len(pieces) > 20 and not [piece for piece in pieces if piece not in source]
