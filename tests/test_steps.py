"""What every step must get right: closed forms, cases from the field, random shapes, limits of the number formats."""
import math

import numpy as np
import pytest
from conftest import STEPS, assert_close, reference
from hypothesis import HealthCheck, given, settings, strategies

HEAD_DIMS = (32, 64, 96, 128, 256)
LENGTHS = (1, 2, 7, 9, 12, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 191, 193, 257, 320)

steps = pytest.mark.parametrize("step", STEPS)


def column(rows, values, D=128, dtype=np.float16):
    """[1, 1, rows, D] with a constant value in each row."""
    return np.broadcast_to(np.asarray(values, dtype).reshape(1, 1, -1, 1), (1, 1, rows, D)).copy()


# ---- closed forms ----

@steps
def test_every_key_counts_once(step, session_runner):
    """v[j] = j + 1 and equal scores: o = (n + 1) / 2, lse = ln n; a count that is off by one moves lse by 1 / n."""
    for i, seq_q in enumerate(LENGTHS):
        for seq_kv in (LENGTHS[i], LENGTHS[-1 - i], LENGTHS[(7 * i + 3) % len(LENGTHS)]):
            o, lse, _ = session_runner.attend(step, *reference.count(seq_q, seq_kv, 64), "--no-observe")
            expected = (seq_kv + 1) / 2
            assert np.all(np.abs(o.astype(float) - expected) <= 2.0 ** -10 * expected), (seq_q, seq_kv)
            assert np.all(np.abs(lse - math.log(seq_kv)) <= 1e-5), (seq_q, seq_kv)


@steps
def test_natural_logarithm(step, runner):
    _, lse, _ = runner.attend(step, *reference.count(4, 10, 64))
    assert np.allclose(lse, 2.302585, atol=1e-5)


@steps
@pytest.mark.parametrize("seq, lse_value, o_value", [(9, 2.543377, -0.729067), (12, 2.817347, 0.647298)])
def test_short_random_sequences(step, seq, lse_value, o_value, runner):
    o, lse, _ = runner.attend(step, *reference.generate(6, 1, 2, 2, seq, seq, 128), HEAD_DIM=128)
    assert abs(lse[0, 0, 0] - lse_value) < 1e-4 and abs(float(o[0, 0, 0, 0]) - o_value) < 2e-3


@steps
@pytest.mark.parametrize("D", [16, 32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256])
def test_the_last_column_takes_part(step, D, runner):
    """Everything is in column D - 1: a truncated head dimension would give lse = ln 8."""
    q, k, v = np.zeros((1, 1, 1, D), np.float16), np.zeros((1, 1, 8, D), np.float16), np.zeros((1, 1, 8, D), np.float16)
    q[..., -1] = 4
    k[0, 0, :, -1] = np.arange(8)
    v[0, 0, :, -1] = np.arange(8) + 1
    head_dim = min(size for size in (32, 64, 96, 128, 192, 256) if size >= D)
    o, lse, _ = runner.attend(step, q, k, v, "--scale", "0.25", HEAD_DIM=head_dim)
    assert abs(float(o[0, 0, 0, -1]) - 7.420708) < 8e-3 and np.all(o[..., :-1] == 0)
    assert abs(lse[0, 0, 0] - 7.458340) < 1e-4


@steps
@pytest.mark.parametrize("scale, o_value, lse_value, tolerance",
                         [(None, 0.992601, 4.906406, 1e-4), (0.05, 0.916827, 2.486836, 1e-4),
                          (math.sqrt(96), 1, 470.30203, 1e-3), (0, 0.5, 0.693147, 1e-5)])
def test_scale(step, scale, o_value, lse_value, tolerance, runner):
    """The default is 1 / sqrt(96), not of the padded 128."""
    q, k, v = column(1, 1, 96), column(2, [0, 0.5], 96), column(2, [0, 1], 96)
    o, lse, _ = runner.attend(step, q, k, v, *([] if scale is None else ["--scale", repr(scale)]), HEAD_DIM=128)
    assert np.all(np.abs(o.astype(float) - o_value) < 1e-3) and abs(lse[0, 0, 0] - lse_value) < tolerance


@steps
def test_negative_scale(step, runner):
    q, k, v = reference.generate(3, 1, 2, 2, 20, 30, 64)
    o, lse, _ = runner.attend(step, q, k, v, "--scale", "-0.3")
    assert_close(o, lse, reference.attention(q, k, v, scale=-0.3))


# ---- numerics ----

@steps
def test_large_negative_scores(step, runner):
    q, k, v = column(1, 16), column(2, [-120, -119.9375]), column(2, [0, 1])
    o, lse, _ = runner.attend(step, q, k, v, "--scale", repr(1 / 128), HEAD_DIM=128)
    assert np.allclose(o.astype(float), 0.731059, atol=2e-3) and abs(lse[0, 0, 0] + 1918.68674) < 3e-3
    o, lse, _ = runner.attend(step, q, k, v, "--scale", "1", HEAD_DIM=128)
    assert np.allclose(o.astype(float), 1, atol=2e-3) and abs(lse[0, 0, 0] + 245632) < 0.3


