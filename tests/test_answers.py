"""docs/answers.md: each exercise is carried out here, unless its answer quotes commands (tests/test_docs.py runs those).

test_SECTION_N is exercise N of that section.  It checks what the answer claims, and `says` checks that the numbers it found
stand in the answer: so the text and the run cannot part.  An exercise that edits a kernel is built from the edited copy."""
import difflib
import hashlib
import json
import re
import subprocess

import numpy as np
import pytest
from conftest import BACKEND, ROOT, STEPS, binary, make, reference, where
from test_bugs import Bug
from test_docs import prose

PAGE = ROOT / "docs/answers.md"
_built = set()


# ---- the page ----

def answers():
    """{(section, number): its text}"""
    found = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        name, _, text = section.partition("\n")
        for item in re.split(r"^(?=\d\. )", text, flags=re.M)[1:]:
            found[name, int(item[0])] = item[3:]
    return found


def carried_out():
    """The exercises that have a test here."""
    names = (re.fullmatch(r"test_(\w+)_(\d)", name) for name in globals())
    return {(name[1], int(name[2])) for name in names if name}


def test_every_exercise_has_its_answer():
    pages = {page.parent.name if page.name == "README.md" else page.stem: page
             for page in [*ROOT.glob("step*/README.md"), *ROOT.glob("docs/*.md")] if "\n## Try\n" in page.read_text()}
    asked = [(name, int(n)) for name, page in pages.items()
             for n in re.findall(r"^(\d)\. ", prose(page).partition("\n## Try\n")[2], re.M)]
    assert len(asked) > 40 and sorted(answers()) == sorted(asked)


def test_every_answer_is_verified():
    quoting = {exercise for exercise, text in answers().items() if "```console\n$ " in text}
    assert quoting | carried_out() == set(answers())


@pytest.fixture
def says(request):
    """Fails unless all of these numbers stand in the answer."""
    section, number = re.fullmatch(r"test_(\w+)_(\d)", request.node.name).groups()
    text = answers()[section, int(number)]

    def check(*numbers):
        for number in numbers:
            assert re.search(rf"(?<![\d.,]){re.escape(str(number))}(?![\d]|[.,]\d)", text), f"{number} is not in: {text}"
    return check


# ---- carrying an exercise out ----

class Attempt:
    """A run of a step: what it printed, what the executor found, what it wrote."""

    def __init__(self, program, arguments, folder):
        self.program = program
        files = "--out", "o.npy", "--lse", "lse.npy", "--json", "report.json"
        done = subprocess.run([program, *arguments, *files], cwd=folder, capture_output=True, text=True, timeout=120)
        self.printed, self.passed = done.stdout, done.returncode == 0 and done.stdout.endswith("PASS\n")
        self.errors = re.findall("^error: (.*)$", done.stderr, re.M)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        if not self.errors:  # else the result was not even looked at
            self.o, self.lse = np.load(folder / "o.npy"), np.load(folder / "lse.npy")
            report = json.loads((folder / "report.json").read_text())
            self.counters, self.checked_o, self.checked_lse = report["counters"], report["o"], report["lse"]
            self.wrong_o, self.wrong_lse = report["o"]["failures"], report["lse"]["failures"]

    def lines_named(self):
        """The source lines that the error names."""
        error, = self.errors
        source = (self.program.parent / self.program.name.split("_d")[0] / "attention.cu").read_text().splitlines()
        return [source[int(n) - 1].strip() + source[int(n)].strip() for n in re.findall(r"attention\.cu:(\d+)", error)]


@pytest.fixture(scope="session")
def patches(tmp_path_factory):
    return tmp_path_factory.mktemp("patches")


