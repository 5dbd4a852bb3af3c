"""The chapters of docs/: their pictures, --trace, the glossary, their exercises."""
import hashlib
import re
import shlex
import subprocess

import pytest
from conftest import BACKEND, CC, DEFAULTS, ROOT, binary, own_environment
from test_docs import headings, prose

DOCS = ROOT / "docs"
WITH_EXERCISES = sorted(page for page in DOCS.glob("[0-9]*.md") if "Try" in headings(page))


# ---- pictures that a command draws ----

CHARTS = [shlex.split(line)[1:] for line in re.findall(r"^chart .*", (DOCS / "diagrams/draw").read_text(), re.M)]


@pytest.mark.skipif(BACKEND != "cpu", reason="the executor is the CPU backend")
@pytest.mark.parametrize("name, command", CHARTS, ids=[c[0] for c in CHARTS])
def test_charts_are_not_stale(name, command):
    """`make docs` draws them anew."""
    binary("step04_pipelined"), binary("step04_pipelined", STAGES=1)
    drawn = subprocess.run(["sh", "-ec", "make -s build/layout >/dev/null; " + command], cwd=ROOT, check=True, capture_output=True,
                           text=True, env={**own_environment(), "CC": CC, "BACKEND": BACKEND}).stdout
    text = (DOCS / f"diagrams/{name}.dot").read_bytes()
    assert text.decode() == drawn, "make docs"
    svg = (DOCS / f"diagrams/{name}.svg").read_text()
    assert svg.endswith(f"<!-- {name}.dot: {hashlib.sha1(b'blob %d' % len(text) + bytes(1) + text).hexdigest()} -->\n")
    assert f"diagrams/{name}.svg" in "".join(page.read_text() for page in DOCS.glob("*.md"))


# ---- --trace ----

def trace(runner, step, *arguments, **settings):
    """[(what, count, place in global memory, place in shared memory)] of a run; "": none."""
    done = runner.run(step, "--trace", *arguments, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return [(line[9:18].strip(), int(line[18:24]), line[26:38].strip(), line[40:54].strip())
            for line in done.stdout.splitlines() if line.startswith("trace ")]


@pytest.mark.skipif(BACKEND != "cpu", reason="the executor is the CPU backend")
@pytest.mark.parametrize("stages, tiles", [(2, 1), (2, 3), (1, 1), (1, 3)])
def test_the_order_of_a_pipeline(stages, tiles, runner):
    """What the chapter says of it: a wait, then a barrier, before each read; a buffer is filled again after the barrier that
    follows its last read; and what a wait makes land is what was started since the wait before."""
    events = trace(runner, "step04_pipelined", "--seq-kv", 64 * tiles, STAGES=stages)
    started, landed, readable, filled = 0, {}, set(), []
    for what, count, source, place in events:
        if what == "copy":
            assert place not in readable and place not in landed, "filled while it may still be read"
            landed[place] = False
            started += count
            filled.append(source)
        elif what == "wait for":
            assert count == started
            started = 0
            landed = dict.fromkeys(landed, True)
        elif what == "barrier":
            readable = {place for place, done in landed.items() if done}
        elif what == "load" and place:
            assert place in readable, "read before the barrier"
            del landed[place]
            readable.remove(place)
    assert started == 0 and not landed
    assert sorted(filled) == sorted(f"{x} + {8192 * i}" for x in "kv" for i in range(tiles))
    assert sum(what == "barrier" for what, *_ in events) == tiles * (2 if stages == 1 else 1)


@pytest.mark.skipif(BACKEND != "cpu", reason="the executor is the CPU backend")
@pytest.mark.parametrize("step, arguments, kernels", [
    ("step01_naive", [], [("scores", 256), ("softmax", 64), ("output", 128)]),
    ("step06_variants", ["--splits", "2"], [("flash_fwd", 8), ("combine", 256)])])
def test_a_trace_names_the_kernels(step, arguments, kernels, runner):
    """Each with its number of blocks."""
    events = trace(runner, step, *arguments)
    assert [event[:2] for event in events if event[0] in dict(kernels)] == kernels and events[0][:2] == kernels[0]


@pytest.mark.skipif(BACKEND != "cpu", reason="the executor is the CPU backend")
def test_a_trace_counts_a_warps_instructions(runner):
    """One warp's part of the totals of step 05 (16 warps here)."""
    events = trace(runner, "step05_mma_ldmatrix")
    for what, total in ("mma", 2048), ("ldmatrix", 1088), ("copy", 320), ("shuffle", 128):
        assert 16 * sum(count for name, count, *_ in events if name == what) == total


def test_a_trace_needs_the_observer(runner):
    for other in (["--no-observe"], ["--observe-blocks", "1"]):
        done = runner.run("step04_pipelined", "--trace", *other)
        assert done.returncode == 2 and "--trace" in done.stderr and other[0] in done.stderr and done.stderr.count("\n") == 1


# ---- exercises and the glossary ----

def test_chapters_with_exercises_have_answers():
    answers = (DOCS / "answers.md").read_text()
    assert len(WITH_EXERCISES) >= 4
    for page in WITH_EXERCISES:
        asked = re.findall(r"^(\d)\. ", prose(page).partition("\n## Try\n")[2], re.M)
        section = answers.partition(f"]({page.name})\n")[2].partition("\n## ")[0]
        assert len(asked) >= 2 and re.findall(r"^(\d)\. ", section, re.M) == asked, page.name


def terms():
    """The first column of the glossary's tables."""
    rows = re.findall(r"^\| (.+?) \|", (DOCS / "glossary.md").read_text(), re.M)
    return [row for row in rows if row not in ("term", "---")]


def test_the_glossarys_names_stand_in_the_sources():
    sources = "".join(p.read_text() for pattern in ("step*/attention.cu", "step*/*.h", "common/*.[ch]", "common/*/*.[ch]", "Makefile")
                      for p in ROOT.glob(pattern))
    cute = {"tCrQ", "tXsK"}
    for name in re.findall(r"`([^`]+)`", "".join(terms())):
        assert name in cute or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sources), name


def test_the_glossary_has_every_function_and_setting_of_the_steps():
    known = " ".join(re.findall(r"`([^`]+)`", "".join(terms()))).split()
    for path in [*ROOT.glob("step*/attention.cu"), *ROOT.glob("step*/variants.h")]:
        source = path.read_text()
        names = re.findall(r"^(?:static|__global__)[^;=(]*?(?:__launch_bounds__\([^)]*\) )?\*?\b(\w+)\(", source, re.M)
        names += re.findall(r"^enum \{ (\w+) =|, (\w+) = WARP_SIZE", source, re.M)
        for name in names:
            name = name if isinstance(name, str) else name[0] or name[1]
            assert name in known, f"{name} of {path.parent.name}"
    assert not set(DEFAULTS) - set(known)
