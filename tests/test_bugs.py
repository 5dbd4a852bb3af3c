"""Planted bugs: each stepNN/bugs/NAME.patch is a mistake of one to three lines, and somebody catches it.

Above the patch stand a question (Q:), who catches it (Caught by: checker, executor or counters), and the settings and
arguments that the bug needs to show itself.  Where the executor catches it, REPORTED says which lines it must name.
"""
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import pytest
from conftest import BACKEND, ROOT, STEPS, make, where

pytestmark = pytest.mark.skipif(BACKEND != "cpu", reason="the executor is the CPU backend")
PATCHES = sorted(ROOT.glob("step*/bugs/*.patch"))
PLANTED = [step for step in STEPS if (ROOT / step / "bugs").exists()]
SYNCHRONISATION = re.compile(r"^\s*(__syncthreads\(|__syncwarp\(|cp_async_wait\(|wait_for_previous_kernel\()")
every_patch = pytest.mark.parametrize("patch", PATCHES, ids=lambda p: f"{p.parent.parent.name[:6]}-{p.stem}")

# What the report says, and what stands in each line that it names, in this order; how many lines are reported, if not one.
UNSAFE, FLYING = "race: .*: no .* lies between", "race: .*: the copy is in flight"
COPY = "cp_async16("
REPORTED = {
    "step01/no_guard_in_scores": ("load out of bounds: .* of q,", ["to_float(q[d])"]),
    "step01/workspace_overflow": ("store out of bounds: .* of workspace,", ["s[index] = dot"]),
    "step01/blocks_overlap": ("race between blocks: .* of o,", ["to_element(sum)", "to_element(sum)"]),
    "step02/no_row_guard": ("store out of bounds: .* of o,", ["STORE4(out"]),
    "step02/v_beyond_d": ("load out of bounds: .* of v,", ["LOAD4(v "]),
    "step03/no_barrier_before_copy": (UNSAFE, ["STORE16(smem", "LOAD16(k_smem"]),
    "step03/no_barrier_after_copy": (UNSAFE, ["LOAD16(k_smem", "STORE16(smem"]),
    "step03/tail_read": ("load out of bounds: .* of k,", ["LOAD16(from"]),
    "step03/tail_not_zeroed": ("uninitialised: .* of shared memory", ["LOAD16(k_smem", "LOAD4(v_pair"]),
    "step03/tiles_overlap": (UNSAFE, ["STORE16(smem", "STORE16(smem"]),
    "step03/memory_for_one_tile": ("store out of bounds: .* of shared memory", ["STORE16(smem"]),
    "step04/no_wait_for_tile": (FLYING, ["LOAD16(k_smem", COPY]),
    "step04/no_barrier_for_tile": (UNSAFE, [COPY, "LOAD16(k_smem"]),
    "step04/no_wait_for_k_one_buffer": (FLYING, ["LOAD16(k_smem", COPY]),
    "step04/no_barrier_for_k_one_buffer": (UNSAFE, [COPY, "LOAD16(k_smem"]),
    "step04/no_wait_for_v": (FLYING, ["LOAD4(v_pair", COPY]),
    "step04/no_barrier_for_v": (FLYING, ["LOAD16(k_smem", COPY]),
    "step04/wait_for_all_but_one": (FLYING, ["LOAD16(k_smem", COPY]),
    "step04/no_first_commit": (FLYING, ["LOAD16(k_smem", COPY]),
    "step04/no_commit_in_loop": (FLYING, ["LOAD16(k_smem", COPY]),
    "step04/same_buffer": (FLYING, ["LOAD16(k_smem", COPY]),
    "step04/always_16_bytes": ("load out of bounds: .* of k,", [COPY]),
    "step05/no_wait_for_q": (FLYING, ["ldmatrix_x4(q_smem", COPY]),
    "step05/no_barrier_for_q": (UNSAFE, [COPY, "ldmatrix_x4(q_smem"]),
    "step05/no_wait_for_tile": (FLYING, ["ldmatrix_x4(k_smem", COPY]),
    "step05/no_barrier_for_tile": (FLYING, ["ldmatrix_x4(k_smem", COPY]),
    "step05/no_wait_for_k_one_buffer": (FLYING, ["ldmatrix_x4(k_smem", COPY]),
    "step05/no_barrier_for_k_one_buffer": (UNSAFE, [COPY, "ldmatrix_x4_trans(v_smem"]),
    "step05/no_wait_for_v": (FLYING, ["ldmatrix_x4_trans(v_smem", COPY]),
    "step05/no_barrier_for_v": (UNSAFE, [COPY, "ldmatrix_x4(k_smem"]),
    "step05/no_syncwarp_before_o": (UNSAFE, ["STORE4(q_smem", "ldmatrix_x4(q_smem"]),
    "step05/no_syncwarp_after_o": (UNSAFE, ["LOAD16(q_smem", "STORE4(q_smem"]),
    "step05/no_row_guard": ("store out of bounds: .* of o,", ["STORE16(to"]),
    "step05/no_chunk_guard": ("store out of bounds: .* of o,", ["STORE16(to"]),
    "step05/lanes_vote_alone": ("ldmatrix .* waits in __shfl_sync", ["ldmatrix_x4_trans(v_smem", "__shfl_xor_sync("]),
    "step05/no_room_for_q": ("cp.async at byte 32768 of shared memory", [COPY]),
    "step06/no_wait_for_q": (FLYING, ["ldmatrix_x4(q_smem", COPY]),
    "step06/no_barrier_for_q": (UNSAFE, [COPY, "ldmatrix_x4(q_smem"]),
    "step06/no_barrier_for_offsets": (UNSAFE, ["offsets[pass + row]", "offsets[i] ="]),
    "step06/no_wait_for_parts": ("race between kernels: .* of workspace, .* no wait_for_previous_kernel",
                                 ["partial_lse(p, split, at)", "row_lse;"], 2),
    "step06/no_barrier_in_combine": (UNSAFE, ["maxima[w]", "maxima[warp]"], 2),
    "step06/no_wait_for_tile": (FLYING, ["ldmatrix_x4(k_smem", COPY]),
    "step06/no_barrier_for_tile": (FLYING, ["ldmatrix_x4(k_smem", COPY]),
    "step06/no_wait_for_v": (FLYING, ["ldmatrix_x4_trans(v_smem", COPY]),
    "step06/no_barrier_for_v": (UNSAFE, [COPY, "ldmatrix_x4(k_smem"]),
    "step06/no_wait_before_o": ("race: .*: that copy is still in flight", ["STORE4(q_smem", COPY]),
    "step06/part_leaves_early": ("the copy is in flight when .* returns from the kernel", [COPY]),
    "step06/no_barrier_before_o": (UNSAFE, ["STORE4(q_smem", "ldmatrix_x4(q_smem"]),
    "step06/no_syncwarp_after_o": (UNSAFE, ["STORE4(q_smem", "LOAD16(q_smem"]),
    "step06/no_row_guard": ("store out of bounds: .* of o,", ["STORE16(to"]),
    "step06/lane_goes_alone": ("meets in ldmatrix .* waits in __shfl_sync", ["ldmatrix_x4_trans(v_smem", "__shfl_xor_sync"]),
}


