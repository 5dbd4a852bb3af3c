"""Attention tile by tile, with every mask, as step06 does it: a block of query rows visits the tiles of keys that some row
of it sees, and masks those that not all rows see whole.  common/reference.py computes all scores at once; both must agree.

    python3 docs/models/blocked.py                              every variant against the reference
    python3 docs/models/blocked.py --map causal window          who sees what, and what is computed in vain
"""
import sys
from pathlib import Path

from options import Options, need_numpy, positive

np = need_numpy()
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "common"))
import reference  # noqa: E402

HIDDEN, IN_VAIN, MASKED, WHOLE = range(4)   # a score: not computed; computed but hidden; seen, in a masked tile; in a whole one


def row_keys(row, seq_q, seq_kv, window, block_causal):
    """The keys that a row may see, [first, last); c is the key across from it, the last from the last row."""
    c = row + seq_kv - seq_q
    left, right = window
    first = max(c - left, 0) if left >= 0 else 0
    last = min(c + right + 1, seq_kv) if right >= 0 else seq_kv
    if block_causal:
        last = min(last, (c // block_causal + 1) * block_causal)
    return first, max(last, first)


def tiles(seq_q, seq_kv, block_m, block_n, *, causal=False, window=(-1, -1), block_causal=0, block_mask=None, block_size=1):
    """(rows, keys, seen, whole) of each tile that is visited; seen [rows, keys] is what the mask leaves of it."""
    window = (window[0], 0) if causal else window
    for first_row in range(0, seq_q, block_m):
        rows = np.arange(first_row, min(first_row + block_m, seq_q))
        ends = np.array([row_keys(row, seq_q, seq_kv, window, block_causal) for row in rows])
        start, end = ends[:, 0].min(), ends[:, 1].max()                 # both ends rise with the row
        for first_key in range(start // block_n * block_n, end, block_n):
            keys = np.arange(first_key, min(first_key + block_n, seq_kv))
            seen = (keys >= ends[:, :1]) & (keys < ends[:, 1:])
            if block_mask is not None:
                on = block_mask[rows[:, None] // block_size, keys // block_size]
                if not on.any():
                    continue
                seen = seen & on
            yield rows, keys, seen, seen.all()


def attend(q, k, v, block_m, block_n, *, scale=None, softcap=0.0, sinks=None, **mask):
    """(O, LSE) of one sequence: q [Hq, Sq, D], k and v [Hkv, Sk, D]; the masks are those of tiles."""
    heads, seq_q, d = q.shape
    group, seq_kv = heads // k.shape[0], k.shape[1]
    scale = d ** -0.5 if scale is None else scale
    o, lse = np.zeros((heads, seq_q, v.shape[2])), np.full((heads, seq_q), -np.inf)
    for head in range(heads):
        K, V = k[head // group], v[head // group]
        m, l = np.full(seq_q, -np.inf), np.zeros(seq_q)
        for rows, keys, seen, whole in tiles(seq_q, seq_kv, block_m, block_n, **mask):
            s = scale * (q[head, rows] @ K[keys].T)
            if softcap:
                s = softcap * np.tanh(s / softcap)
            if not whole:
                s = np.where(seen, s, -np.inf)
            m_new = np.maximum(m[rows], s.max(1))
            finite = np.where(m_new == -np.inf, 0.0, m_new)             # nothing seen yet: -inf - -inf would be NaN
            c, p = np.exp(m[rows] - finite), np.exp(s - finite[:, None])
            l[rows] = c * l[rows] + p.sum(1)
            o[head, rows] = c[:, None] * o[head, rows] + p @ V[keys]
            m[rows] = m_new
        if sinks is not None:                                           # one more logit, without a value, once
            m_new = np.maximum(m, sinks[head])
            finite = np.where(m_new == -np.inf, 0.0, m_new)
            c = np.exp(m - finite)
            l, o[head], m = c * l + np.exp(sinks[head] - finite), c[:, None] * o[head], m_new
        some = l > 0                                                    # a row that sees nothing: O = 0, LSE = -inf
        o[head, some] /= l[some, None]
        lse[head, some] = m[some] + np.log(l[some])
    return o, lse


VARIANTS = {
    "all keys": {},
    "causal": dict(causal=True),
    "window": dict(window=(20, 0)),
    "two-sided window": dict(window=(20, 7)),
    "block-causal": dict(block_causal=24),
    "block mask": dict(block_mask=np.indices((7, 11)).sum(0) % 3 == 0, block_size=16),
    "sink": dict(causal=True, sinks=np.array([0.0, 5.0, -np.inf, 200.0])),
    "softcap": dict(softcap=1.5),
    "all together": dict(window=(50, 3), block_causal=24, block_mask=np.indices((7, 11)).sum(0) % 2 == 0, block_size=16,
                         sinks=np.array([0.0, 1.0, -3.0, 9.0]), softcap=2.0),
}


def agree(o, lse, expected):
    """Both are float64, so they may differ by a few roundings; -inf is -inf."""
    seen = np.isfinite(expected.lse)
    return (abs(o - expected.o).max(initial=0) < 1e-12 and np.array_equal(lse[~seen], expected.lse[~seen])
            and abs(lse[seen] - expected.lse[seen]).max(initial=0) < 1e-12)


def count(seq_q, seq_kv, block_m, block_n, **options):
    """Tiles: all, those visited, those of them masked."""
    mask = {name: x for name, x in options.items() if name not in ("scale", "softcap", "sinks")}
    whole = [whole for *_, whole in tiles(seq_q, seq_kv, block_m, block_n, **mask)]
    return np.array([-(-seq_q // block_m) * -(-seq_kv // block_n), len(whole), whole.count(False)])


def check(q, k, v, block_m, block_n, **options):
    """(tiles, does it agree); q [1, Hq, Sq, D], k and v [1, Hkv, Sk, D]"""
    o, lse = attend(*(x[0].astype(float) for x in (q, k, v)), block_m, block_n, **options)
    agrees = agree(o[None], lse[None], reference.attention(q, k, v, **options))
    return count(q.shape[2], k.shape[2], block_m, block_n, **options), agrees


def check_varlen(q_lens, kv_lens, block_m, block_n, **options):
    """The same for sequences that lie one after another."""
    ends_q, ends_kv = np.cumsum([0, *q_lens]), np.cumsum([0, *kv_lens])
    random = np.random.default_rng(2)
    q, k, v = (random.standard_normal((n, heads, 32)) for n, heads in ((ends_q[-1], 4), (ends_kv[-1], 2), (ends_kv[-1], 2)))
    o, lse, counted = np.zeros(q.shape), np.zeros(q.shape[1::-1]), 0
    for b in range(len(q_lens)):
        rows, keys = slice(*ends_q[b:b + 2]), slice(*ends_kv[b:b + 2])
        one = [x.swapaxes(0, 1) for x in (q[rows], k[keys], v[keys])]   # [heads, tokens, D]
        part_o, lse[:, rows] = attend(*one, block_m, block_n, **options)
        o[rows] = part_o.swapaxes(0, 1)
        counted += count(q_lens[b], kv_lens[b], block_m, block_n, **options)
    return counted, agree(o, lse, reference.attention(q, k, v, cu_seqlens_q=ends_q, cu_seqlens_kv=ends_kv, **options))


def picture(name, seq_q, seq_kv, block_m, block_n):
    """[rows, keys] of HIDDEN, IN_VAIN, MASKED, WHOLE"""
    mask = {"causal": dict(causal=True), "window": dict(window=(5, 0)), "block-causal": dict(block_causal=6)}[name]
    cells = np.full((seq_q, seq_kv), HIDDEN)
    for rows, keys, seen, whole in tiles(seq_q, seq_kv, block_m, block_n, **mask):
        cells[np.ix_(rows, keys)] = np.where(seen, WHOLE if whole else MASKED, IN_VAIN)
    return cells


def main():
    parser = Options(__doc__)
    parser.add_argument("--seq-q", type=positive, help="query rows (100; of a map 16)")
    parser.add_argument("--seq-kv", type=positive, help="keys (163; of a map 16)")
    parser.add_argument("--block-m", type=positive, help="query rows of a block (16; of a map 4)")
    parser.add_argument("--block-n", type=positive, help="keys of a tile (16; of a map 4)")
    parser.add_argument("--map", nargs="+", choices=("causal", "window", "block-causal"), metavar="MASK",
                        help="causal, window (5 keys back) or block-causal (blocks of 6 keys)")
    a = parser.parse_args()
    defaults = (16, 16, 4, 4) if a.map else (100, 163, 16, 16)
    seq_q, seq_kv, block_m, block_n = (x or y for x, y in zip((a.seq_q, a.seq_kv, a.block_m, a.block_n), defaults))

    if a.map:
        for name in a.map:
            cells = picture(name, seq_q, seq_kv, block_m, block_n)
            print(f"{name}: computed {(cells != HIDDEN).sum()} of {cells.size}, in vain {(cells == IN_VAIN).sum()}")
            for row in cells:
                print("  " + " ".join(".-+#"[x] for x in row))
        return
    if (seq_q, seq_kv) != (100, 163):
        parser.error("the block masks of the table are made for --seq-q 100 --seq-kv 163; other sizes go with --map")
    q, k, v = reference.generate(seed=1, B=1, Hq=4, Hkv=2, Sq=seq_q, Sk=seq_kv, D=32)
    print(f"{seq_q} rows, {seq_kv} keys, 4 heads on 2, tiles of {block_m} x {block_n}")
    print(f"{'variant':<18} {'tiles':>6} {'visited':>8} {'masked':>7}  agrees with the reference")
    rows = {name: check(q, k, v, block_m, block_n, **options) for name, options in VARIANTS.items()}
    rows["varlen, causal"] = check_varlen((3, 0, 40, 7), (5, 9, 70, 0), block_m, block_n, causal=True)
    for name, ((every, visited, masked), good) in rows.items():
        print(f"{name:<18} {every:>6} {visited:>8} {masked:>7}  {'yes' if good else 'NO'}")
    sys.exit(not all(good for _, good in rows.values()))


if __name__ == "__main__":
    main()