@steps
def test_large_positive_scores(step, runner):
    q, k, v = column(1, 256), column(2, [256, 255.875]), column(2, [0, 1])
    o, lse, _ = runner.attend(step, q, k, v, "--scale", repr(2.0 ** -12), HEAD_DIM=128)
    assert np.allclose(o.astype(float), 0.268941, atol=2e-3) and abs(lse[0, 0, 0] - 2048.31326) < 5e-3


@steps
@pytest.mark.parametrize("order", [1, -1])
def test_maximum_that_grows_or_was_first(step, order, runner):
    q, k, v = np.zeros((1, 1, 1, 64)), np.zeros((1, 1, 256, 64)), np.zeros((1, 1, 256, 64))
    q[..., 0] = 8
    k[0, 0, :, 0] = np.arange(256) / 8
    v[0, 0] = np.arange(256)[:, None] + 1
    q, k, v = (x.astype(np.float16) for x in (q, k[:, :, ::order], v[:, :, ::order]))
    o, lse, _ = runner.attend(step, q, k, v)
    assert np.allclose(o.astype(float), 248.48959, atol=0.25) and abs(lse[0, 0, 0] - 34.01629) < 1e-3


@steps
def test_sum_of_large_values(step, runner):
    q, k = np.zeros((1, 1, 1, 64), np.float16), np.zeros((1, 1, 4096, 64), np.float16)
    o, lse, _ = runner.attend(step, q, k, np.full_like(k, 60000), "--no-observe")
    assert np.all(o == np.float16(60000)) and abs(lse[0, 0, 0] - 8.317766) < 1e-5


@steps
def test_scores_near_the_end_of_f16(step, runner):
    """Scores of 1e10: a rounded product scale * max would be off by more than exp2 can take."""
    random = np.random.default_rng(1)
    q, k = (random.uniform(30000, 65000, (1, 2, n, 64)).astype(np.float16) for n in (40, 90))
    v = random.standard_normal((1, 2, 90, 64)).astype(np.float16)
    o, lse, _ = runner.attend(step, q, k, v)
    assert np.all(np.isfinite(o)) and np.all(np.isfinite(lse))
    smallest, largest = v.min(axis=2, keepdims=True), v.max(axis=2, keepdims=True)
    assert np.all(o >= smallest) and np.all(o <= largest)


@steps
def test_nan_of_another_head_stays_there(step, runner):
    """The memory after a head's last key is the next head's first one."""
    for bshd in (False, True):
        q, k, v = reference.generate(8, 1, 2, 2, 50, 70, 64)
        clean = reference.attention(q, k, v)
        k[0, 1], v[0, 1] = np.nan, np.nan
        arrays = [x.swapaxes(1, 2) for x in (q, k, v)] if bshd else [q, k, v]
        o, lse, _ = runner.attend(step, *arrays, *(["--bshd"] if bshd else []))
        o = o.swapaxes(1, 2) if bshd else o
        assert np.all(np.abs(o[:, :1].astype(float) - clean.o[:, :1]) <= clean.bound_o[:, :1])
        assert np.all(np.isnan(o[:, 1])) and not np.any(np.isfinite(lse[:, 1]))


@steps
def test_nan_and_infinity_follow_ieee(step, runner):
    q, k, v = reference.generate(9, 1, 1, 1, 20, 20, 64)
    q[0, 0, 3, 5] = np.nan
    v[0, 0, 7, 2] = np.inf
    o, lse, _ = runner.attend(step, q, k, v)
    assert np.all(np.isnan(o[0, 0, 3])) and np.isnan(lse[0, 0, 3])
    others = np.arange(20) != 3
    assert np.all(np.isposinf(o[0, 0, others, 2])) and np.all(np.isfinite(np.delete(o[0, 0, others], 2, 1)))


@steps
@pytest.mark.parametrize("L, D", [(128, 64), (128, 96), (128, 128), (192, 32)])
def test_published_errors(step, L, D, runner):
    """The walk-through that these kernels follow reports max |dO| < 3.22e-4 and max |dLSE| < 7.55e-7 on "random" input.
    Numbers within 1: of larger ones, rounding O and P to f16 alone costs more."""
    q, k, v = np.random.default_rng(0).uniform(-1, 1, (3, 1, 1, L, D)).astype(np.float16)
    _, _, report = runner.attend(step, q, k, v, HEAD_DIM=D)
    assert report["o"]["max_error"] < 3.22e-4 and report["lse"]["max_error"] < 7.55e-7


# ---- shapes, types, layouts ----

