"""The two references, common/reference.c and common/reference.py, against each other and against values known by hand;
and the comparison in reference.c against outputs that are wrong in known ways."""
import ctypes
import functools
import math
import os
import shlex
import subprocess
import sys
import tempfile
from ctypes import POINTER, c_double, c_float, c_int, c_int64, c_ubyte, c_void_p
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

COMMON = Path(__file__).resolve().parent.parent / "common"
INF = math.inf
LN = math.log

sys.path.insert(0, str(COMMON))
import reference  # noqa: E402

attention, count, generate = reference.attention, reference.count, reference.generate


# ---- reference.c as a library: the structs of attention.h and reference.h, field by field ----

class Strides(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("batch", "head", "row")]


class AttentionParams(ctypes.Structure):
    _fields_ = (
        [(name, c_void_p) for name in ("q", "k", "v", "o", "lse", "workspace")]
        + [(name, Strides) for name in ("q_stride", "k_stride", "v_stride", "o_stride", "lse_stride")]
        + [(name, c_int) for name in ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim")]
        + [(name, c_float) for name in ("scale", "scale_log2")]
        + [(name, c_int) for name in ("window_left", "window_right", "block_causal")]
        + [("softcap", c_float), ("num_splits", c_int)]
        + [(name, c_void_p) for name in ("cu_seqlens_q", "cu_seqlens_kv", "kv_lens", "block_table")]
        + [("page_size", c_int), ("max_pages", c_int), ("sinks", c_void_p), ("block_mask", c_void_p)]
        + [("mask_block", c_int)] + [(name, c_int64) for name in ("mask_batch", "mask_head", "mask_row")])


class View(ctypes.Structure):
    """The fields of reference.h's Reference that are looked at here."""
    _fields_ = ([(name, c_int64) for name in ("o_count", "lse_count", "rows", "rows_checked")]
                + [(name, POINTER(c_double)) for name in ("o", "o_abs", "lse", "magnitude")]
                + [("row_state", POINTER(c_ubyte))])


class Comparison(ctypes.Structure):
    _fields_ = [("compared", c_int64), ("failures", c_int64), ("not_finite", c_int64), ("max_error", c_double),
                ("bound", c_double), ("index", c_int64), ("worst_ratio", c_double), ("worst_index", c_int64)]


GLUE = """
#include <stdlib.h>
#include "reference.h"
typedef struct View {
    int64_t o_count, lse_count, rows, rows_checked;
    double *o, *o_abs, *lse, *magnitude;
    unsigned char *row_state;
} View;
Reference *new_reference(const AttentionParams *p, int bf16, double max_work, View *v)
{
    Reference *r = malloc(sizeof *r);
    if (reference_compute(p, bf16, max_work, r) != 0) return NULL;
    *v = (View){r->o_count, r->lse_count, r->rows, r->rows_checked, r->o, r->o_abs, r->lse, r->magnitude, r->row_state};
    return r;
}
void delete_reference(Reference *r)
{
    reference_free(r);
    free(r);
}
"""
MIRRORED = (Strides, AttentionParams, Comparison)


@functools.cache
def library():
    """reference.c and the glue, compiled; the structs' fields are where ctypes puts them, or this fails."""
    places = ", ".join(f"sizeof({s.__name__})" + "".join(f", offsetof({s.__name__}, {f[0]})" for f in s._fields_)
                       for s in MIRRORED)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "glue.c"), Path(folder, "reference.so")
        source.write_text(GLUE + f"const int64_t places[] = {{{places}}};\n")
        command = shlex.split(os.environ.get("CC", "cc")) + [
            "-shared", "-fPIC", "-O2", f"-I{COMMON}", "-o", str(target), str(COMMON / "reference.c"), str(source),
            "-lm", "-lpthread"]
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr[:2000]
        lib = ctypes.CDLL(str(target))
    expected = [n for s in MIRRORED for n in [ctypes.sizeof(s)] + [getattr(s, f[0]).offset for f in s._fields_]]
    assert list((c_int64 * len(expected)).in_dll(lib, "places")) == expected, "a struct here differs from its header"
    lib.new_reference.argtypes = [POINTER(AttentionParams), c_int, c_double, POINTER(View)]
    lib.new_reference.restype = c_void_p
    lib.delete_reference.argtypes, lib.delete_reference.restype = [c_void_p], None
    for name, outputs in (("compare_o", 1), ("compare_lse", 1), ("compare_o_pair", 2), ("compare_lse_pair", 2)):
        getattr(lib, name).argtypes = [c_void_p, POINTER(AttentionParams)] + [c_void_p] * outputs
        getattr(lib, name).restype = Comparison
    return lib


def spread(x, swapped=False, padding=0):
    """A copy of x with the same indices but other strides: the two axes before the last swapped in memory, padding
    elements after each row.  What lies between is NaN."""
    nan = 0x7fc0 if x.dtype == np.uint16 else np.nan
    shape = x.shape[:-3] + (x.shape[-2], x.shape[-3]) if swapped else x.shape[:-1]
    memory = np.full(shape + (x.shape[-1] + padding,), nan, x.dtype)[..., :x.shape[-1]]
    view = memory.swapaxes(-2, -3) if swapped else memory
    view[...] = x
    return view


