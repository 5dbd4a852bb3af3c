"""Step 06: which keys a row sees and where they live.  Cases with known answers, every pair of options, random larger
sets of them, NaN where nobody looks, bits that must not change, and tiles that must not be visited."""
import math

import numpy as np
import pytest
from conftest import BACKEND, assert_close, reference
from hypothesis import HealthCheck, given, seed, settings, strategies
from problem import HEAD_DIMS, Problem, ends

on_cpu = pytest.mark.skipif(BACKEND != "cpu", reason="about the CPU executor")
INF, NAN = math.inf, math.nan
count, generate = reference.count, reference.generate


def same_bits(a, b):
    return np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])


# ---- causal, windows, blocks ----

@pytest.mark.parametrize("seq_q, seq_kv, masks", [
    *((*seqs, dict(causal=True)) for seqs in ((2, 5), (1, 8), (5, 2), (100, 163), (163, 100), (1, 1), (300, 65))),
    *((40, 40, dict(window=window)) for window in ((3, 0), (0, 0), (2, 1))),
    *((300, 300, dict(window=window)) for window in ((-1, 7), (100, -1), (0, 150), (70, 70))),
    (640, 640, dict(window=(9, 0))),
    *((*seqs, dict(window=window)) for seqs in ((150, 40), (40, 150)) for window in ((10, 0), (0, 30), (5, 200), (200, 3))),
    *((*seqs, dict(block_causal=48)) for seqs in ((50, 170), (170, 50))),
    *((100, 100, dict(block_causal=block)) for block in (32, 1, 300))])