@pytest.fixture
def attempt(tmp_path, patches):
    """Runs a step with these arguments and settings.  planted: a bug of its bugs/, whose settings and arguments are the
    default; edits: {text of the kernel: what takes its place, wherever it stands}; qkv: the input."""
    if BACKEND != "cpu":
        pytest.skip("the exercises are about the CPU executor")

    def run(step, arguments=None, *, planted=None, edits=None, qkv=None, **settings):
        step, = (s for s in STEPS if s.startswith(step))
        bug = planted and Bug(ROOT / step / f"bugs/{planted}.patch")
        if bug:
            settings = {**dict(word.split("=") for word in bug.settings), **settings}
            arguments = " ".join(bug.arguments) if arguments is None else arguments
        change = bug.diff if bug else diff(step, edits) if edits else None
        program = patched(step, change, settings) if change else binary(step, **settings)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name, array in zip("qkv", qkv or ()):
            np.save(folder / f"{name}.npy", array)
        files = "--q q.npy --k k.npy --v v.npy" if qkv else ""
        return Attempt(program, f"{files} {arguments or ''}".split(), folder)

    def diff(step, edits):
        edited = source = (ROOT / step / "attention.cu").read_text()
        for old, new in edits.items():
            assert old in edited, old
            edited = edited.replace(old, new)
        lines = source.splitlines(True), edited.splitlines(True)
        return "".join(difflib.unified_diff(*lines, "a/attention.cu", "b/attention.cu"))

    def patched(step, diff, settings):
        """make looks for stepNN/bugs/BUG.patch outside of the project too."""
        name = "answer_" + hashlib.sha1(diff.encode()).hexdigest()[:8]
        words = step[:6], f"BUG={name}", *(f"{k}={v}" for k, v in settings.items())
        if words not in _built:
            (patches / step / "bugs").mkdir(parents=True, exist_ok=True)
            (patches / step / f"bugs/{name}.patch").write_text(diff)
            make("-j2", f"VPATH={patches}", *words)
            _built.add(words)
        return where(step, {k: v if k == "DTYPE" else int(v) for k, v in settings.items()}, name)
    return run


def wrong_rows(attempt, right):
    """[B, H, rows]: whether a row has another bit anywhere, in O or in LSE."""
    return (attempt.o.view("i2") != right.o.view("i2")).any(-1) | (attempt.lse.view("i4") != right.lse.view("i4"))


# ---- step 01 ----

def test_step01_naive_1(attempt, says):
    before, after = attempt("step01").counters, attempt("step01", "--seq-q 256").counters
    assert after["load_requests"] == 4 * before["load_requests"]
    assert before["load_requests"] == 2 * 128 ** 2 // 32 * (2 * 64 + 3 + 2 * 64)  # 2 heads
    says(before["load_requests"], after["load_requests"], before["store_requests"], after["store_requests"])


def test_step01_naive_2(attempt, says):
    exponent = "(s[key] - finite_max) * p.scale_log2"
    apart = {exponent: "s[key] * p.scale_log2 - finite_max * p.scale_log2"}
    assert attempt("step01", edits=apart).passed and attempt("step01", "--scale 1e9").passed
    as_written = attempt("step01", "--scale 1e9", edits=apart)
    fused = attempt("step01", "--scale 1e9", edits={exponent: "fmaf(s[key], p.scale_log2, -(finite_max * p.scale_log2))"})
    assert fused.checked_lse["not_finite"] == fused.wrong_lse > 0
    assert as_written.passed or np.array_equal(as_written.lse, fused.lse, equal_nan=True)  # passes where nothing is fused
    says(fused.wrong_lse, fused.lse.size)


def test_step01_naive_3(attempt, says):
    any_m = {"    const float finite_max": "    row_max = 0;\n    const float finite_max"}
    assert attempt("step01", edits=any_m).passed and attempt("step01", "--scale 1", edits=any_m).passed
    overflow = attempt("step01", "--scale 10", edits=any_m)
    assert np.isnan(overflow.o).all() and np.isposinf(overflow.lse).all()
    says(1, 10)


# ---- step 02 ----

def test_step02_online_softmax_1(attempt, says):
    loads = attempt("step02", ROW_TILES=2).counters["load_requests"]
    assert loads == 16 * (128 + 512 + 32)
    says(attempt("step02").counters["load_requests"], loads, 672)


SHUFFLE = "new_max = fmaxf(new_max, __shfl_xor_sync(FULL_WARP, new_max, {}));"


def test_step02_online_softmax_2(attempt, says):
    alone = attempt("step02", edits={SHUFFLE.format(1): "", SHUFFLE.format(2): ""})
    assert alone.wrong_o > 0.95 * alone.o.size and alone.wrong_lse == alone.lse.size
    warps = 2 * 128 // 16
    right = attempt("step02")
    assert right.counters["shuffles"] - alone.counters["shuffles"] == 8 * warps
    says(alone.counters["shuffles"], right.counters["shuffles"], 8)


