"""Attention in float64 with every variant, written from the definition; and what the tests need beside it.

For query row i of head h, with g = h // (Hq / Hkv) its key/value head and "visible" a matrix of booleans:

    s[i,j]   = scale * sum_d q[h,i,d] * k[g,j,d]               then  s = softcap * tanh(s / softcap)  if there is a cap
    l[i]     = sum over visible j of exp(s[i,j])  +  exp(sinks[h]) if there are sinks
    o[h,i,:] = sum over visible j of exp(s[i,j]) / l[i] * v[g,j,:]
    lse[h,i] = ln l[i]                                         a row that sees no key: o = 0, lse = the sink or -inf

Visible is what all of these leave, c = i + keys - queries being the key across from row i (the last from the last):

    window=(left, right)    c - left <= j <= c + right;  -1: no limit on that side
    causal                  j <= c
    block_causal=n          j // n <= c // n
    block_mask, block_size  block_mask[..., i // block_size, j // block_size]

Nothing here is fast or clever: all scores of a head at once, no tiles, no running maximum.

    from reference import attention, generate
    q, k, v = generate(seed=42, B=1, Hq=4, Hkv=2, Sq=100, Sk=163, D=80)
    o, lse, bound_o, bound_lse = attention(q, k, v, causal=True)
"""
from typing import NamedTuple

import numpy as np


class Result(NamedTuple):
    o: np.ndarray           # float64, like q: [B, Hq, Sq, D], or [total_q, Hq, D] with cu_seqlens_q
    lse: np.ndarray         # float64 [B, Hq, Sq], or [Hq, total_q]
    bound_o: np.ndarray     # like o: how far a correct 16-bit kernel may be off (see tolerance)
    bound_lse: np.ndarray   # like lse


def attention(q, k, v, *, scale=None, causal=False, window=(-1, -1), block_causal=0, softcap=0.0, cu_seqlens_q=None,
              cu_seqlens_kv=None, kv_lens=None, block_table=None, sinks=None, block_mask=None, block_size=None):
    """float16 or float32 arrays, or uint16 ones that hold bfloat16 bits:

    q            [B, Hq, Sq, D]         or [total_q, Hq, D] with cu_seqlens_q [B + 1]
    k, v         [B, Hkv, Sk, D]        or [total_kv, Hkv, D] with cu_seqlens_kv [B + 1],
                                        or [pages, page_size, Hkv, D] with block_table [B, max_pages]
    kv_lens      [B] keys in use        of a dense or paged k and v
    sinks        [Hq]                   one more logit for each head; not scaled, not capped
    block_mask   [rows / block_size, keys / block_size], both rounded up, or [B or 1, Hq or 1, ...]
    """
    unit = 2.0 ** -8 if q.dtype == np.uint16 else 2.0 ** -11
    q, k, v = (from_bf16(x) if x.dtype == np.uint16 else np.asarray(x, np.float64) for x in (q, k, v))
    if scale is None:
        scale = q.shape[-1] ** -0.5
    if causal:
        window = (window[0], 0)
    batch = len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    heads = q.shape[1]                                              # Hq, in both layouts of q
    if block_mask is not None:
        block_mask = np.asarray(block_mask, bool)
        block_mask = np.broadcast_to(block_mask, (batch, heads) + block_mask.shape[-2:])

    sequences = []
    for b in range(batch):
        if cu_seqlens_q is None:
            q_b = q[b]                                              # [Hq, rows, D]
        else:
            q_b = q[cu_seqlens_q[b]:cu_seqlens_q[b + 1]].swapaxes(0, 1)
        k_b, v_b = (keys_of(x, b, cu_seqlens_kv, kv_lens, block_table) for x in (k, v))     # [Hkv, keys, D]
        group = heads // k_b.shape[0]
        k_b, v_b = np.repeat(k_b, group, 0), np.repeat(v_b, group, 0)                       # [Hq, keys, D]
        rows, keys = q_b.shape[1], k_b.shape[1]
        seen = visible(rows, keys, window, block_causal)            # [rows, keys]
        seen = np.broadcast_to(seen, (heads, rows, keys))
        if block_mask is not None:
            blocks_of_rows, blocks_of_keys = np.arange(rows) // block_size, np.arange(keys) // block_size
            seen = seen & block_mask[b][:, blocks_of_rows[:, None], blocks_of_keys]
        sequences.append(one_sequence(q_b, k_b, v_b, seen, scale, softcap, sinks, unit))

    if cu_seqlens_q is None:
        return Result(*(np.stack(arrays) for arrays in zip(*sequences)))
    o, lse, bound_o, bound_lse = (np.concatenate(arrays, 1) for arrays in zip(*sequences))  # [Hq, total_q, ...]
    return Result(o.swapaxes(0, 1), lse, bound_o.swapaxes(0, 1), bound_lse)