class Bug:
    def __init__(self, patch):
        text = patch.read_text()
        self.step, self.name = patch.parent.parent.name, patch.stem
        self.key = f"{self.step[:6]}/{self.name}"
        self.header, self.diff = text[:text.index("--- a/")].splitlines(), text[text.index("--- a/"):]
        self.fields = dict(line.split(": ", 1) for line in self.header)
        self.settings = self.fields.get("Settings", "").split()
        self.arguments = tuple(self.fields.get("Arguments", "").split())

    def changed(self, sign):
        return [line[1:] for line in self.diff.splitlines()[2:] if line[0] == sign]

    def program(self, bug=None):
        return where(self.step, dict(word.split("=") for word in self.settings), bug)


def run(program, arguments, folder):
    return subprocess.run([program, *arguments, "--json", "report.json"], capture_output=True, text=True, cwd=folder,
                          timeout=120)


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """(build, run, folder) of each bug of the tests that were asked for; two at a time."""
    patches = {item.callspec.params["patch"] for item in request.session.items
               if "patch" in getattr(getattr(item, "callspec", None), "params", {})}
    make("-j2", "step01")  # what they share

    def result(patch):
        bug, folder = Bug(patch), tmp_path_factory.mktemp("bug")
        built = make(bug.step[:6], f"BUG={bug.name}", *bug.settings, check=False)
        return built, built.returncode == 0 and run(bug.program(bug.name), bug.arguments, folder), folder

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(patches, pool.map(result, patches)))


@lru_cache(None)
def right(step, settings, arguments, folder, program):
    make(step[:6], *settings)
    done = run(program, arguments, folder)
    return done, json.loads((folder / "report.json").read_text()) if done.returncode == 0 else None


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("right")


# ---- the files ----

def test_there_are_enough_of_them():
    assert len(PATCHES) >= 30
    for step in PLANTED:
        assert sum(p.parent.parent.name == step for p in PATCHES) >= 5
    assert {Bug(p).key for p in PATCHES if Bug(p).fields["Caught by"] == "executor"} == set(REPORTED)


