"""Elements that attention moves between global memory and the chip, for one head.

A matrix is counted once for each kernel, or each block, that uses it.  Caches, and lanes that ask for the same element,
are left out: this is the least that each form can do.  (common/compare.py sets it beside what the executor counts.)

    python3 docs/models/traffic.py --seq-q 1            a decode step
    python3 docs/models/traffic.py --machine ascend     fused, on a machine that has no way from L0C to UB
"""
from options import Options, positive

WORKSPACE_BYTES = {"scores": 4, "probabilities": 2, "partial O": 4}     # of an element (tilelang-ascend, flash_attn_bhsd.py)


def ceil(a, b):
    return -(-a // b)


def naive(seq_q, seq_kv, d):
    """A kernel for each line of the formula: {kernel: (elements read, elements written)}."""
    q, kv, s = seq_q * d, seq_kv * d, seq_q * seq_kv
    return {"scores": (q + kv, s),              # Q, K -> S
            "softmax": (s, s),                  # S -> P
            "output": (s + kv, q)}              # P, V -> O


def fused(seq_q, seq_kv, d, block_m):
    """S and P stay on the chip, and every block of query rows reads all of K and V: {matrix: (read, written)}."""
    blocks = ceil(seq_q, block_m)
    return {"Q": (seq_q * d, 0), "K": (blocks * seq_kv * d, 0), "V": (blocks * seq_kv * d, 0), "O": (0, seq_q * d)}


def workspaces(seq_q, seq_kv, d, block_n):
    """What Cube and Vector hand each other through global memory, on top of fused: {matrix: (read, written)}."""
    s, partial_o = seq_q * seq_kv, seq_q * d * ceil(seq_kv, block_n)    # a partial O for each tile of keys
    return {"scores": (s, s), "probabilities": (s, s), "partial O": (partial_o, partial_o)}


def total(form):
    return sum(read + written for read, written in form.values())


def show(title, form):
    print(title)
    for name, (read, written) in form.items():
        print(f"  {name:<13} {read:>13,} {written:>13,}")
    print(f"  {'sum':<13} {total(form):>27,}")


def main():
    parser = Options(__doc__)
    parser.add_argument("--seq-q", type=positive, default=8192, help="query rows (8192)")
    parser.add_argument("--seq-kv", type=positive, default=8192, help="keys (8192)")
    parser.add_argument("--d", type=positive, default=128, help="elements of a row (128)")
    parser.add_argument("--block-m", type=positive, default=128, help="query rows of a block (128)")
    parser.add_argument("--block-n", type=positive, default=128, help="keys of a tile, for --machine ascend (128)")
    parser.add_argument("--machine", choices=("nvidia", "ascend"), default="nvidia")
    a = parser.parse_args()
    on_paper, blocks = naive(a.seq_q, a.seq_kv, a.d), fused(a.seq_q, a.seq_kv, a.d, a.block_m)
    squares, moved = 4 * a.seq_q * a.seq_kv, total(blocks)

    print(f"{'elements':<15} {'read':>13} {'written':>13}    "
          f"seq_q {a.seq_q}, seq_kv {a.seq_kv}, d {a.d}, block_m {a.block_m}")
    show("naive", on_paper)
    print(f"  {'S and P':<13} {squares:>27,}    {100 * squares / total(on_paper):.1f} %")
    print(f"  {'Q, K, V, O':<13} {total(on_paper) - squares:>27,}")
    times = ceil(a.seq_q, a.block_m)
    show(f"fused: Q and O once, K and V {times} time{'s' * (times > 1)}", blocks)
    if a.machine == "ascend":
        extra = workspaces(a.seq_q, a.seq_kv, a.d, a.block_n)
        show(f"workspaces, block_n {a.block_n}", extra)
        moved += total(extra)
        print(f"  {'in bytes':<13} {sum(WORKSPACE_BYTES[name] * sum(extra[name]) for name in extra):>27,}")
        print(f"  {'with fused':<13} {moved:>27,}")
    print(f"naive / {'with workspaces' if a.machine == 'ascend' else 'fused'}: {total(on_paper) / moved:.4f}; "
          f"2 block_m / d: {2 * a.block_m / a.d:g}")


if __name__ == "__main__":
    main()