def test_step02_online_softmax_3(attempt, says):
    from_zero = {"row_max[t][half] = -INFINITY": "row_max[t][half] = 0"}
    assert attempt("step02", edits=from_zero).passed
    right = attempt("step02", "--scale 100 --seq-kv 1")  # its LSE is scale times the only score
    wrong = attempt("step02", "--scale 100 --seq-kv 1", edits=from_zero)
    empty = np.isneginf(wrong.lse)
    assert right.passed and empty.sum() == wrong.wrong_lse and (right.lse[empty] < 0).all() and (wrong.o[empty] == 0).all()
    assert empty[right.lse < -104].all() and not empty[right.lse > -103].any()
    subnormal = ~empty & wrong_rows(wrong, right) & ~np.isfinite(wrong.o.astype(float)).all(-1)
    says(empty.sum(), subnormal.sum(), empty.size)


# ---- step 03 ----

def test_step03_tiled_smem_1(attempt, says):
    right = attempt("step03")
    before = attempt("step03", planted="no_barrier_before_copy")
    after = attempt("step03", planted="no_barrier_after_copy")
    for race, lines in (before, before.lines_named()), (after, after.lines_named()[::-1]):
        assert "race" in race.errors[0] and "\nO " not in race.printed and "\nFAIL " in race.printed
        assert lines[0].startswith("STORE16(smem") and "LOAD16(k_smem" in lines[1]
    overwritten = attempt("step03", "--no-observe", planted="no_barrier_before_copy")
    wrong = overwritten.lse != right.lse
    warps = wrong.reshape(-1, 4, 16)  # the rows of each block by warp
    assert overwritten.wrong_lse == wrong.sum() and (warps == [[[True]] * 3 + [[False]]]).all()
    first = (overwritten.o != right.o).reshape(-1, 4, 16 * 64)[:, 3]
    assert first.any(1).all() and not first.all(1).any()
    assert np.isnan(attempt("step03", "--no-observe", planted="no_barrier_after_copy").o).all()
    assert attempt("step03", "--seq-kv 64", planted="no_barrier_before_copy").passed
    says(wrong.sum(), wrong.size, 64)


def test_step03_tiled_smem_2(attempt, says):
    counters = attempt("step03", WARPS=8).counters
    assert attempt("step03").counters["load_requests"] == 512 + 256
    says(counters["load_requests"], counters["barriers"], 512, counters["load_requests"] - 512)


def test_step03_tiled_smem_3(attempt, says):
    place = "HEAD_DIM % 64 == 0 ? chunk ^ row % 8 : chunk ^ row / 2 % 4"
    tile = {place: "chunk", "return row * HEAD_DIM": "return row * (HEAD_DIM + 8)",
            "TILE = BLOCK_N * HEAD_DIM": "TILE = BLOCK_N * (HEAD_DIM + 8)"}
    padded = attempt("step03", edits=tile)
    assert padded.passed and padded.counters == attempt("step03").counters and padded.counters["shared_excess"] == 0
    says(padded.counters["shared_load_wavefronts"], (64 + 8) * 2, 2 * 64 * (64 + 8) * 2, 2 * 64 * 64 * 2)
    del tile["TILE = BLOCK_N * HEAD_DIM"]
    forgotten = attempt("step03", edits=tile)
    assert "out of bounds" in forgotten.errors[0] and all("STORE16" in line for line in forgotten.lines_named())


# ---- step 04 ----

def test_step04_pipelined_1(attempt, says):
    race = attempt("step04", planted="no_barrier_for_tile")
    assert "race" in race.errors[0] and "cp_async16(" in race.lines_named()[0]
    assert np.isnan(attempt("step04", "--no-observe", planted="no_barrier_for_tile").o).all()
    early = attempt("step04", "--seq-kv 64 --no-observe", planted="no_barrier_for_tile")
    right = ~wrong_rows(early, attempt("step04", "--seq-kv 64"))
    last_lanes = np.zeros((4, 64), bool)  # of the blocks' rows, those of lanes 28 to 31 of warp 3
    last_lanes[:, [48 + 7, 48 + 15]] = True
    assert np.array_equal(right.reshape(4, 64), last_lanes)
    says(right.sum(), right.size, 2)