@every_patch
def test_a_patch_is_one_small_change(patch, tmp_path):
    bug = Bug(patch)
    assert re.fullmatch(r"Q: .+\?", bug.header[0]) and re.fullmatch("Caught by: (checker|executor|counters)", bug.header[1])
    assert set(bug.fields) <= {"Q", "Caught by", "Settings", "Arguments"}
    file, = re.findall(r"--- a/(attention.cu|variants.h)\n\+\+\+ b/\1\n@@ ", bug.diff)
    added, removed = bug.changed("+"), bug.changed("-")
    assert len(added) == len(removed)  # so the line numbers of a report are those of the step
    assert 1 <= max(len(added), len(removed)) <= 3 and max(map(len, added), default=0) <= 120
    done = subprocess.run(["patch", "-s", "-F0", "-o", tmp_path / file, ROOT / bug.step / file, patch], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("step", [s for s in PLANTED if s >= "step03"])
def test_every_barrier_and_wait_is_taken_away_once(step):
    """By a patch that changes nothing else."""
    lines = [line for line in (ROOT / step / "attention.cu").read_text().splitlines() if SYNCHRONISATION.match(line)]
    bugs = [Bug(p) for p in PATCHES if p.parent.parent.name == step]
    assert lines
    for line in lines:
        assert any(bug.changed("-") == [line] and bug.changed("+") == [""] for bug in bugs), line


# ---- who catches them ----

@every_patch
def test_it_is_caught(patch, results):
    bug, (built, done, folder) = Bug(patch), results[patch]
    assert built.returncode == 0 and "warning" not in built.stderr, built.stderr
    said, errors = done.stdout + done.stderr, re.findall("^error: (.*)$", done.stderr, re.M)
    caught_by = bug.fields["Caught by"]
    if caught_by == "counters":
        counters = json.loads((folder / "report.json").read_text())["counters"]
        assert done.returncode == 0 and done.stdout.endswith("PASS\n") and not errors, said
        assert counters["shared_excess"] > 0
        return
    assert done.returncode == 1 and "PASS" not in done.stdout, said
    if caught_by == "checker":
        assert not errors and re.search("^FAIL +(O|LSE): [1-9]", done.stdout, re.M), said
        return
    says, expected, *lines = REPORTED[bug.key]
    assert len(errors) == (lines[0] if lines else 1), said  # one cause, one report
    assert re.search(says, errors[0]), said
    source = (ROOT / bug.step / "attention.cu").read_text().splitlines()
    places = re.findall(r"(\S+):(\d+)\b", re.sub(r"[,;:](?=\s|$)", "", errors[0]))
    assert [place for place, _ in places] == [f"{bug.step}/attention.cu"] * len(expected), said
    for (_, number), fragment in zip(places, expected):
        assert fragment in source[int(number) - 1] + source[int(number)], (number, source[int(number) - 1], said)


@every_patch
def test_the_kernel_without_it_passes(patch, folder):
    bug = Bug(patch)
    done, report = right(bug.step, tuple(bug.settings), bug.arguments, folder, bug.program())
    assert done.stderr.count("error:") == 0, done.stderr
    if bug.name == "workspace_overflow":  # S is larger than any memory: it says so before it starts
        assert done.returncode in (0, 2) and (done.returncode == 0 or "bytes of workspace" in done.stderr), done.stderr
        return
    assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr
    assert report["counters"]["shared_excess"] == 0


@pytest.mark.parametrize("patch", [p for p in PATCHES if p.stem in ("no_swizzle", "no_syncwarp_before_o")],
                         ids=lambda p: p.stem)
def test_a_right_result_hides_it(patch, results):
    """Whom the result alone tells nothing: without the executor's eye these two pass."""
    bug, (_, _, folder) = Bug(patch), results[patch]
    done = run(bug.program(bug.name), (*bug.arguments, "--no-observe"), folder)
    assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr


# ---- what make says ----

def output_of(*words):
    done = make(*words, check=False)
    return done.returncode, [line for line in done.stdout.splitlines() if not line.startswith("nvcc is here")], done.stderr


def test_make_bugs_lists_exercises():
    code, lines, _ = output_of("bugs")
    assert code == 0 and len(lines) == len(PATCHES) and max(map(len, lines)) <= 120
    for line, patch in zip(lines, PATCHES):
        bug = Bug(patch)
        assert line.split(None, 2) == [bug.step[:6], bug.name, bug.fields["Q"]]


@pytest.mark.parametrize("step", PLANTED)
def test_make_names_the_bugs_there_are(step):
    names = " ".join(p.stem for p in PATCHES if p.parent.parent.name == step)
    code, lines, stderr = output_of(f"bug-{step[:6]}")
    assert code == 0 and len(lines) == 1 and lines[0].endswith(names) and not stderr
    code, lines, stderr = output_of(f"bug-{step[:6]}", "BUG=no_such_bug")
    assert code == 2 and not lines and stderr.count("\n") == 1
    assert f"BUG=no_such_bug: {step[:6]} has {names}" in stderr


def test_make_bug_runs_it_with_its_settings():
    """And with the caller's, where he gives some: with two buffers nobody needs that wait."""
    code, lines, stderr = output_of("bug-step04", "BUG=no_wait_for_v")
    assert code == 0 and lines[-1].startswith("FAIL") and "in flight" in stderr
    code, lines, stderr = output_of("bug-step04", "BUG=no_wait_for_v", "STAGES=2")
    assert code == 0 and lines[-1] == "PASS" and not stderr