def keys_of(x, b, cu_seqlens_kv, kv_lens, block_table):
    """The rows of k or v that sequence b uses, wherever they live: [Hkv, keys, D]."""
    if cu_seqlens_kv is not None:
        return x[cu_seqlens_kv[b]:cu_seqlens_kv[b + 1]].swapaxes(0, 1)
    if block_table is None:
        return x[b] if kv_lens is None else x[b, :, :kv_lens[b]]
    page_size = x.shape[1]
    key = np.arange(kv_lens[b])
    return x[np.asarray(block_table)[b, key // page_size], key % page_size].swapaxes(0, 1)


def visible(rows, keys, window, block_causal):
    """[rows, keys] booleans."""
    j = np.arange(keys)[None, :]
    c = np.arange(rows)[:, None] + keys - rows                      # the key across from row i; may be negative
    left, right = window
    seen = np.ones((rows, keys), bool)
    if left >= 0:
        seen &= j >= c - left
    if right >= 0:
        seen &= j <= c + right
    if block_causal:
        seen &= j // block_causal <= c // block_causal              # // rounds down: c < 0 is in block -1 or before
    return seen


def one_sequence(q, k, v, seen, scale, softcap, sinks, unit):
    """q [Hq, rows, D], k and v [Hq, keys, D], seen [Hq, rows, keys] -> o, lse and their bounds, heads first."""
    heads, rows, _ = q.shape
    sink = np.full((heads, 1), -np.inf) if sinks is None else np.asarray(sinks, np.float64)[:, None]    # [Hq, 1]
    with np.errstate(all="ignore"):                                 # infinity and NaN in the input are legal
        s = scale * (q @ k.swapaxes(1, 2))                          # [Hq, rows, keys]
        if softcap:
            s = softcap * np.tanh(s / softcap)
        s = np.where(seen, s, -np.inf)
        # softmax is the same for s - m; with m the largest score no exp overflows
        m = np.maximum(s.max(-1, initial=-np.inf), sink)            # [Hq, rows]
        m = np.where(m == -np.inf, 0.0, m)
        p = np.exp(s - m[..., None])
        l = p.sum(-1) + np.exp(sink - m)
        lse = m + np.log(l)
        p = p / np.where(l == 0, 1.0, l)[..., None]
        # p is 0 where a key is not seen, and 0 * NaN is NaN: such values are added one by one, to those who see them
        finite = np.where(np.isfinite(v), v, 0.0)
        o = p @ finite                                              # [Hq, rows, D]
        for h, j in np.argwhere(~np.isfinite(v).all(-1)):
            who = seen[h, :, j]
            o[h, who] += p[h, who, j, None] * np.where(np.isfinite(v[h, j]), 0.0, v[h, j])
        magnitude = np.where(seen, abs(scale) * (abs(q) @ abs(k).swapaxes(1, 2)), 0.0).max(-1, initial=0.0)
        value_max = np.where(seen.any(1)[..., None], abs(finite), 0.0).max(initial=0.0)
        return o, lse, *tolerance(o, lse, p @ abs(finite), magnitude, k.shape[1], value_max, unit)


def tolerance(o, lse, o_abs, magnitude, seq_kv, value_max, unit):
    """How far a kernel with 16-bit inputs and 32-bit sums may be from o and lse: (bound_o, bound_lse).

    unit       2**-11 for f16, 2**-8 for bf16: the relative error of one rounding to that type
    o_abs      sum_j P |v|, like o: P is rounded once to 16 bits, and the output once more; twice that for headroom
    magnitude  largest |scale| * sum_d |q k| of a row, like lse: what the 32-bit sum of a score may lose of it
    The rest: an output below f16's normal range, and seq_kv values of P below it; value_max is the largest |v| seen.
    """
    score_error = 4e-6 * magnitude
    bound_o = ((2 * unit + 2 * score_error)[..., None] * o_abs + 2 * unit * abs(o) + 2e-5 + 3e-8 * seq_kv * value_max)
    bound_lse = 1e-4 + score_error + 1e-6 * np.where(np.isfinite(lse), abs(lse), 0.0)
    return bound_o, bound_lse


# ---- bfloat16: the upper 16 bits of a float32, kept in uint16 ----

def to_bf16(x):
    """Numbers to bfloat16 bits (uint16): one rounding, to nearest, ties to even."""
    x = np.asarray(x, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        _, exponent = np.frexp(x)                                   # |x| < 2**exponent
        step = np.ldexp(1.0, np.maximum(exponent, -125) - 8)        # 8 significant bits; fewer below 2**-126
        rounded = np.where(np.isfinite(x), np.rint(x / step) * step, x).astype(np.float32)
    return (rounded.view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(bits):
    """bfloat16 bits (uint16) to float64, exactly."""
    with np.errstate(invalid="ignore"):                             # signalling NaNs
        return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


# ---- inputs ----

def generate(seed, B, Hq, Hkv, Sq, Sk, D, std=1, bf16=False):
    """q [B, Hq, Sq, D], k and v [B, Hkv, Sk, D]: normal random numbers, the same for the same seed."""
    random = np.random.default_rng(seed)
    shapes = (B, Hq, Sq, D), (B, Hkv, Sk, D), (B, Hkv, Sk, D)
    numbers = [random.standard_normal(shape) * std for shape in shapes]
    return tuple(to_bf16(x) if bf16 else x.astype(np.float16) for x in numbers)


def count(Sq, Sk, D, bf16=False):
    """q = k = 0 and v[j] = j + 1, so that a row's answer tells which keys it saw: with keys first..last (from 0)
    o = (first + last) / 2 + 1 and lse = ln(last - first + 1)."""
    q, k, v = np.zeros((1, 1, Sq, D)), np.zeros((1, 1, Sk, D)), np.zeros((1, 1, Sk, D))
    v += np.arange(1, Sk + 1)[:, None]
    return tuple(to_bf16(x) if bf16 else x.astype(np.float16) for x in (q, k, v))
