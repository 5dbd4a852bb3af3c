"""The programs of docs/models: the chapters' numbers, the properties they claim, and what the executor counts."""
import hashlib
import json
import math
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from conftest import BACKEND, ROOT, STEPS, reference
from hypothesis import assume, given, settings
from hypothesis import strategies as st

MODELS, DIAGRAMS = ROOT / "docs/models", ROOT / "docs/diagrams"
sys.path[:0] = [str(MODELS), str(ROOT / "common")]
import blocked  # noqa: E402
import compare  # noqa: E402
import online_softmax  # noqa: E402
import path  # noqa: E402
import smem  # noqa: E402
import split_kv  # noqa: E402
import traffic  # noqa: E402

PROGRAMS = sorted(p.stem for p in MODELS.glob("*.py") if p.stem != "options")
on_cpu = pytest.mark.skipif(BACKEND != "cpu", reason="the executor counts on the CPU")
sizes = st.integers(1, 300)
unhurried = settings(deadline=None)


def run(program, *words, **environment):
    return subprocess.run([sys.executable, MODELS / f"{program}.py", *words], capture_output=True, text=True,
                          env=environment or None)


# ---- traffic ----

def ratio(seq_q, seq_kv, d, block_m):
    return traffic.total(traffic.naive(seq_q, seq_kv, d)) / traffic.total(traffic.fused(seq_q, seq_kv, d, block_m))