def test_which_keys_a_row_sees(seq_q, seq_kv, masks, runner):
    """v[j] = j + 1 and equal scores tell.  The last row is across from the last key, and rows before the first key may
    see none: then o = 0 and lse = -inf, exactly."""
    across = np.arange(seq_q) + seq_kv - seq_q
    left, right = (-1, 0) if "causal" in masks else masks.get("window", (-1, -1))
    first = np.maximum(across - left, 0) if left >= 0 else 0 * across
    last = np.minimum(across + right, seq_kv - 1) if right >= 0 else 0 * across + seq_kv - 1
    if block := masks.get("block_causal"):
        last = np.minimum((across // block + 1) * block, seq_kv) - 1
    seen = np.maximum(last - first + 1, 0)
    for splits in (None, 3):
        o, lse, _ = Problem(*count(seq_q, seq_kv, 64), **masks, splits=splits).run(runner)
        o, lse, some = o[0, 0].astype(float), lse[0, 0], seen > 0
        expected = ((first + last) / 2 + 1)[some, None]
        assert np.all(np.abs(o[some] - expected) <= 2.0 ** -10 * expected)
        assert np.all(np.abs(lse[some] - np.log(seen[some])) <= 1e-5)
        assert np.all(o[~some] == 0) and np.all(lse[~some] == -INF)


def test_causal_random(runner):
    o, lse, _ = Problem(*generate(42, 1, 4, 2, 100, 163, 80), causal=True).check(runner)
    assert np.allclose(lse[0, 3, [0, 99]], [4.996279, 5.425265], atol=1e-4)
    assert abs(float(o[0, 3, 99, 0]) + 0.056057) < 2e-3


@pytest.mark.parametrize("sink", [0.5, -INF])
def test_a_row_without_keys_has_its_sink(sink, runner):
    for splits in (None, 4):
        o, lse, _ = Problem(*generate(1, 1, 2, 2, 90, 20, 64), causal=True, splits=splits,
                            sinks=np.full(2, sink, np.float32)).check(runner)
        assert np.all(o[:, :, :70] == 0) and np.all(lse[:, :, :70] == sink)


def test_windows_that_limit_nothing(runner):
    arrays = generate(5, 1, 2, 2, 70, 70, 64)
    causal, full = Problem(*arrays, causal=True), Problem(*arrays)
    causal_bits, full_bits = causal.check(runner), full.check(runner)
    for left in (-1, 69, 70, 1000, 2147483647):
        assert_close(*Problem(*arrays, window=(left, 0)).run(runner)[:2], causal.expected())
        assert same_bits(Problem(*arrays, window=(left, -1), causal=True).run(runner), causal_bits)
    for window in ((-1, -1), (2147483647, 2147483647)):
        assert same_bits(Problem(*arrays, window=window).run(runner), full_bits)


@pytest.mark.parametrize("L, D", [(128, 64), (128, 96), (128, 128), (192, 32)])
def test_published_errors_causal(L, D, runner):
    """The causal half of test_published_errors in test_steps.py.  The walk-through says no more of its input than "random",
    and under a causal mask the first rows average few values: rounding those of normal input to f16 costs 4.6e-4 and more
    in every kernel, of uniform numbers from -1 to 1 it costs 2.4e-4 and leaves some draws room for the rounding of P.  Of
    numbers within 1/2 every draw has room."""
    q, k, v = np.random.default_rng(0).uniform(-0.5, 0.5, (3, 1, 1, L, D)).astype(np.float16)
    _, _, report = Problem(q, k, v, causal=True).run(runner)
    assert report["o"]["max_error"] < 3.22e-4 and report["lse"]["max_error"] < 7.55e-7


def test_large_scores_behind_the_mask(runner):
    q, k, v = count(2, 3, 128)
    q[:], k[0, 0], v[0, 0] = 16, np.float16([-120, -119.9375, 120])[:, None], np.float16([0, 1, 100])[:, None]
    for scale, o_value, lse_value, tolerance in (1, 1, -245632, 0.3), (1 / 128, 0.731059, -1918.68674, 3e-3):
        o, lse, _ = Problem(q, k, v, causal=True, scale=scale).check(runner)
        assert np.allclose(o[0, 0, 0].astype(float), o_value, atol=2e-3) and abs(lse[0, 0, 0] - lse_value) < tolerance


@pytest.mark.parametrize("scale, softcap", [(0, 4.0), (0, 1e-30), (-0.3, 2.0), (10, 0.5), (1e30, 2.0), (1e-30, 3.0),
                                            (-1e-38, 3.0)])
def test_softcap(scale, softcap, runner):
    """The kernel caps scores before they are scaled: at softcap / scale, which may be beyond f32."""
    _, lse, _ = Problem(*generate(4, 1, 2, 2, 70, 100, 64), scale=scale, softcap=softcap, causal=True).check(runner)
    assert abs(scale) > 1e-9 or np.allclose(lse, np.log(np.arange(31, 101)), atol=1e-5)


def test_a_softcap_beyond_all_scores(runner):
    arrays = generate(4, 1, 2, 2, 70, 100, 64)
    plain = Problem(*arrays).check(runner)
    assert same_bits(Problem(*arrays, softcap=1e38).run(runner), plain) # beyond f32 in the kernel, and off
    for softcap in (1e30, 1e5):
        Problem(*arrays, softcap=softcap).check(runner)


# ---- packed sequences, groups of heads, sinks, splits, pages ----

@pytest.mark.parametrize("integers", [np.int32, np.int64])
@pytest.mark.parametrize("q_lens, kv_lens, heads, kv_heads, o_rows, seen",
                         [([0, 3, 0, 1], [2, 3, 5, 0], 6, 2, [1, 1.5, 2, 0], [1, 2, 3, 0]),
                          ([0, 1, 0, 1], [0, 3, 0, 5], 9, 3, [2, 3], [3, 5])])
def test_packed_with_empty_sequences(q_lens, kv_lens, heads, kv_heads, o_rows, seen, integers, runner):
    q, k = np.zeros((4, heads, 5, 64), np.float16), np.zeros((4, kv_heads, 5, 64), np.float16)
    v = k + np.arange(1, 6, dtype=np.float16)[:, None]
    o, lse, _ = Problem(q, k, v, q_lens=q_lens, kv_lens=kv_lens, causal=True, integers=integers).check(runner)
    assert np.all(o == np.float16(o_rows)[:, None, None])
    assert np.allclose(np.exp(lse), seen, rtol=1e-5)


def test_packed_with_one_token_in_all(runner):
    q, k, v = (np.repeat(x, 4, 0) for x in generate(1619, 1, 21, 7, 1, 1, 120))
    o, lse, _ = Problem(q, k, v, q_lens=[0, 0, 0, 1], kv_lens=[0, 0, 0, 1], scale=math.sqrt(120)).check(runner)
    assert np.array_equal(o[0], np.repeat(v[0, :, 0], 3, 0))
    assert np.allclose(lse[[0, 20], 0], [103.73631, 204.20526], atol=0.01)


@pytest.mark.parametrize("heads, kv_heads", [(6, 2), (6, 6), (6, 1)])
def test_heads_of_a_group(heads, kv_heads, runner):
    for seq_q in (1, 20, 70): # few rows and more than a tile of them
        q, k, v = generate(3, 2, heads, kv_heads, seq_q, 30, 64)
        v[:] = np.arange(1, kv_heads + 1)[:, None, None]
        o, _, _ = Problem(q, k, v, bshd=seq_q == 20).check(runner)
        expected = np.repeat(np.arange(1, kv_heads + 1), heads // kv_heads)[:, None, None]
        assert np.all(np.abs(o - expected) <= 2.0 ** -10 * expected)


def test_order_of_lse(runner):
    o, lse, _ = Problem(*generate(14, 2, 3, 3, 5, 7, 64), causal=True).check(runner)
    assert np.allclose(lse[1, 2], [1.207824, 1.465096, 3.029231, 3.000465, 2.950621], atol=1e-4)
    assert abs(float(o[1, 2, 4, 0]) - 0.598279) < 2e-3


@pytest.mark.parametrize("sink, o_value, lse_value", [(0, 1.5, math.log(4)), (math.log(5), 0.75, math.log(8)),
                                                      (-INF, 2, math.log(3)), (200, 0, 200), (-200, 2, math.log(3))])
def test_sinks(sink, o_value, lse_value, runner):
    """A logit of its own: not scaled, in the sum once however many splits there are."""
    for splits in (None, 1, 5):
        o, lse, _ = Problem(*count(1, 3, 64), sinks=np.float32([sink]), splits=splits, scale=0.5).check(runner)
        assert np.allclose(o.astype(float), o_value, atol=1e-3) and np.allclose(lse, lse_value, atol=1e-5)


@pytest.mark.parametrize("seq_kv, all_splits", [(5, (1, 2, 3, 8, 64)), (1000, (1, 7, 16, 1000))])
def test_splits(seq_kv, all_splits, runner):
    for splits in all_splits:
        o, lse, _ = Problem(*count(1, seq_kv, 64), splits=splits).check(runner)
        assert np.all(o == np.float16((seq_kv + 1) / 2)) and abs(lse[0, 0, 0] - math.log(seq_kv)) < 1e-5


def test_empty_splits(runner):
    """Nothing merged with nothing is nothing; one part that is not empty comes back bit for bit."""
    one_tile = Problem(*generate(2, 1, 2, 2, 20, 40, 64))
    alone = one_tile.run(runner, splits=1)
    for splits in (2, 3, 4, 8, 100):
        o, lse, _ = Problem(*count(4, 5, 64), kv_lens=[0], splits=splits).run(runner)
        assert np.all(o == 0) and np.all(lse == -INF)
        o, lse, _ = Problem(*count(3, 1, 64), causal=True, splits=splits).run(runner)
        assert np.array_equal(o[0, 0, :, 0], [0, 0, 1]) and np.array_equal(lse[0, 0], np.float32([-INF, -INF, 0]))
        assert same_bits(one_tile.run(runner, splits=splits), alone)


@pytest.mark.parametrize("waste, integers", [(777, np.int32), (NAN, np.int64)])
@pytest.mark.parametrize("page_size", [16, 1, 7])
def test_pages(waste, integers, page_size, runner):
    lens = [1, 16, 17, 40]
    q, k, v = (np.repeat(x, 4, 0) for x in count(1, 40, 64))
    falling = np.arange(sum(-(-n // page_size) for n in lens) + 1)[::-1]
    o, lse, _ = Problem(q, k, v, kv_lens=lens, page_size=page_size, order=falling, waste=waste,
                        integers=integers).check(runner)
    assert np.all(o[:, 0, 0] == np.float16([1, 8.5, 9, 20.5])[:, None])
    assert np.allclose(np.exp(lse[:, 0, 0]), lens, rtol=1e-5)


# ---- NaN in memory of no visible key; what pages and caches hold beside keys is NaN in every Problem ----

def test_nan_of_another_sequence_stays_there(runner):
    arrays = generate(21, 3, 4, 2, 70, 100, 64)
    lens, others = dict(q_lens=[30, 70, 5], kv_lens=[100, 37, 90]), np.r_[0:30, 100:105]
    clean = Problem(*arrays, **lens).expected()
    for x in arrays:
        x[1] = NAN
    for splits in (None, 3):
        o, lse, _ = Problem(*arrays, **lens, splits=splits).run(runner)
        assert_close(o[others], lse[:, others], reference.Result(clean.o[others], clean.lse[:, others],
                                                                 clean.bound_o[others], clean.bound_lse[:, others]))
        assert np.all(np.isnan(o[30:100])) and not np.any(np.isfinite(lse[:, 30:100]))


@pytest.mark.parametrize("score", [-40, 40])
def test_no_sink_beside_an_infinite_maximum(score, runner):
    """scale * m overflows to -inf or inf: P is 1 for the only key all the same, and no sink is not a number beside it."""
    q, k, v = np.full((1, 1, 16, 64), 0.5, "f2"), np.full((1, 1, 1, 64), score / 32, "f2"), generate(24, 1, 1, 1, 1, 1, 64)[2]
    o, lse, _ = runner.attend("step06_variants", q, k, v, "--scale", "1e38")
    assert np.array_equal(o, np.broadcast_to(v, o.shape)) and np.all(lse == np.inf * score)


@pytest.mark.parametrize("masks, unseen", [(dict(window=(20, 0)), slice(0, 170)), (dict(window=(0, 30)), slice(0, 190)),
                                           (dict(window=(40, 5), block_causal=8), slice(0, 150)),
                                           (dict(block_mask=np.arange(7)[None] != 3, block_size=32), slice(96, 128))])
def test_nan_that_no_row_sees(masks, unseen, runner):
    q, k, v = generate(22, 1, 2, 2, 10, 200, 64)
    clean = Problem(q, k, v, **masks).expected()
    k[:, :, unseen], v[:, :, unseen] = NAN, NAN
    for splits in (None, 3):
        o, lse, _ = Problem(q, k, v, **masks, splits=splits).run(runner)
        assert_close(o, lse, clean)


# ---- options together ----

OPTIONS = ("causal", "window", "varlen", "gqa", "paged", "splits", "sink", "block-causal", "block-mask", "softcap", "bshd",
           "kv-lens")


def legal(options):
    contradictions = {"block-mask", "bshd"} | (set() if "paged" in options else {"kv-lens"})
    return "varlen" not in options or not contradictions & options


def combine(options, lens, *, numbers=0, D=64, bf16=False, window=(50, 20), block=24, page_size=16, splits=3, per_head=True):
    """The problem with these options; lens: [(query rows, keys)] of each entry, as far as the options let them differ."""
    random = np.random.default_rng(numbers)
    q_lens, kv_lens = (list(x) for x in zip(*lens))
    q_lens[0], kv_lens[0] = q_lens[0] or 1, kv_lens[0] or ("varlen" in options) # a file without elements is no input
    batch, heads, kv_heads, seq_q, seq_kv = len(lens), 4 if "gqa" in options else 2, 2, max(q_lens), max(1, *kv_lens)
    keys = seq_kv if "paged" not in options else (-(-max(kv_lens) // page_size) + 1) * page_size # of the block mask
    mask_shape = ((batch, heads) if per_head else ()) + (-(-seq_q // block), -(-keys // block))
    sinks = np.where(random.random(heads) < 0.2, -INF, 3 * random.standard_normal(heads)).astype(np.float32)
    arguments = {"causal": dict(causal=True), "window": dict(window=window), "varlen": dict(q_lens=q_lens, kv_lens=kv_lens),
                 "paged": dict(page_size=page_size, kv_lens=kv_lens), "splits": dict(splits=splits),
                 "sink": dict(sinks=sinks),
                 "block-causal": dict(block_causal=block), "softcap": dict(softcap=1.5), "bshd": dict(bshd=True),
                 "block-mask": dict(block_mask=random.random(mask_shape) < 0.5, block_size=block),
                 "kv-lens": dict(kv_lens=kv_lens), "gqa": {}}
    together = {name: value for option in options for name, value in arguments[option].items()}
    return Problem(*generate(numbers, batch, heads, kv_heads, seq_q, seq_kv, D, bf16=bf16), **together)


LONG = [(100, 150), (37, 211), (90, 0)]  # queries and keys of each entry
SHORT = [(5, 150), (1, 211), (3, 0)]     # the heads of a group share blocks, also those of a single warp


@pytest.mark.parametrize("first", OPTIONS)
def test_every_pair(first, session_runner):
    """And, where they are the same, every option alone."""
    for i, second in enumerate(OPTIONS):
        if first <= second and legal({first, second}):
            for lens in LONG, SHORT:
                if lens == LONG or "gqa" in (first, second):
                    combine({first, second}, lens, numbers=i, bf16=i % 2 == 1).check(session_runner, "--no-observe")


@strategies.composite
def problems(draw, head_dim):
    length = strategies.sampled_from((0, 1, 64)) | strategies.integers(0, 200)
    limit = strategies.just(-1) | strategies.integers(0, 150)
    of = {name: strategies.sampled_from(values) for name, values in dict(
        D=(head_dim, head_dim - 8, head_dim - 16), bf16=(False, True), per_head=(False, True), numbers=range(99),
        block=(1, 16, 33, 64, 100), page_size=(1, 3, 16, 48), splits=(1, 2, 3, 8, 64)).items()}
    return combine(draw(strategies.sets(strategies.sampled_from(OPTIONS), min_size=3).filter(legal)),
                   draw(strategies.lists(strategies.tuples(length, length), min_size=1, max_size=3)),
                   window=draw(strategies.tuples(limit, limit)), **{name: draw(values) for name, values in of.items()})


@pytest.mark.parametrize("observe, examples", [(["--no-observe"], 30), ([], 5)])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_random_sets(head_dim, observe, examples, session_runner):
    @seed(head_dim + examples)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(problem=problems(head_dim))
    def check(problem):
        problem.check(session_runner, *observe)

    check()


@pytest.mark.parametrize("tuned", [dict(ROW_TILES=2), dict(STAGES=1), dict(WARPS=2, BLOCK_N=128),
                                   dict(WARPS=1, BLOCK_N=16, STAGES=1)])
def test_tile_constants(tuned, runner):
    for options in ({"causal", "gqa", "varlen", "splits", "sink"}, {"window", "gqa", "paged", "splits"},
                    {"block-mask", "block-causal", "gqa", "bshd", "softcap"}):
        for lens in LONG, SHORT:
            combine(options, lens).check(runner, **tuned)


# ---- bits that must not change ----

def test_pages_and_contiguous_give_the_same_bits(runner):
    arrays, lens = generate(31, 3, 4, 2, 20, 150, 64), [150, 1, 77]
    for masks in (dict(), dict(causal=True), dict(window=(60, 3), splits=3)):
        contiguous = Problem(*arrays, kv_lens=lens, **masks).check(runner)
        for page_size in (1, 16, 48, 200):
            assert same_bits(Problem(*arrays, kv_lens=lens, page_size=page_size, **masks).run(runner), contiguous)


def test_runs_repeat_bit_for_bit(runner):
    for options in ({"causal", "gqa", "kv-lens"}, {"varlen", "paged", "window", "sink"}):
        problem = combine(options, [(100, 150), (1, 211), (37, 40)])
        first = problem.run(runner, splits=5)
        assert all(same_bits(problem.run(runner, splits=5), first) for _ in range(3))
        assert BACKEND != "cpu" or same_bits(problem.run(runner), problem.run(runner, splits=1)) # a GPU may choose more


@pytest.mark.parametrize("splits", [1, 3, 8])
@pytest.mark.parametrize("layout", [dict(), dict(page_size=16), dict(q_lens=[1, 60, 100])])
def test_neighbours_change_nothing(splits, layout, runner):
    arrays, lens = generate(32, 3, 4, 2, 100, 300, 64), [3, 300, 130]
    o, lse, _ = Problem(*arrays, kv_lens=lens, causal=True, splits=splits, **layout).check(runner)
    for b in range(3):
        own = {name: value[b:b + 1] if name == "q_lens" else value for name, value in layout.items()}
        alone = Problem(*(x[b:b + 1] for x in arrays), kv_lens=lens[b:b + 1], causal=True, splits=splits, **own).run(runner)
        rows = slice(*ends(layout["q_lens"])[b:b + 2]) if "q_lens" in layout else slice(b, b + 1)
        assert same_bits(alone, (o[rows], lse[:, rows] if "q_lens" in layout else lse[rows])), b


# ---- tiles outside the visible range ----

@on_cpu
@pytest.mark.parametrize("seq_q, seq_kv, options, tiles",
                         [(256, 256, dict(), 16),
                          (256, 256, dict(causal=True), 1 + 2 + 3 + 4),
                          (256, 256, dict(causal=True, splits=2), 1 + 2 + 3 + 4),
                          (64, 256, dict(causal=True), 4),
                          (256, 64, dict(causal=True), 1),
                          (256, 256, dict(window=(0, 0)), 4),
                          (256, 256, dict(window=(63, 0)), 1 + 2 + 2 + 2),
                          (256, 256, dict(window=(1, 1)), 2 + 3 + 3 + 2),
                          (256, 256, dict(window=(100, -1), causal=True), 1 + 2 + 3 + 3),
                          (256, 256, dict(block_causal=128), 2 + 2 + 4 + 4),
                          (256, 256, dict(block_mask=np.eye(4, dtype=bool), block_size=64), 4),
                          (256, 256, dict(block_mask=np.eye(8, k=4, dtype=bool), block_size=32), 2),
                          (256, 256, dict(block_mask=np.ones((4, 4), bool), block_size=64, causal=True), 1 + 2 + 3 + 4),
                          (128, 256, dict(kv_lens=[65]), 2 * 2),
                          (64, 256, dict(kv_lens=[0]), 0),
                          (64, 256, dict(kv_lens=[200], page_size=16, causal=True), 4),
                          (128, 300, dict(q_lens=[128], kv_lens=[129], causal=True), 2 + 3)])
def test_tiles_that_are_visited(seq_q, seq_kv, options, tiles, runner):
    """A tile of 64 x 64 at D = 64 takes each of 4 warps 32 mma for S and 32 for P V."""
    _, _, report = Problem(*generate(41, 1, 1, 1, seq_q, seq_kv, 64), **options).check(runner)
    assert report["counters"]["mma"] == tiles * 4 * 64