@steps
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=strategies.data())
def test_random_shapes(step, session_runner, data):
    batch, heads = data.draw(strategies.integers(1, 3)), data.draw(strategies.integers(1, 3))
    seq_q, seq_kv = data.draw(strategies.integers(1, 200)), data.draw(strategies.integers(1, 200))
    head_dim = data.draw(strategies.sampled_from(HEAD_DIMS))
    D = 8 * data.draw(strategies.integers(1, head_dim // 8))
    std, bf16, bshd = data.draw(strategies.sampled_from((0.1, 1, 4))), data.draw(strategies.booleans()), data.draw(strategies.booleans())
    q, k, v = reference.generate(data.draw(strategies.integers(0, 99)), batch, heads, heads, seq_q, seq_kv, D, std, bf16)
    arrays = [x.swapaxes(1, 2) for x in (q, k, v)] if bshd else [q, k, v]
    o, lse, _ = session_runner.attend(step, *arrays, *(["--bshd"] if bshd else []), HEAD_DIM=head_dim,
                                      DTYPE="bf16" if bf16 else "f16")
    assert_close(o.swapaxes(1, 2) if bshd else o, lse, reference.attention(q, k, v), bf16)


@steps
@pytest.mark.parametrize("tuned", [dict(ROW_TILES=2), dict(STAGES=1), dict(BLOCK_N=32), dict(WARPS=2, BLOCK_N=128),
                                   dict(WARPS=1, BLOCK_N=16, STAGES=1), dict(HEAD_DIM=128, ROW_TILES=2),
                                   dict(HEAD_DIM=256, BLOCK_N=32, STAGES=1), dict(HEAD_DIM=192, DTYPE="bf16"),
                                   dict(HEAD_DIM=32, ROW_TILES=2, BLOCK_N=128)])
def test_tile_constants(step, tuned, runner):
    bf16 = tuned.get("DTYPE") == "bf16"
    q, k, v = reference.generate(11, 1, 2, 2, 150, 170, tuned.get("HEAD_DIM", 64), bf16=bf16)
    o, lse, _ = runner.attend(step, q, k, v, **tuned)
    assert_close(o, lse, reference.attention(q, k, v), bf16)


@steps
def test_layouts_give_the_same_bits(step, runner):
    q, k, v = reference.generate(12, 2, 3, 3, 70, 90, 64)
    o, lse, _ = runner.attend(step, q, k, v)
    o_bshd, lse_bshd, _ = runner.attend(step, *(x.swapaxes(1, 2) for x in (q, k, v)), "--bshd")
    assert np.array_equal(o, o_bshd.swapaxes(1, 2)) and np.array_equal(lse, lse_bshd)


@steps
def test_f32_files_are_rounded_once(step, runner):
    q, k, v = (np.random.default_rng(i).standard_normal((1, 1, 40, 64)).astype(np.float32) for i in range(3))
    o, lse, _ = runner.attend(step, q, k, v)
    o_16, lse_16, _ = runner.attend(step, *(x.astype(np.float16) for x in (q, k, v)))
    assert np.array_equal(o, o_16) and np.array_equal(lse, lse_16)


@steps
def test_many_heads(step, session_runner):
    """More blocks than a grid's second dimension would take."""
    arguments = "--batch 2 --heads 32800 --seq-q 1 --seq-kv 1 --head-dim 8 --no-observe".split()
    done = session_runner.run(step, *arguments, HEAD_DIM=32, WARPS=1, BLOCK_N=16)
    assert done.returncode == 0, done.stdout + done.stderr


@steps
def test_runs_repeat_bit_for_bit(step, runner):
    q, k, v = reference.generate(13, 1, 4, 4, 130, 130, 64)
    first, second = (runner.attend(step, q, k, v)[:2] for _ in range(2))
    assert np.array_equal(first[0], second[0]) and np.array_equal(first[1], second[1])


@steps
@pytest.mark.parametrize("tuned", [{}, dict(ROW_TILES=2)])
def test_a_row_does_not_depend_on_the_others(step, tuned, runner):
    """Not in one bit, also where the warp takes another way for its neighbours: their maximum moves, or is huge."""
    q, k, v = reference.generate(15, 1, 1, 1, 40, 200, 64)
    o, lse, _ = runner.attend(step, q, k, v, **tuned)
    for factor in (40, 4000):
        changed = q.copy()
        changed[0, 0, 5::8] *= np.float16(factor)
        o_changed, lse_changed, _ = runner.attend(step, changed, k, v, **tuned)
        others = np.arange(40) % 8 != 5
        assert np.array_equal(o[0, 0, others], o_changed[0, 0, others])
        assert np.array_equal(lse[0, 0, others], lse_changed[0, 0, others])
        assert not np.array_equal(o, o_changed)


@pytest.mark.parametrize("step, before", list(zip(STEPS[1:], STEPS)))
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_steps_agree(step, before, dtype, runner):
    q, k, v = reference.generate(14, 1, 3, 3, 100, 150, 64, bf16=dtype == "bf16")
    runner.attend(before, q, k, v, DTYPE=dtype)
    for name in ("o", "lse"):
        (runner.folder / f"{name}.npy").rename(runner.folder / f"before_{name}.npy")
    runner.attend(step, q, k, v, "--previous-out", "before_o.npy", "--previous-lse", "before_lse.npy", DTYPE=dtype)