def test_traffic_of_the_example():
    naive, fused = traffic.naive(8192, 8192, 128), traffic.fused(8192, 8192, 128, 128)
    assert (traffic.total(naive), traffic.total(fused)) == (272_629_760, 136_314_880)
    assert [sum(x) // (8192 * 128) for x in fused.values()] == [1, 64, 64, 1]
    assert traffic.total(naive) - 4 * 8192 ** 2 == 4_194_304


@pytest.mark.parametrize("seq_q, d, block_m, expected", [
    (8192, 128, 128, 2.0), (8192, 64, 128, 3.97), (8192, 128, 64, 1.008), (8192, 256, 64, 0.51), (1, 128, 128, 1.0156)])
def test_ratios(seq_q, d, block_m, expected):
    assert ratio(seq_q, 8192, d, block_m) == pytest.approx(expected, abs=10.0 ** -len(str(expected).partition(".")[2]))


@unhurried
@given(st.integers(1, 64), st.sampled_from([32, 64, 128, 256]), st.sampled_from([16, 64, 128]))
def test_the_ratio_tends_to_2_block_m_over_d(blocks, d, block_m):
    n, limit = blocks * block_m, 2 * block_m / d
    assert ratio(n, n, d, block_m) - limit == pytest.approx((2 - limit) / (blocks + 1))


@unhurried
@given(sizes, sizes, sizes, st.integers(1, 8), st.integers(1, 2))
def test_traffic_is_the_paper_formula_of_compare(seq_q, seq_kv, d, warps, row_tiles):
    shape = dict(seq_q=seq_q, seq_kv=seq_kv, head_dim=d, settings=dict(warps=warps, row_tiles=row_tiles, block_n=64))
    naive, fused = traffic.naive(seq_q, seq_kv, d), traffic.fused(seq_q, seq_kv, d, 16 * warps * row_tiles)
    assert compare.on_paper({**shape, "step": "step01"}) == 2 * traffic.total(naive) + 2 * 4 * seq_q * seq_kv  # S, P: f32
    assert compare.on_paper({**shape, "step": "step05"}) == 2 * traffic.total(fused)
    assert compare.asked({**shape, "step": "step05"})[0] == 2 * traffic.total(fused) + 4 * seq_q                # LSE


def counted(runner, step, *words):
    runner.run(step, *words, "--json", "report.json")
    report = json.loads((runner.folder / "report.json").read_text())
    assert report["pass"]
    return report["counters"]


@on_cpu
def test_traffic_is_what_the_executor_counts(runner):
    seq_q, seq_kv, d, heads = 150, 200, 64, 2
    for step in STEPS:
        counters = counted(runner, step, "--heads", heads, "--seq-q", seq_q, "--seq-kv", seq_kv)
        naive, fused = traffic.naive(seq_q, seq_kv, d), traffic.fused(seq_q, seq_kv, d, 64)
        lse = 4 * seq_q
        if step == STEPS[0]:
            s_and_p = naive["scores"][1] + naive["softmax"][1]
            assert counters["store_bytes"] == heads * (4 * s_and_p + 2 * naive["output"][1] + lse)
        else:
            assert counters["store_bytes"] == heads * (2 * fused["O"][1] + lse)
        if step[:6] in ("step05", "step06"):  # nothing is asked for twice
            assert counters["load_bytes"] == heads * 2 * sum(read for read, _ in fused.values())


@on_cpu
def test_table_of_three_counts(runner):
    """The table in chapter 01: MB of two heads, 128 x 128, D = 64."""
    text = (ROOT / "docs/01_attention_and_traffic.md").read_text()
    table = re.findall(r"^\| (0\d) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", text, re.M)
    assert [row[0] for row in table] == ["01", "02", "03", "05"]
    for number, *quoted in table:
        step = next(s for s in STEPS if s.startswith("step" + number))
        c = counted(runner, step, "--heads", 2, "--seq-q", 128, "--seq-kv", 128)
        model = compare.on_paper(dict(step=step, seq_q=128, seq_kv=128, head_dim=64, settings=dict(warps=4, row_tiles=1)))
        mb = [2 * model, c["load_bytes"] + c["store_bytes"], 32 * (c["load_sectors"] + c["store_sectors"])]
        assert quoted == [f"{x / 1e6:.3f}" for x in mb]


# ---- shared memory ----

def test_shared_memory_of_the_example():
    kb = [smem.smem(128, 128, 128, stages) // 1024 for stages in (1, 2, 3)]
    assert kb == [96, 160, 224] and smem.smem(128, 128, 128, 2, o_shared=True) // 1024 == 192
    fits = [[name for name, limit in smem.LIMITS.items() if x <= limit] for x in kb]
    assert fits == [["sm_80", "sm_86/89", "sm_90"], ["sm_80", "sm_90"], ["sm_90"]]
    assert [smem.buffers(0, ahead) for ahead in (0, 1, 2)] == [1, 2, 3]


@on_cpu
def test_shared_memory_is_what_the_step_asks_for(runner):
    done = runner.run(STEPS[4], HEAD_DIM=256, BLOCK_N=128)
    needed = smem.smem(64, 128, 256, smem.buffers(0, 1))
    assert done.returncode != 0 and f"a block needs {needed} bytes of shared memory" in done.stdout + done.stderr
    assert f"{smem.LIMITS['sm_90'] * 1024} are allowed" in done.stdout + done.stderr


# ---- online softmax ----

def test_hand_case():
    (m0, _, l0, u0), (m, c, l, u) = online_softmax.online([([1, 2], [10, 20]), ([3, 4], [30, 40])])
    assert (m0, m) == (2, 4) and c == pytest.approx(math.exp(-2))
    assert (f"{l0:.4f} {u0:.3f}", f"{l:.4f} {u:.3f}") == ("1.3679 23.679", "1.5530 54.241")
    assert f"{u / l:.4f} {m + math.log(l):.4f}" == "34.9265 4.4402"


scores = st.lists(st.tuples(st.floats(-30, 30), st.floats(-9, 9)), min_size=1, max_size=40)
scales = st.floats(0.1, 2)


def cut(pairs, data):
    """The pairs in another order and in tiles of random sizes, none empty."""
    pairs = data.draw(st.permutations(pairs))
    ends = sorted(data.draw(st.sets(st.integers(1, len(pairs)))) | {len(pairs)})
    return [tuple(zip(*pairs[a:b])) for a, b in zip([0, *ends], ends)]


@unhurried
@given(scores, scales, st.data())
def test_any_m_any_order_any_tiles(pairs, scale, data):
    expected = online_softmax.plain(*zip(*pairs), scale)
    some_m = st.floats(-100, 100)
    *_, (m, _, l, u) = online_softmax.online(cut(pairs, data), scale, lambda m, largest: data.draw(some_m))
    assert (u / l, scale * m + math.log(l)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@unhurried
@given(scores, scales, st.data())
def test_what_grows(pairs, scale, data):
    parts = cut(pairs, data)
    before, seen = (-math.inf, -math.inf), ([], [])
    for (x, v), (m, c, l, u) in zip(parts, online_softmax.online(parts, scale)):
        seen = seen[0] + list(x), seen[1] + list(v)
        lse = scale * m + math.log(l)
        assert m >= before[0] and lse >= before[1] - 1e-12 and l >= 1 and 0 <= c <= 1 and (c > 0) == (before[0] > -math.inf)
        assert (u / l, lse) == pytest.approx(online_softmax.plain(*seen, scale), rel=1e-9, abs=1e-9)
        before = m, lse


def test_l_can_fall():
    first, second = (l for _, _, l, _ in online_softmax.online([([0, 0], [1, 1]), ([9], [1])]))
    assert first == 2 and second == pytest.approx(1.0002, abs=1e-4)


@unhurried
@given(scores, scales)
def test_log2e_goes_in_once(pairs, scale):
    parts = [tuple(zip(*pairs))]
    results = {name: list(online_softmax.online(parts, scale, e=e))[-1] for name, e in online_softmax.EXPONENTIALS.items()}
    assert results["exp2"] == pytest.approx(results["exp"], rel=1e-9, abs=1e-12)
    sharper = list(online_softmax.online(parts, scale * online_softmax.LOG2E))[-1]
    assert results["double_log2e"] == pytest.approx(sharper, rel=1e-9, abs=1e-12)


# ---- parts ----

@unhurried
@given(st.integers(0, 50), st.integers(1, 20), st.integers(0, 2 ** 32 - 1), st.data())
def test_parts_in_any_order_make_the_whole(keys, parts, seed, data):
    random = np.random.default_rng(seed)
    x, v = 100 * random.standard_normal(keys), random.standard_normal((keys, 3))
    os, lses = split_kv.split(x, v, parts)
    assert np.isneginf(lses).sum() == max(parts - keys, 0)
    order = data.draw(st.permutations(range(parts)))
    o, lse, weights = split_kv.combine(os[order], lses[order])
    expected = split_kv.partial(x, v)
    np.testing.assert_allclose(o, expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(lse, expected[1], rtol=1e-12)
    assert weights.sum() == pytest.approx(min(keys, 1)) and np.all(weights[np.isneginf(lses[order])] == 0)


def test_f16_partial_results():
    assert [f"{split_kv.worst_factor(lse, 2):.4g}" for lse in (13, 300, 1200)] == ["1.003", "1.091", "1.414"]
    for lse in (13, 300, 1200):
        exact = split_kv.error_of_parts(lse, np.float32, np.float32)
        in_o = split_kv.error_of_parts(lse, np.float16, np.float32)
        in_lse = split_kv.error_of_parts(lse, np.float32, np.float16)
        assert exact < in_o / 3 < 2.0 ** -11 and 5 * in_o < in_lse < split_kv.worst_factor(lse, math.e) - 1


def test_bf16_sums():
    assert split_kv.bf16_sum(np.ones((400, 1))) == 256  # 256 + 1 lies between 256 and 258, and goes to the even one
    assert split_kv.bf16_sum(np.ones((200, 1))) == 200


# ---- blocked attention ----

masks = st.fixed_dictionaries({}, optional=dict(
    causal=st.just(True), window=st.tuples(st.integers(-1, 40), st.integers(-1, 40)), block_causal=st.integers(1, 30),
    block_size=st.integers(1, 20), softcap=st.floats(0.5, 3), sinks=st.just(np.array([0.0, -np.inf, 3.0, 50.0]))))
tile_sizes = st.integers(1, 40)


@unhurried
@given(st.integers(1, 60), st.integers(1, 60), tile_sizes, tile_sizes, masks, st.integers(0, 2 ** 32 - 1))
def test_blocked_is_the_reference(seq_q, seq_kv, block_m, block_n, options, seed):
    q, k, v = reference.generate(seed, B=1, Hq=4, Hkv=2, Sq=seq_q, Sk=seq_kv, D=8)
    if "block_size" in options:
        shape = [-(-n // options["block_size"]) for n in (seq_q, seq_kv)]
        options = {**options, "block_mask": np.random.default_rng(seed).integers(0, 2, shape).astype(bool)}
    counts, agrees = blocked.check(q, k, v, block_m, block_n, **options)
    assert agrees and counts[0] >= counts[1] >= counts[2]


@unhurried
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=5), tile_sizes, tile_sizes)
def test_blocked_varlen(lens, block_m, block_n):
    assume(sum(q for q, _ in lens) and sum(k for _, k in lens))
    assert blocked.check_varlen(*zip(*lens), block_m, block_n, causal=True)[1]


@unhurried
@given(st.integers(1, 60), st.integers(1, 60), tile_sizes, tile_sizes, st.integers(-1, 40), st.integers(0, 9))
def test_tiles_are_those_that_somebody_sees(seq_q, seq_kv, block_m, block_n, left, right):
    seen = reference.visible(seq_q, seq_kv, (left, right), 0)
    covered = np.zeros_like(seen)
    for rows, keys, part, whole in blocked.tiles(seq_q, seq_kv, block_m, block_n, window=(left, right)):
        assert part.any() and whole == part.all()
        covered[np.ix_(rows, keys)] = part
    assert np.array_equal(covered, seen)


def test_disagreement_is_noticed():
    q, k, v = reference.generate(1, B=1, Hq=4, Hkv=2, Sq=20, Sk=30, D=8)
    expected = reference.attention(q, k, v, causal=True)
    assert blocked.agree(expected.o, expected.lse, expected)
    assert not blocked.agree(expected.o + 1e-9, expected.lse, expected)
    assert not blocked.agree(expected.o, expected.lse + np.nan, expected)


# ---- paths ----

@pytest.mark.parametrize("start, end, way", [
    ("L0C", "UB", "L0C GM UB"), ("UB", "L0A", "UB L1 L0A"), ("GM", "L0B", "GM L1 L0B"), ("L0C", "L0A", "L0C GM L1 L0A"),
    ("UB", "UB", "UB"), ("L0A", "GM", None), ("L1", "UB", None)])
def test_ways_on_ascend(start, end, way):
    assert path.shortest(path.MACHINES["ascend"]["moves"], start, end) == (way and way.split())


places = st.sampled_from("ABCDEF")
moves = st.dictionaries(st.tuples(places, places), st.just(""), max_size=15)


@unhurried
@given(moves, places, places)
def test_shortest_way(moves, start, end):
    way = path.shortest(moves, start, end)
    reached, steps = {start}, 0
    while end not in reached and steps < 6:
        reached, steps = reached | {b for a, b in moves if a in reached}, steps + 1
    assert (way is None) == (end not in reached)
    if way:
        assert len(way) - 1 == steps and all(move in moves for move in zip(way, way[1:]))
        assert (way[0], way[-1]) == (start, end)


def test_ways_and_workspaces_move_the_same_bytes():
    ascend = path.MACHINES["ascend"]
    moves = {move: by for move, by in ascend["moves"].items() if move != ("UB", "L1")}
    seq_q, seq_kv, d, block_m, block_n = 512, 1024, 64, 128, 64
    extra = traffic.workspaces(seq_q, seq_kv, d, block_n)
    for what, (start, end, size) in path.hand_overs(ascend, block_m, block_n, d).items():
        a_tile = path.through_memory(ascend, path.shortest(moves, start, end), size)
        assert a_tile * (seq_q // block_m) * (seq_kv // block_n) == traffic.WORKSPACE_BYTES[what] * sum(extra[what])
    for machine in (path.MACHINES["nvidia"], path.MACHINES["blackwell"]):
        for start, end, size in path.hand_overs(machine, 128, 128, 128).values():
            assert path.through_memory(machine, path.shortest(machine["moves"], start, end), size) == 0


# ---- as programs ----

@pytest.mark.parametrize("program, words", [
    ("traffic", "--seq-q 0"), ("traffic", "--d -3"), ("traffic", "--block-m 1.5"), ("traffic", "--machine tpu"),
    ("traffic", "--seq 3"), ("traffic", "--seq-kv"), ("smem", "--ahead 9"), ("smem", "--ahead x"), ("smem", "32"),
    ("online_softmax", "--scores 1,x"), ("online_softmax", "--scores 1,2"), ("online_softmax", "--scale 0"),
    ("online_softmax", "--scale nan"), ("online_softmax", "--scores 1,inf --values 1,2"), ("online_softmax", "--m median"),
    ("online_softmax", "--tile 0"), ("split_kv", "--parts 0"), ("blocked", "--map diagonal"), ("blocked", "--dot"),
    ("blocked", "--seq-q 5"), ("blocked", "--block-m 0"),
    ("blocked", "--block-n 99999999999999999999"), ("smem", "--block-m 2147483648"), ("path", "--machine tpu"), ("path", "--from L0C"),
    ("path", "--from L0C --to L3"), ("path", "--drop L0C:UB"), ("path", "--drop L0C"), ("path", "--add L0C:X"),
    ("path", "--drop L0C:GM")])
def test_wrong_options_are_refused_in_one_line(program, words):
    done = run(program, *words.split())
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith(f"{program}.py: ")
    assert any(word in done.stderr for word in words.split())  # it names the option or the value


@pytest.mark.parametrize("program, words", [("operand", []), ("operand", ["bogus"]), ("operand", ["32"]), ("operand", ["5"]),
                                            ("variants", []), ("variants", ["bogus"]), ("variants", ["split", "2"])])
def test_pictures_of_nothing_are_refused_in_one_line(program, words):
    done = subprocess.run([sys.executable, DIAGRAMS / f"{program}.py", *words], capture_output=True, text=True, input="")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith(f"{program}.py: ")


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program, tmp_path):
    """They run and explain themselves; without NumPy too, or they say in one line that they need it."""
    assert run(program).returncode == 0 and "python3 docs/models/" in run(program, "--help").stdout
    (tmp_path / "numpy.py").write_text("raise ImportError")
    done = run(program, PYTHONPATH=str(tmp_path))
    needs = program in ("blocked", "split_kv")
    assert done.returncode == (2 if needs else 0) and len(done.stderr.splitlines()) == needs
    assert not needs or "NumPy" in done.stderr


def test_chapters_name_every_program():
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("0*.md"))
    assert not [program for program in PROGRAMS if f"](models/{program}.py)" not in pages]


def test_chapters_have_answers():
    answers = (ROOT / "docs/answers.md").read_text()
    for name in ("01_attention_and_traffic", "02_online_softmax", "08_two_machines"):
        page = (ROOT / f"docs/{name}.md").read_text()
        exercises = re.findall(r"^(\d)\. ", page.partition("\n## Try\n")[2], re.M)
        section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", answers, re.M | re.S).group(1)
        assert exercises and exercises == re.findall(r"^(\d)\. ", section, re.M)


# ---- pictures ----

DRAWN = [shlex.split(line)[1:] for line in re.findall(r"^model .*", (DIAGRAMS / "draw").read_text(), re.M)]


@pytest.mark.parametrize("name, program, words", [(name, program, words) for name, program, *words in DRAWN])
def test_pictures_are_not_stale(name, program, words):
    """`make docs` draws them anew."""
    text = (DIAGRAMS / f"{name}.dot").read_bytes()
    assert text.decode() == run(program, *words, "--dot").stdout, "make docs"
    svg = (DIAGRAMS / f"{name}.svg").read_text()
    blob = hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
    assert svg.endswith(f"<!-- {name}.dot: {blob} -->\n") and 'fill="white"' in svg, "make docs"
    assert any(f"diagrams/{name}.svg" in page.read_text() for page in (ROOT / "docs").glob("*.md"))
