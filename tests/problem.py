"""One attention problem of step 06: its arrays as files hold them, its options, and what the reference says of it."""
import math

import numpy as np
from conftest import assert_close, reference

STEP = "step06_variants"
HEAD_DIMS = (32, 64, 96, 128, 192, 256)


def ends(lens):
    """cu_seqlens"""
    return np.concatenate([[0], np.cumsum(lens)])


def packed(x, lens):
    """[B, H, S, D], of which lens[b] rows count -> [total, H, D]"""
    return np.concatenate([x[b, :, :n].swapaxes(0, 1) for b, n in enumerate(lens)])


def block_table(lens, page_size, order):
    """[B, max_pages]: page numbers in this order; a slot more than is needed, and what is not in use points nowhere."""
    used = [-(-n // page_size) for n in lens]
    table = np.full((len(lens), max(used) + 1), -999)
    for b, first in enumerate(ends(used)[:-1]):
        table[b, :used[b]] = order[first:first + used[b]]
    return table


class Problem:
    """q, k, v [B, H, S, D] as reference.generate makes them; entry b uses q_lens[b] of its rows, kv_lens[b] of its keys.

    q_lens     q and o are packed, [total_q, Hq, D], and k and v are too, unless they are paged
    page_size  k and v are pools of pages in a random order (or this one), two more than are needed
    kv_lens    with neither of the two: a dense cache that is not full
    waste      what lies in a pool or a cache where no key is
    bshd       dense arrays are [B, S, H, D] in the files, but not here
    masks      what remains has the names of reference.attention; splits: --splits"""

    def __init__(self, q, k, v, *, q_lens=None, kv_lens=None, page_size=0, order=None, waste=math.nan, bshd=False,
                 splits=None, integers=np.int32, **masks):
        self.bf16, self.bshd, self.splits, self.masks = q.dtype == np.uint16, bshd, splits, masks
        waste = reference.to_bf16(waste) if self.bf16 else np.float16(waste)
        lens, indices = [k.shape[2]] * len(k) if kv_lens is None else kv_lens, {}
        if q_lens is not None:
            q, indices["cu_seqlens_q"] = packed(q, q_lens), ends(q_lens)
        if page_size:
            if order is None:
                order = np.random.default_rng(1).permutation(sum(-(-n // page_size) for n in lens) + 2)
            table = block_table(lens, page_size, order)
            pools = [np.full((len(order), page_size, x.shape[1], x.shape[3]), waste, x.dtype) for x in (k, v)]
            for b, n in enumerate(lens):
                for pool, x in zip(pools, (k, v)):
                    pool[table[b, np.arange(n) // page_size], np.arange(n) % page_size] = x[b, :, :n].swapaxes(0, 1)
            k, v = pools
            indices |= dict(block_table=table, kv_lens=lens)
        elif q_lens is not None:
            k, v, indices["cu_seqlens_kv"] = packed(k, lens), packed(v, lens), ends(lens)
        elif kv_lens is not None:
            k, v, indices["kv_lens"] = k.copy(), v.copy(), lens
            for b, n in enumerate(lens):
                k[b, :, n:] = v[b, :, n:] = waste
        self.q, self.k, self.v = q, k, v
        self.indices = {name: np.asarray(x, integers) for name, x in indices.items()}

    def expected(self):
        return reference.attention(self.q, self.k, self.v, **self.indices, **self.masks)

    def run(self, runner, *arguments, splits=None, **tuned):
        """(o, lse, report) of step 06; o as reference.attention shapes it."""
        splits = splits or self.splits
        words = ["--bshd"] * self.bshd + (["--splits", splits] if splits else [])
        for name, value in {**self.indices, **self.masks}.items():
            words.append("--" + name.replace("_", "-"))
            if isinstance(value, np.ndarray):
                words.append(f"{name}.npy")
                np.save(runner.folder / words[-1], value)
            elif value is not True:
                words.append(",".join(map(str, value)) if isinstance(value, tuple) else value)
        q, k, v = (x.swapaxes(1, 2) if self.bshd else x for x in (self.q, self.k, self.v))
        if "block_table" in self.indices: # the layout of pools is always the same
            k, v = self.k, self.v
        own = dict(HEAD_DIM=min(size for size in HEAD_DIMS if size >= q.shape[-1]), DTYPE="bf16" if self.bf16 else "f16")
        o, lse, report = runner.attend(STEP, q, k, v, *words, *arguments, **own | tuned)
        return o.swapaxes(1, 2) if self.bshd else o, lse, report

    def check(self, runner, *arguments, **tuned):
        """The same, once it is compared with the reference."""
        o, lse, report = self.run(runner, *arguments, **tuned)
        assert_close(o, lse, self.expected(), self.bf16)
        return o, lse, report