def test_step04_pipelined_2(attempt):
    early = attempt("step04", planted="wait_for_all_but_one")
    assert "in flight" in early.errors[0] and "LOAD16(k_smem" in "".join(early.lines_named())
    assert np.isnan(attempt("step04", "--no-observe", planted="wait_for_all_but_one").o).all()


def test_step04_pipelined_3(attempt, says):
    always = {"pass + row < exist ? 16 : 0": "16"}
    assert attempt("step04", edits=always).passed
    for how in {"edits": always}, {"planted": "always_16_bytes"}:
        beyond = attempt("step04", "--seq-kv 65", **how)
        place = r"load out of bounds: block \d+, warp \d+, lane \d+ reads 16 bytes at byte \d+ of k"
        assert re.search(place, beyond.errors[0])
        assert beyond.lines_named()[0].startswith("cp_async16(")
    says(128, 16, 65)


# ---- step 05 ----

def test_step05_mma_ldmatrix_1(attempt, says):
    before, after = attempt("step05").counters, attempt("step05", ROW_TILES=2).counters
    assert after["mma"] == before["mma"] and after["ldmatrix"] == 8 * (2 * 32 + 8)
    says(after["mma"], before["ldmatrix"], after["ldmatrix"], before["load_requests"], after["load_requests"])