def strides_of(x, batch, head, row):
    """Strides in elements, given which axis of x is which; batch None: packed, all sequences in one."""
    step = [s // x.itemsize for s in x.strides]
    return Strides(0 if batch is None else step[batch], step[head], step[row])


class CReference:
    """What reference.c answers.  Takes what reference.attention takes, and strides."""

    def __init__(self, q, k, v, *, scale=None, causal=False, window=(-1, -1), block_causal=0, softcap=0.0,
                 cu_seqlens_q=None, cu_seqlens_kv=None, kv_lens=None, block_table=None, sinks=None, block_mask=None,
                 block_size=None, max_work=1e15, swapped=False, padding=0):
        self.bf16 = q.dtype == np.uint16
        q, k = spread(q, swapped, padding), spread(k, swapped, 2 * padding)     # no two arrays have the same strides
        v, o = spread(v, not swapped, padding), spread(np.zeros_like(q), swapped, 3 * padding)
        p = self.params = AttentionParams(q=q.ctypes.data, k=k.ctypes.data, v=v.ctypes.data)
        self.alive = [q, k, v]

        def index_array(x, dtype):
            self.alive.append(np.ascontiguousarray(x, dtype))
            return self.alive[-1].ctypes.data

        p.heads, p.head_dim = q.shape[1], q.shape[-1]
        q_axes = (0, 1, 2) if cu_seqlens_q is None else (None, 1, 0)
        kv_axes = (0, 1, 2)
        if cu_seqlens_kv is not None:
            kv_axes = (None, 1, 0)
        elif block_table is not None:
            kv_axes = (0, 2, 1)
        p.kv_heads = k.shape[kv_axes[1]]
        if cu_seqlens_q is None:
            p.batch, p.seq_q = len(q), q.shape[2]
            lse_shape = q.shape[:3]
            p.lse_stride = Strides(p.heads * p.seq_q, p.seq_q, 1)
        else:
            p.batch, p.seq_q = len(cu_seqlens_q) - 1, max(np.diff(cu_seqlens_q))
            p.cu_seqlens_q = index_array(cu_seqlens_q, np.int64)
            lse_shape = (p.heads, len(q))
            p.lse_stride = Strides(0, len(q), 1)
        if cu_seqlens_kv is not None:
            p.seq_kv = max(np.diff(cu_seqlens_kv))
            p.cu_seqlens_kv = index_array(cu_seqlens_kv, np.int64)
        elif block_table is not None:
            p.page_size, p.max_pages = k.shape[1], np.shape(block_table)[1]
            p.seq_kv = p.page_size * p.max_pages
            p.block_table = index_array(block_table, np.int32)
        else:
            p.seq_kv = k.shape[2]
        if kv_lens is not None:
            p.kv_lens = index_array(kv_lens, np.int64)
        p.q_stride, p.o_stride = strides_of(q, *q_axes), strides_of(o, *q_axes)
        p.k_stride, p.v_stride = strides_of(k, *kv_axes), strides_of(v, *kv_axes)
        p.scale = p.head_dim ** -0.5 if scale is None else scale
        p.scale_log2 = p.scale / LN(2)
        p.window_left, p.window_right = window[0], 0 if causal else window[1]
        p.block_causal, p.softcap = block_causal, softcap
        if sinks is not None:
            p.sinks = index_array(sinks, np.float32)
        if block_mask is not None:
            mask = np.asarray(block_mask, np.uint8)
            p.block_mask, p.mask_block, p.mask_row = index_array(mask, np.uint8), block_size, mask.shape[-1]
            if mask.ndim == 4:
                step = mask.shape[-1] * mask.shape[-2]
                p.mask_head = step if mask.shape[1] > 1 else 0
                p.mask_batch = step * mask.shape[1] if mask.shape[0] > 1 else 0
        self.library, self.result = library(), View()
        self.handle = self.library.new_reference(p, self.bf16, max_work, self.result)
        assert self.handle
        self.o_layout, self.lse_shape = o, lse_shape
        self.o, self.o_abs = self.like_o(self.result.o), self.like_o(self.result.o_abs)
        self.lse, self.magnitude = self.like_lse(self.result.lse), self.like_lse(self.result.magnitude)
        self.row_state = self.like_lse(self.result.row_state)

    def __del__(self):
        if hasattr(self, "handle"):
            self.library.delete_reference(self.handle)

    def like_o(self, pointer):
        o = self.o_layout
        if o.size == 0:
            return np.zeros(o.shape)
        memory = np.ctypeslib.as_array(pointer, (self.result.o_count,))
        steps = [s // o.itemsize * 8 for s in o.strides]
        assert sum((n - 1) * s for n, s in zip(o.shape, steps)) < memory.nbytes
        return np.lib.stride_tricks.as_strided(memory, o.shape, steps).copy()

    def like_lse(self, pointer):
        return np.ctypeslib.as_array(pointer, (max(self.result.lse_count, 1),))[:self.result.lse_count] \
            .reshape(self.lse_shape).copy()

    def compare(self, o=None, lse=None, previous=None):
        """The comparison of one output, o or lse, given as float64 and rounded here as a kernel's would be."""
        def rounded(x):
            if lse is not None:
                return np.ascontiguousarray(x, np.float32)
            self.o_layout[...] = reference.to_bf16(x) if self.bf16 else x.astype(np.float16)
            memory = self.o_layout
            while memory.base is not None:
                memory = memory.base
            return memory.copy()
        name = "compare_o" if lse is None else "compare_lse"
        with np.errstate(over="ignore"):
            arrays = [rounded(x) for x in ([o if lse is None else lse] + ([] if previous is None else [previous]))]
        return getattr(self.library, name + ("" if previous is None else "_pair"))(
            self.handle, self.params, *(x.ctypes.data for x in arrays))


def fails(comparison):
    assert (comparison.failures > 0) == (not comparison.worst_ratio <= 1)
    return comparison.failures > 0


# ---- values known by hand: both references must give them ----

def both(q, k, v, **options):
    """(o, lse) of reference.py, and of reference.c in two memory layouts."""
    result = attention(q, k, v, **options)
    answers = [(result.o, result.lse)]
    for layout in ({}, {"swapped": True, "padding": 8}):
        c = CReference(q, k, v, **options, **layout)
        answers.append((c.o, c.lse))
    return answers


def expect(problem, o=None, lse=None, rows=slice(None), o_atol=1e-12, lse_atol=1e-6, **options):
    """Every column of o is the number given for its row, and so is lse."""
    for got_o, got_lse in both(*problem, **options):
        if o is not None:
            want = np.broadcast_to(np.asarray(o, float)[..., None], got_o[..., rows, :].shape)
            np.testing.assert_allclose(got_o[..., rows, :], want, rtol=0, atol=o_atol)
        if lse is not None:
            np.testing.assert_allclose(got_lse[..., rows], np.broadcast_to(lse, got_lse[..., rows].shape), rtol=0,
                                       atol=lse_atol)


def one_head(q, k, v, D):
    """q, k, v [1, 1, S, D] from one number for each row."""
    return tuple(np.repeat(np.asarray(x, np.float16)[None, None, :, None], D, 3) for x in (q, k, v))


def test_causal_is_aligned_to_the_last_key():                                   # H01
    expect(count(2, 5, 64), [2.5, 3.0], [1.386294, 1.609438], causal=True)
    expect(count(1, 8, 64), [4.5], [2.079442], causal=True)


def test_rows_that_see_no_key():                                                # H02
    expect(count(5, 2, 64), [0, 0, 0, 1, 1.5], [-INF, -INF, -INF, 0, LN(2)], causal=True)
    expect(count(3, 1, 64), [0, 0, 1], [-INF, -INF, 0], causal=True)            # H17
    expect(count(3, 0, 64), 0, -INF)
    expect(count(3, 0, 64), 0, 0.5, sinks=[0.5])
    expect(count(5, 2, 64), [0, 0, 0, 0.5, 1], [0, 0, 0, LN(2), LN(3)], causal=True, sinks=[0.0])


def test_causal_with_more_keys_than_rows():                                     # H03
    i = np.arange(100)
    expect(count(100, 163, 64), (i + 65) / 2, np.log(i + 64), causal=True)
    for o, lse in both(*generate(42, 1, 4, 2, 100, 163, 80), causal=True):
        assert lse[0, 3, 0] == pytest.approx(4.996279, abs=1e-6)
        assert lse[0, 3, 99] == pytest.approx(5.425265, abs=1e-6)
        assert o[0, 3, 99, 0] == pytest.approx(-0.056057, abs=1e-6)


def test_window_counts_keys_beside_the_diagonal_one():                          # H04
    rows = [0, 1, 3, 20, 39]
    expect(count(40, 40, 64), [1, 1.5, 2.5, 19.5, 38.5], np.log([1, 2, 4, 4, 4]), rows, window=(3, 0))
    expect(count(40, 40, 64), np.arange(40) + 1, 0, window=(0, 0))
    expect(count(40, 40, 64), [1.5, 20.5, 39], np.log([2, 4, 3]), [0, 20, 39], window=(2, 1))
    expect(count(640, 640, 16), np.arange(9, 640) - 3.5, 2.302585, slice(9, None), window=(9, 0))


def test_wide_windows_are_no_windows():                                         # H05
    problem = generate(5, 1, 2, 2, 70, 70, 64)
    for plain, windows in (({"causal": True}, [(-1, 0), (69, 0), (70, 0), (1000, 0)]), ({}, [(-1, -1), (69, 69)])):
        want = attention(*problem, **plain)
        for window in windows:
            for o, lse in both(*problem, window=window):
                np.testing.assert_allclose(o, want.o, rtol=0, atol=1e-12)
                np.testing.assert_allclose(lse, want.lse, rtol=0, atol=1e-12)


def test_block_causal():                                                        # H21
    blocks = np.minimum(np.arange(100) // 32 * 32 + 32, 100)
    expect(count(100, 100, 64), (blocks + 1) / 2, np.log(blocks), block_causal=32)
    # rows 0..39 stand before the first key: block -1 of C's division would be block 0
    ends = np.minimum(np.maximum((np.arange(100) - 40) // 32 + 1, 0) * 32, 60)
    with np.errstate(divide="ignore"):
        expect(count(100, 60, 64), np.where(ends > 0, (ends + 1) / 2, 0), np.log(ends), block_causal=32)


SIZES = [1, 2, 7, 9, 12, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 191, 193, 257, 320]


def test_every_length():                                                        # H06
    for seq_q in SIZES:
        for seq_kv in SIZES if seq_q < 34 else SIZES[-1:]:
            expect(count(seq_q, seq_kv, 8), (seq_kv + 1) / 2, LN(seq_kv), lse_atol=1e-12)
    for size, want_lse, want_o in ((9, 2.543377, -0.729067), (12, 2.817347, 0.647298)):
        for o, lse in both(*generate(6, 1, 2, 2, size, size, 128)):
            assert lse[0, 0, 0] == pytest.approx(want_lse, abs=1e-6)
            assert o[0, 0, 0, 0] == pytest.approx(want_o, abs=1e-6)


@pytest.mark.parametrize("D", [16, 20, 32, 40, 46, 63, 64, 72, 80, 96, 112, 128, 160, 192, 256])
def test_the_last_column_counts(D):                                             # H07
    q, k, v = np.zeros((1, 1, 1, D), np.float16), np.zeros((1, 1, 8, D), np.float16), np.zeros((1, 1, 8, D), np.float16)
    q[..., -1] = 4
    k[..., -1] = np.arange(8)
    v[..., -1] = np.arange(8) + 1
    options = {"scale": 0.25}
    result = attention(q, k, v, **options)
    answers = [(result.o, result.lse)] if D % 8 else both(q, k, v, **options)   # reference.c: multiples of 8
    for o, lse in answers:
        assert o[0, 0, 0, -1] == pytest.approx(7.420708, abs=1e-6) and not o[..., :-1].any()
        assert lse[0, 0, 0] == pytest.approx(7.458340, abs=1e-6)


@pytest.mark.parametrize("scale, o, lse", [(None, 0.992601, 4.906406), (0.05, 0.916827, 2.486836),
                                           (math.sqrt(96), 1, 470.30203), (0.0, 0.5, LN(2))])
def test_scale(scale, o, lse):                                                  # H08
    expect(one_head([1], [0, 0.5], [0, 1], 96), o, lse, scale=scale, o_atol=1e-6, lse_atol=5e-5)


def test_large_scores():                                                        # H09, H10, H11
    problem = one_head([16], [-120, -119.9375], [0, 1], 128)
    expect(problem, 0.731059, -1918.68674, scale=1 / 128, o_atol=1e-6, lse_atol=1e-5)
    expect(problem, 1, -245632, scale=1.0, o_atol=1e-6)
    later = one_head([16, 16], [-120, -119.9375, 120], [0, 1, 100], 128)
    expect(later, 0.731059, -1918.68674, slice(0, 1), causal=True, scale=1 / 128, o_atol=1e-6, lse_atol=1e-5)
    expect(one_head([256], [256, 255.875], [0, 1], 128), 0.268941, 2048.31326, scale=2.0 ** -12, o_atol=1e-6,
           lse_atol=1e-5)
    q, k, v = count(1, 256, 64)
    q[..., 0], k[0, 0, :, 0] = 8, np.arange(256) / 8
    expect((q, k, v), 248.48959, 34.01629, o_atol=1e-5, lse_atol=1e-5)
    expect((q, k[:, :, ::-1], v[:, :, ::-1]), 248.48959, 34.01629, o_atol=1e-5, lse_atol=1e-5)
    q, k, v = count(1, 4096, 8)
    expect((q, k, np.full_like(v, 60000)), 60000, 8.317766, o_atol=1e-7)


def packed(q_lens, kv_lens, heads, kv_heads, D=64):
    """H12: q = k = 0, v = 1, 2, ... in every sequence."""
    v = np.concatenate([np.arange(1, n + 1) for n in kv_lens]).astype(np.float16)
    v = np.broadcast_to(v[:, None, None], (len(v), kv_heads, D))
    return (np.zeros((sum(q_lens), heads, D), np.float16), np.zeros_like(v), v), {
        "cu_seqlens_q": np.cumsum([0] + q_lens), "cu_seqlens_kv": np.cumsum([0] + kv_lens), "causal": True}


def test_packed_sequences():                                                    # H12
    for q_lens, kv_lens, heads, kv_heads, want_o, want_lse in (
            ([0, 3, 0, 1], [2, 3, 5, 0], 6, 2, [1, 1.5, 2, 0], [0, LN(2), LN(3), -INF]),
            ([0, 1, 0, 1], [0, 3, 0, 5], 9, 3, [2, 3], [LN(3), LN(5)])):
        problem, options = packed(q_lens, kv_lens, heads, kv_heads)
        for o, lse in both(*problem, **options):
            assert lse.shape == (heads, sum(q_lens))
            np.testing.assert_allclose(o, np.broadcast_to(np.reshape(want_o, (-1, 1, 1)), o.shape), atol=1e-12)
            np.testing.assert_allclose(lse, np.broadcast_to(want_lse, lse.shape), atol=1e-12)
    q, k, v = (x[0].swapaxes(0, 1) for x in generate(1619, 1, 21, 7, 1, 1, 120))
    for o, lse in both(q, k, v, cu_seqlens_q=[0, 0, 0, 0, 1], cu_seqlens_kv=[0, 0, 0, 0, 1], scale=math.sqrt(120)):
        assert (o == np.repeat(v, 3, 1)).all()
        assert lse[0, 0] == pytest.approx(103.73631, abs=1e-4) and lse[20, 0] == pytest.approx(204.20526, abs=1e-4)


@pytest.mark.parametrize("heads, kv_heads, want", [(6, 2, [1, 1, 1, 2, 2, 2]), (6, 6, [1, 2, 3, 4, 5, 6]),
                                                   (6, 1, [1] * 6)])
def test_head_groups(heads, kv_heads, want):                                    # H14
    q, k, v = generate(14, 2, heads, kv_heads, 5, 7, 16)
    v[...] = np.arange(1, kv_heads + 1)[:, None, None]
    expect((q, k, v), np.array(want, float)[:, None] * np.ones(5))


def test_lse_order():                                                           # H14, H19
    for o, lse in both(*generate(14, 2, 3, 3, 5, 7, 64), causal=True):
        np.testing.assert_allclose(lse[1, 2], [1.207824, 1.465096, 3.029231, 3.000465, 2.950621], atol=1e-6)
        assert o[1, 2, 4, 0] == pytest.approx(0.598279, abs=1e-6)
    expect(count(1, 10, 64), lse=2.302585)


@pytest.mark.parametrize("sink, o, lse", [(0, 1.5, LN(4)), (1.609438, 0.75, LN(8)), (-INF, 2, LN(3)),
                                           (1000, 0, 1000), (-1000, 2, LN(3))])
def test_sinks(sink, o, lse):                                                   # H15
    expect(count(2, 3, 64), o, lse, sinks=[sink], scale=0.3, o_atol=1e-6)
    expect(count(2, 3, 64), o, lse, sinks=[sink], softcap=0.5, o_atol=1e-6)     # a sink is not capped either


def test_many_keys_for_one_row():                                               # H16
    expect(count(1, 5, 64), 3, LN(5))
    expect(count(1, 1000, 64), 500.5, 6.907755)


def test_pages():                                                               # H18
    lens, page = [1, 16, 17, 40], 16
    table = np.array([[6, 777, -1], [5, -1, 777], [4, 3, 777], [2, 1, 0]])      # falling; other slots hold anything
    v = np.full((7, page, 1, 64), 777, np.float16)
    for b, n in enumerate(lens):
        for key in range(n):
            v[table[b, key // page], key % page] = key + 1
    k = np.where(v == 777, 777, 0).astype(np.float16)
    for o, lse in both(np.zeros((4, 1, 1, 64), np.float16), k, v, kv_lens=lens, block_table=table):
        np.testing.assert_allclose(o[:, 0, 0, 0], [1, 8.5, 9, 20.5], atol=1e-12)
        np.testing.assert_allclose(lse[:, 0, 0], np.log(lens), atol=1e-12)


def test_block_mask():
    mask = np.array([[1, 0, 1], [0, 0, 0]])                                     # 5 rows and 7 keys in blocks of 3
    expect(count(5, 7, 64), [3.25, 3.25, 3.25, 0, 0], [LN(4)] * 3 + [-INF] * 2, block_mask=mask, block_size=3)
    expect(count(5, 7, 64), [2, 2, 2, 0, 0], [LN(3)] * 3 + [-INF] * 2, block_mask=mask, block_size=3, causal=True)


def test_softcap():
    q, k, v = one_head([1], [0, 4], [0, 1], 16)                                 # scores 0 and 64
    expect((q, k, v), math.e ** 2 / (1 + math.e ** 2), LN(1 + math.e ** 2), scale=1.0, softcap=2.0)


# ---- both references on random problems, all variants at once ----

@st.composite
def problems(draw):
    """(q, k, v, options): what reference.attention takes."""
    integer = lambda low, high: draw(st.integers(low, high))                    # noqa: E731
    random = np.random.default_rng(integer(0, 2 ** 32))
    batch, kv_heads, group, D = integer(1, 3), integer(1, 3), integer(1, 3), 8 * integer(1, 5)
    heads = kv_heads * group
    q_packed = draw(st.booleans())
    home = draw(st.sampled_from(["packed", "paged"] if q_packed else ["dense", "cache", "paged"]))
    q_max, kv_max = integer(0, 18), integer(0, 18)
    options = {}
    q_shape = (batch, heads, q_max, D)
    q_lens = [q_max] * batch
    if q_packed:
        q_lens = [integer(0, q_max) for _ in range(batch)]
        q_shape, options["cu_seqlens_q"] = (sum(q_lens), heads, D), np.cumsum([0] + q_lens)
    lens = [kv_max if home == "dense" else integer(0, kv_max) for _ in range(batch)]
    if home == "packed":
        kv_shape, options["cu_seqlens_kv"] = (sum(lens), kv_heads, D), np.cumsum([0] + lens)
    elif home == "paged":
        page_size, pages = integer(1, 8), integer(1, 9)
        max_pages = -(-max(kv_max, 1) // page_size)
        kv_shape = (pages, page_size, kv_heads, D)
        table = random.integers(0, pages, (batch, max_pages))                   # a page may serve several sequences
        for b, n in enumerate(lens):
            table[b, -(-n // page_size):] = draw(st.sampled_from([-1, pages, 10 ** 9]))
        options |= {"block_table": table, "kv_lens": lens}
    else:
        kv_shape = (batch, kv_heads, kv_max, D)
        if home == "cache":
            options["kv_lens"] = lens
    std = draw(st.sampled_from([1.0, 0.1, 4.0]))
    q, k, v = (random.standard_normal(shape) * std for shape in (q_shape, kv_shape, kv_shape))
    q, k, v = ((reference.to_bf16(x) if draw_bf16 else x.astype(np.float16))
               for draw_bf16 in [draw(st.booleans())] for x in (q, k, v))
    limit = st.one_of(st.just(-1), st.integers(0, 20), st.just(2 ** 31 - 1))
    options |= {"scale": float(np.float32(draw(st.sampled_from([D ** -0.5, 1.0, 0.03])))),
                "causal": draw(st.booleans()), "window": (draw(limit), draw(limit)),
                "block_causal": draw(st.sampled_from([0, 0, 1, 2, 3, 5, 16])),
                "softcap": draw(st.sampled_from([0.0, 0.0, 1.5, 30.0]))}
    if draw(st.booleans()):
        sinks = (random.standard_normal(heads) * 3).astype(np.float32)
        options["sinks"] = np.where(random.random(heads) < 0.2, np.float32(-INF), sinks)
    if draw(st.booleans()):
        size = integer(1, 7)
        shape = (-(-max(q_max, 1) // size), -(-max(kv_max, 1) // size))
        if draw(st.booleans()):
            shape = (draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads]))) + shape
        options |= {"block_mask": random.random(shape) < 0.6, "block_size": size}
    return q, k, v, options


def lengths(q, k, options):
    """[(rows, keys)] of each sequence."""
    q_lens = [q.shape[2]] * len(q) if "cu_seqlens_q" not in options else np.diff(options["cu_seqlens_q"])
    if "cu_seqlens_kv" in options:
        return list(zip(q_lens, np.diff(options["cu_seqlens_kv"])))
    return list(zip(q_lens, options.get("kv_lens", [k.shape[2]] * len(q_lens))))


def sees(options, b, h, i, j, rows, keys):
    """Whether row i sees key j: the same definition a third time, for one pair of numbers."""
    c = i + keys - rows
    left, right = options["window"]
    if options["causal"]:
        right = 0
    if left >= 0 and c - j > left or right >= 0 and j - c > right:
        return False
    size = options["block_causal"]
    if size and (c < 0 or j >= c - c % size + size):
        return False
    if "block_mask" in options:
        mask, size = options["block_mask"], options["block_size"]
        if mask.ndim == 4:
            mask = mask[b if len(mask) > 1 else 0, h if mask.shape[1] > 1 else 0]
        return bool(mask[i // size, j // size])
    return True


def key_at(options, b, g, j):
    """The index into k and v of key j of sequence b, key/value head g."""
    if "cu_seqlens_kv" in options:
        return options["cu_seqlens_kv"][b] + j, g
    if "block_table" in options:
        page_size = options["page_size"]
        return options["block_table"][b, j // page_size], j % page_size, g
    return b, g, j


def row_at(options, b, h, i):
    """The index into o of a row, and the one into lse."""
    if "cu_seqlens_q" in options:
        first = options["cu_seqlens_q"][b]
        return (first + i, h), (h, first + i)
    return (b, h, i), (b, h, i)


def seen_keys(q, k, options):
    """{index into k and v: [(index into o, index into lse) of the rows that see it]}"""
    if "block_table" in options:
        options = options | {"page_size": k.shape[1]}
    heads = q.shape[1]
    kv_heads = k.shape[2 if "block_table" in options else 1]
    seen = {}
    for b, (rows, keys) in enumerate(lengths(q, k, options)):
        for h in range(heads):
            for i in range(rows):
                for j in range(keys):
                    if sees(options, b, h, i, j, rows, keys):
                        at = tuple(int(n) for n in key_at(options, b, h * kv_heads // heads, j))
                        seen.setdefault(at, []).append(row_at(options, b, h, i))
    return seen


RANDOM = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@RANDOM
@given(problems(), st.booleans(), st.sampled_from([0, 8, 24]))
def test_references_agree(problem, swapped, padding):
    q, k, v, options = problem
    c = CReference(q, k, v, **options, swapped=swapped, padding=padding)
    want = attention(q, k, v, **options)
    assert c.o.shape == want.o.shape and c.lse.shape == want.lse.shape
    np.testing.assert_allclose(c.o, want.o, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(c.lse, want.lse, rtol=1e-11, atol=1e-11)
    assert (c.row_state == 2).all() and c.result.rows == c.result.rows_checked == want.lse.size
    # what the bounds are made of: A is the answer for |v|, M is what tolerance() makes bound_lse of
    absolute = v & 0x7fff if v.dtype == np.uint16 else abs(v)
    np.testing.assert_allclose(c.o_abs, attention(q, k, absolute, **options).o, rtol=1e-10, atol=1e-10)
    finite_lse = np.where(np.isfinite(want.lse), abs(want.lse), 0)
    np.testing.assert_allclose(c.magnitude, (want.bound_lse - 1e-4 - 1e-6 * finite_lse) / 4e-6, rtol=1e-6, atol=1e-6)
    # the reference itself, rounded, passes; both empty outputs are there: exactly 0 and -inf
    assert not fails(c.compare(o=want.o)) and not fails(c.compare(lse=want.lse))
    assert c.compare(o=want.o).compared == want.o.size and c.compare(lse=want.lse).compared == want.lse.size


@RANDOM
@given(problems())
def test_memory_of_unseen_keys_does_not_matter(problem):
    q, k, v, options = problem
    seen = seen_keys(q, k, options)
    nan = 0x7fc0 if k.dtype == np.uint16 else np.nan
    k_nan, v_nan = np.full_like(k, nan), np.full_like(v, nan)
    for at in seen:
        k_nan[at], v_nan[at] = k[at], v[at]
    clean, dirty = CReference(q, k, v, **options), CReference(q, k_nan, v_nan, **options)
    assert (clean.o == dirty.o).all() and (clean.lse == dirty.lse).all()
    clean, dirty = attention(q, k, v, **options), attention(q, k_nan, v_nan, **options)
    for a, b in zip(clean, dirty):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@RANDOM
@given(problems(), st.data())
def test_nan_reaches_exactly_the_rows_that_see_it(problem, data):
    q, k, v, options = problem
    seen = seen_keys(q, k, options)
    if not seen:
        return
    nan = 0x7fc0 if k.dtype == np.uint16 else np.nan
    at = data.draw(st.sampled_from(sorted(seen)))
    column = data.draw(st.integers(0, q.shape[-1] - 1))
    in_k = data.draw(st.booleans())
    k_nan, v_nan = k.copy(), v.copy()
    (k_nan if in_k else v_nan)[at + (column,)] = nan
    clean = attention(q, k, v, **options)
    want_o, want_lse = clean.o.copy(), clean.lse.copy()
    for o_at, lse_at in seen[at]:
        if in_k:
            want_o[o_at], want_lse[lse_at] = np.nan, np.nan
        else:
            want_o[o_at + (column,)] = np.nan
    dirty = attention(q, k_nan, v_nan, **options)
    c = CReference(q, k_nan, v_nan, **options)
    for o, lse in ((dirty.o, dirty.lse), (c.o, c.lse)):
        np.testing.assert_allclose(o, want_o, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(lse, want_lse, rtol=1e-10, atol=1e-10)


def test_infinity_follows_ieee_rules():
    q, k, v = (x.copy() for x in one_head([1, 1], [0, 1, 2], [1, 2, 3], 16))
    v[0, 0, 2] = np.inf
    expect((q, k, v), [1 / (1 + math.e ** .5) + 2 / (1 + math.e ** -.5), INF], causal=True, scale=1 / 32)
    k[0, 0, 2] = -np.inf                                                        # weight 0, and 0 * inf is NaN
    for o, lse in both(q, k, v, causal=True, scale=1 / 32):
        assert np.isnan(o[0, 0, 1]).all() and np.isfinite(o[0, 0, 0]).all() and np.isfinite(lse).all()
    expect((q, np.full_like(k, -np.inf), np.ones_like(v)), 0, -INF)             # keys are seen, but none has weight
    k[0, 0, 2] = np.inf                                                         # inf - inf
    for o, lse in both(q, k, v, causal=True, scale=1 / 32):
        assert np.isnan(o[0, 0, 1]).all() and np.isfinite(o[0, 0, 0]).all() and not np.isfinite(lse[0, 0, 1])


def test_a_large_problem_is_sampled():
    q, k, v = generate(7, 2, 3, 3, 130, 90, 16)
    whole = attention(q, k, v, causal=True)
    c = CReference(q, k, v, causal=True, max_work=1e5)
    assert c.result.rows == 2 * 3 * 130 and 0 < c.result.rows_checked < c.result.rows
    checked = c.row_state == 2
    assert checked.sum() == c.result.rows_checked and set(np.unique(c.row_state)) == {1, 2}
    assert checked[0, 0, [0, -1]].all() and checked[-1, -1, [0, -1]].all()
    np.testing.assert_allclose(c.o[checked], whole.o[checked], rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(c.lse[checked], whole.lse[checked], rtol=1e-11, atol=1e-11)
    assert not fails(c.compare(o=whole.o)) and c.compare(o=whole.o).compared == checked.sum() * 16
    unwritten = whole.o.copy()
    unwritten[tuple(np.argwhere(~checked)[5])] = np.nan                         # a row that is not computed here
    assert fails(c.compare(o=unwritten))


# ---- the comparison: what must pass and what must fail ----

def test_a_correct_kernel_passes():
    """One that rounds P to 16 bits, sums in float32 and rounds the output."""
    for bf16 in (False, True):
        for std in (0.5, 1, 3):
            q, k, v = generate(11, 1, 2, 2, 65, 300, 64, std, bf16)
            c = CReference(q, k, v)
            if bf16:
                q, k, v = (reference.from_bf16(x) for x in (q, k, v))
            q, k, v = (x.astype(np.float32) for x in (q, k, v))
            s = q @ k.swapaxes(2, 3) * np.float32(0.125)
            m = s.max(-1, keepdims=True)
            p = np.exp(s - m)
            total = p.sum(-1, keepdims=True)
            p = reference.from_bf16(reference.to_bf16(p)).astype(np.float32) if bf16 else p.astype(np.float16)
            assert not fails(c.compare(o=p.astype(np.float32) @ v / total))
            assert not fails(c.compare(lse=(m + np.log(total))[..., 0]))


def test_comparison_finds_nan_and_infinity():
    problem = generate(1, 2, 2, 1, 9, 20, 16)
    c, want = CReference(*problem), attention(*problem)
    for wrong in (np.nan, -np.nan, INF, -INF):
        for index in ((0, 0, 0), (1, 1, 8)):
            o, lse = want.o.copy(), want.lse.copy()
            o[index + (3,)], lse[index] = wrong, wrong
            assert fails(c.compare(o=o)) and c.compare(o=o).failures == c.compare(o=o).not_finite == 1
            assert fails(c.compare(lse=lse)) and c.compare(lse=lse).not_finite == 1
    assert fails(c.compare(o=np.full_like(want.o, np.nan)))
    q, k, v = (x.copy() for x in problem)
    v[0, 0, 4, 2] = np.nan                                                      # now NaN is right and a number wrong
    c = CReference(q, k, v)
    assert not fails(c.compare(o=attention(q, k, v).o)) and fails(c.compare(o=want.o))


def test_comparison_finds_what_is_written_to_an_empty_row():
    problem = count(5, 2, 16)
    c, want = CReference(*problem, causal=True), attention(*problem, causal=True)
    for wrong_o, wrong_lse in ((2 ** -24, INF), (np.nan, np.nan), (1, 0), (-INF, -1e30)):
        o, lse = want.o.copy(), want.lse.copy()
        o[0, 0, 1, 3], lse[0, 0, 1] = wrong_o, wrong_lse
        assert fails(c.compare(o=o)) and fails(c.compare(lse=lse))
    lse = want.lse.copy()
    lse[0, 0, 4] = -INF
    assert fails(c.compare(lse=lse))


def test_comparison_finds_one_element():
    """Three bounds off, anywhere; and the comparison says where."""
    problem = generate(3, 2, 4, 2, 33, 70, 24)
    c, want = CReference(*problem, swapped=True, padding=8), attention(*problem)
    size_of_bound = c.compare(o=want.o + 1).bound                               # a bound of this problem, any place
    for index in ((0, 0, 0, 0), (1, 3, 32, 23), (0, 2, 17, 5)):
        for sign in (1, -1):
            o = want.o.copy()
            o[index] += sign * (3 * size_of_bound + abs(o[index]) * 2 ** -10)
            found = c.compare(o=o)
            assert found.failures == 1 and found.worst_ratio > 1 and found.index == found.worst_index
            assert found.worst_index == sum(n * s // 2 for n, s in zip(index, c.o_layout.strides))
            lse = want.lse.copy()
            lse[index[:3]] += sign * 3 * c.compare(lse=want.lse + 1).bound
            found = c.compare(lse=lse)
            assert found.failures == 1 and found.worst_index == np.ravel_multi_index(index[:3], lse.shape)


def test_comparison_finds_systematic_faults():
    problem = generate(4, 1, 2, 2, 65, 130, 64)
    c, want = CReference(*problem), attention(*problem)
    assert fails(c.compare(o=want.o * 1.01)) and fails(c.compare(lse=want.lse * 1.01))
    assert fails(c.compare(lse=want.lse / LN(2)))                               # base 2
    assert fails(c.compare(lse=want.lse + LN(2)))
    assert fails(c.compare(o=want.o.swapaxes(0, 1).reshape(want.o.shape)[:, ::-1]))
    assert fails(c.compare(o=np.roll(want.o, 1, 2))) and fails(c.compare(lse=np.roll(want.lse, 1, 2)))
    assert fails(c.compare(o=attention(*problem, scale=128 ** -0.5).o))         # the scale of a padded head dimension


@pytest.mark.parametrize("bf16", [False, True])
def test_comparison_finds_a_wrong_set_of_keys(bf16):
    def wrong_keys(q, k, v, remove=0, add=0):
        zeros = np.zeros_like(k[:, :, :1])
        k, v = (np.concatenate([x[:, :, :x.shape[2] - remove]] + [zeros] * add, 2) for x in (k, v))
        return attention(q, k, v)

    for n in (2, 9, 65, 129):
        q, k, v = count(3, n, 32, bf16)
        c = CReference(q, k, v)
        for wrong in (wrong_keys(q, k, v, remove=1), wrong_keys(q, k, v, add=-n % 64)):
            assert fails(c.compare(lse=wrong.lse))
            assert fails(c.compare(o=wrong.o)) or bf16 and n > 64               # 1 in 65 is within bf16's two roundings
    for n in (1000, 4000):                                                      # LSE moves by 1 / n
        q, k, v = count(1, n, 8, bf16)
        c = CReference(q, k, v)
        assert fails(c.compare(lse=wrong_keys(q, k, v, remove=1).lse))
        assert fails(c.compare(lse=wrong_keys(q, k, v, add=1).lse))
    # all real scores are -16: one key more, zero-filled, has a score of 0 and takes the whole row
    q, k, v = one_head([4, 4], [-1] * 63, [1] * 63, 16)
    if bf16:
        q, k, v = (reference.to_bf16(x) for x in (q, k, v))
    c, wrong = CReference(q, k, v), wrong_keys(q, k, v, add=1)
    assert abs(wrong.o).max() < 0.01 and fails(c.compare(o=wrong.o)) and fails(c.compare(lse=wrong.lse))
    # ... and one key fewer: the last has nearly all the weight
    k[0, 0, -1], v[0, 0, -1] = (reference.to_bf16(x) if bf16 else x for x in (1.0, 2.0))
    c, wrong = CReference(q, k, v), wrong_keys(q, k, v, remove=1)
    assert fails(c.compare(o=wrong.o)) and fails(c.compare(lse=wrong.lse))


def test_two_outputs_against_each_other():
    problem = generate(8, 1, 2, 2, 9, 30, 16)
    c, want = CReference(*problem), attention(*problem)
    assert not fails(c.compare(o=want.o, previous=want.o)) and not fails(c.compare(lse=want.lse, previous=want.lse))
    assert fails(c.compare(o=want.o, previous=want.o + 0.1))
    assert fails(c.compare(lse=want.lse, previous=want.lse + 0.01))
    assert fails(c.compare(o=np.full_like(want.o, np.nan), previous=np.full_like(want.o, np.nan)))
    assert fails(c.compare(o=want.o, previous=np.full_like(want.o, np.nan)))


def test_bf16_of_the_numpy_reference():
    """The C conversions have a test of their own (test_convert.py)."""
    bits = np.arange(2 ** 16, dtype=np.uint16)
    values = reference.from_bf16(bits)
    number = ~np.isnan(values)
    assert (reference.to_bf16(values[number]) == bits[number]).all()
    assert np.isnan(reference.from_bf16(reference.to_bf16(np.nan)))