def chunks_exchanged(k):
    """K [.., keys, D] with keys 8-15, dimensions 0-7 of each 16 x 16 in the place of keys 0-7, dimensions 8-15."""
    return k.reshape(*k.shape[:2], -1, 2, 8, k.shape[3] // 16, 2, 8).swapaxes(3, 6).reshape(k.shape)


def test_step05_mma_ldmatrix_2(attempt):
    q, k, v = reference.generate(1, 1, 1, 1, 64, 128, 64)
    swapped = attempt("step05", qkv=(q, k, v), planted="k_registers_swapped")
    expected = attempt("step05", qkv=(q, chunks_exchanged(k), v))
    assert expected.passed and not wrong_rows(swapped, expected).any()  # that is what it multiplies
    assert swapped.counters == expected.counters
    assert swapped.wrong_o > 0.95 * swapped.o.size and swapped.wrong_lse == swapped.lse.size
    assert attempt("step05", "--no-observe", planted="no_syncwarp_before_o").passed
    assert "no barrier lies between" in attempt("step05", planted="no_syncwarp_before_o").errors[0]


def test_step05_mma_ldmatrix_3(attempt, says):
    pairs = {"chunk ^ row % 8": "chunk ^ row / 2 % 4"}
    right, conflicts = attempt("step05").counters, attempt("step05", edits=pairs).counters
    more = [conflicts[name] - right[name] for name in ("shared_load_wavefronts", "shared_store_wavefronts")]
    assert sum(more) == conflicts["shared_excess"] and all(more)
    assert attempt("step03", edits=pairs).counters["shared_excess"] == 0
    says(conflicts["shared_excess"])


def test_step05_mma_ldmatrix_4(attempt, says):
    late = attempt("step05", planted="m_follows_late")
    rows = ~np.isfinite(late.o.astype(float))
    assert late.wrong_lse == 0 and (rows.all(-1) == rows.any(-1)).all()
    assert attempt("step05", planted="m_follows_late", DTYPE="bf16").passed
    says(rows.sum(), rows.any(-1).sum(), late.lse.size)


def test_step05_mma_ldmatrix_5(attempt, says):
    assert attempt("step05", "--scale 0.125", planted="no_rescale_of_o").passed
    assert not attempt("step05", planted="no_rescale_of_o").passed  # with its --scale 2
    assert not attempt("step02", "--scale 0.125", planted="no_rescale_of_o").passed
    usual, larger = attempt("step05").counters["shuffles"], attempt("step05", "--scale 2").counters["shuffles"]
    warps = 2 * 128 // 16
    assert usual == warps * (4 + 4) and larger == warps * (4 + 4 + 4)  # in each tile with the longer way, and at the end
    says(usual, larger)


# ---- step 06 ----

def test_step06_variants_1(attempt, says):
    mma = attempt("step06", "--causal --seq-q 1024").counters["mma"]
    assert mma == 2 * 16 * 17 // 2 * 4 * 64
    says(136, mma)


def test_step06_variants_2(attempt, says):
    assert attempt("step06", "--causal", planted="diagonal_forgets_past").passed
    assert not attempt("step06", "--causal --seq-q 100 --seq-kv 163", planted="diagonal_forgets_past").passed
    says(100, 163)


def test_step06_variants_3(attempt, says):
    parts = attempt("step06", planted="parts_weigh_alike")
    assert parts.wrong_lse == parts.lse.size
    equal, unequal = (attempt("step06", "--splits 2", planted="parts_weigh_alike", qkv=reference.count(8, keys, 64))
                      for keys in (128, 192))
    assert equal.passed and unequal.wrong_o == unequal.o.size and unequal.wrong_lse == unequal.lse.size
    says(0, 128, 192)


# ---- docs ----

def test_04_pipeline_and_barriers_1(attempt):
    assert not attempt("step04", planted="no_commit_in_loop").passed
    assert attempt("step04", "--seq-kv 64", planted="no_commit_in_loop").passed


def test_04_pipeline_and_barriers_2(attempt, says):
    one, two = (attempt("step04", "--seq-kv 1024", STAGES=stages).counters for stages in (1, 2))
    assert one["cp_async"] == two["cp_async"] == 4 * 16 * 2 * 16
    says(one["barriers"], two["barriers"], one["cp_async"])


def test_04_pipeline_and_barriers_3(attempt):
    barrier = "            __syncthreads();  /* ... and everybody's; and every warp has read K */\n"
    start = "            if (next_key < p.seq_kv) copy_tile(k_next, k, p.k_stride.row, next_key, BLOCK_N, p.seq_kv, p.head_dim);"
    early = {f"{barrier}{start}\n": f"{start}\n{barrier}"}
    race = attempt("step04", STAGES=1, edits=early)
    read, copy = race.lines_named()
    assert "race" in race.errors[0] and "LOAD16(k_smem" in read and "cp_async16(" in copy
    assert attempt("step04", "--seq-kv 64", STAGES=1, edits=early).passed
    assert attempt("step04", planted="no_barrier_for_v").lines_named() == [read, copy]


def test_05_tensor_cores_1(attempt, says):
    keys = {"s[t][j], q_frag[t][step], k_frag.x, k_frag.y": "s[t][j], q_frag[t][step], k_frag.z, k_frag.w",
            "s[t][j + 1], q_frag[t][step], k_frag.z, k_frag.w": "s[t][j + 1], q_frag[t][step], k_frag.x, k_frag.y"}
    swapped, other_side = attempt("step05", edits=keys), attempt("step05", planted="v_registers_swapped")
    for wrong in swapped, other_side:
        assert wrong.wrong_o and not wrong.wrong_lse
    both = {**keys, "v_frag.x, v_frag.y": "v_frag.y, v_frag.x", "v_frag.z, v_frag.w": "v_frag.w, v_frag.z"}
    assert attempt("step05", edits=both).passed
    assert attempt("step05", "--seq-kv 100", edits=keys).wrong_lse == swapped.lse.size
    says(100)


def test_06_variants_1(attempt, says):
    mma = [attempt("step06", f"--heads 1 --seq-q 256 --window {left},0").counters["mma"] for left in (63, 64, 65)]
    assert mma == [(1 + 2 + 2 + 2) * 4 * 64, mma[0], (1 + 2 + 3 + 3) * 4 * 64]
    says(mma[0], mma[2])


def test_06_variants_2(attempt, says):
    mma = [attempt("step06", f"--heads 16 --kv-heads 2 --seq-kv 512 --seq-q {rows}").counters["mma"] for rows in (1, 8, 9)]
    assert mma == [2 * 8 * 64, 2 * 8 * 256, 2 * 8 * (256 + 64)]
    says(*mma)


def test_06_variants_3(attempt, tmp_path):
    np.save(tmp_path / "mask.npy", np.tril(np.ones((4, 4), np.uint8)))
    named = attempt("step06", "--block-causal 32")
    mask = attempt("step06", f"--block-mask {tmp_path / 'mask.npy'} --block-size 32")
    assert named.passed and mask.passed and not wrong_rows(mask, named).any()
    different = {name for name, count in named.counters.items() if mask.counters[name] != count}
    assert different == {"load_requests", "load_sectors", "load_bytes"}
    assert mask.counters["load_requests"] > named.counters["load_requests"]


def test_07_numerics_and_pits_1(attempt, says):
    off = [attempt("step06", arguments, planted="combine_in_base_2").checked_o["max_error"]
           for arguments in ("--splits 2", "--splits 2 --scale 1", "--splits 16 --scale 1 --seq-kv 1024")]
    assert round(off[0], 2) == 0.05 and off[1] > 0.3
    says(*(f"{error:.2f}" for error in off[1:]))


def test_07_numerics_and_pits_2(attempt, says):
    assert attempt("step02", "--seq-kv 64", planted="no_rescale_of_o").passed
    q, k, v = reference.generate(1, 1, 1, 1, 128, 65, 64)
    wrong = attempt("step02", qkv=(q, k, v), planted="no_rescale_of_o")
    rows = (wrong.o != attempt("step02", qkv=(q, k, v)).o).any(-1)
    assert wrong.wrong_o and not wrong.wrong_lse
    assert np.array_equal(rows, (q.astype(float) @ k.astype(float).swapaxes(2, 3)).argmax(-1) == 64)
    says(64, 65)


def test_07_numerics_and_pits_3(attempt, says):
    def moved(n):
        whole, less = (attempt("step06", qkv=reference.count(1, keys, 64)) for keys in (n, n - 1))
        lse = float(whole.lse.flat[0] - less.lse.flat[0])
        return float(whole.o.flat[0]), float(less.o.flat[0]), lse, whole.checked_lse["bound"]
    first, second, lse, bound = moved(1000)
    assert bound < lse < 1e-2 < first - second
    says(first, int(second), f"{lse:.4f}", f"{bound:.1e}")
    first, second, lse, bound = moved(8192)
    assert first == second and 0 < lse < bound
    says(int(first), f"{lse:.5f}", f"{bound:.5f}")


def test_09_reading_others_1(attempt):
    forward = "int first_key = 0; first_key < p.seq_kv; first_key += BLOCK_N"
    backward = "int first_key = (p.seq_kv - 1) / BLOCK_N * BLOCK_N; first_key >= 0; first_key -= BLOCK_N"
    right, turned = (attempt("step02", "--seq-kv 100", edits=edits) for edits in (None, {forward: backward}))
    assert turned.passed and turned.counters == right.counters
    assert wrong_rows(turned, right).any()  # in its last bits: it passes
    one_tile = [attempt("step02", "--seq-kv 64", edits=edits) for edits in (None, {forward: backward})]
    assert not wrong_rows(*one_tile).any()


def test_09_reading_others_2(attempt, says):
    shape = "--heads 1 --seq-q 100 --seq-kv 100"
    assert "load out of bounds" in attempt("step04", shape, planted="always_16_bytes").errors[0]
    assert attempt("step02", shape, planted="tail_scored_as_zero").wrong_lse == 100
    assert "store out of bounds" in attempt("step05", shape, planted="no_row_guard").errors[0]
    says(100, 127)


def test_09_reading_others_3(attempt, says):
    added = {"s[t][j][2 * half + c] = -INFINITY": "s[t][j][2 * half + c] -= INFINITY"}
    plain, sums = (attempt("step06", "--causal", edits=edits) for edits in (None, added))
    assert plain.passed and sums.passed and not wrong_rows(sums, plain).any()
    q, k, v = reference.generate(1, 1, 1, 1, 128, 128, 64)
    q[..., 0], k[..., 127, 0] = np.abs(q[..., 0]) + 1, np.inf  # the last key's scores are +inf; only the last row sees it
    plain, sums = (attempt("step06", "--causal", edits=edits, qkv=(q, k, v)) for edits in (None, added))
    finite, still = (np.isfinite(run.o.astype(float)).all(-1).ravel() for run in (plain, sums))
    assert finite[:127].all() and still[:64].all() and not still[64:].any()
    says(63, 64, 126)


def test_executor_2(attempt):
    early = attempt("step04", planted="no_wait_for_tile")
    lines = early.lines_named()
    assert "in flight" in early.errors[0] and "LOAD16(k_smem" in lines[0] and "cp_async16(" in lines[1]
    assert np.isnan(attempt("step04", "--no-observe", planted="no_wait_for_tile").o).any()
