"""Shared memory of one block, and how many buffers a pipeline needs.

A tile that is copied in turn `def` of the loop and read in turn `use` is alive in use - def + 1 turns, and needs as many
buffers.  Accumulators are read and written in every turn: a second buffer of them would be no use.

    python3 docs/models/smem.py                              tiles of 128 x 128, 0, 1 and 2 turns ahead
    python3 docs/models/smem.py --block-n 64 --ahead 1       one setting
    python3 docs/models/smem.py --o-shared                   O leaves through a tile of its own, not through Q's
"""
from options import Options, positive

LIMITS = {"sm_80": 163, "sm_86/89": 99, "sm_90": 227}       # KB of one block (NVIDIA); a KB is 1024 bytes


def buffers(defined, used):
    return used - defined + 1


def smem(block_m, block_n, d, stages, o_shared=False, element=2):
    """Bytes: a tile of Q, `stages` tiles of K and of V, and one of O where it is not put over Q."""
    return (block_m + 2 * stages * block_n + block_m * o_shared) * d * element


def main():
    parser = Options(__doc__)
    parser.add_argument("--block-m", type=positive, default=128, help="query rows of a block (128)")
    parser.add_argument("--block-n", type=positive, default=128, help="keys of a tile (128)")
    parser.add_argument("--d", type=positive, default=128, help="elements of a row (128)")
    parser.add_argument("--ahead", type=int, choices=range(8), help="turns between copy and use (0, 1 and 2)")
    parser.add_argument("--o-shared", action="store_true", help="a tile of its own for O")
    a = parser.parse_args()

    shape = a.block_m, a.block_n, a.d
    print(f"block_m {a.block_m}, block_n {a.block_n}, d {a.d}, 2-byte elements: a tile of Q {a.block_m * a.d / 512:g} KB, "
          f"of K or V {a.block_n * a.d / 512:g} KB")
    print("copied   read  buffers       KB  " + "".join(f"{name:>10}" for name in LIMITS))
    for ahead in (0, 1, 2) if a.ahead is None else (a.ahead,):
        stages = buffers(defined=0, used=ahead)
        kb = smem(*shape, stages, a.o_shared) / 1024
        print(f"turn 0 turn {ahead} {stages:>8} {kb:>8g}  "
              + "".join(f"{'fits' if kb <= limit else 'too large':>10}" for limit in LIMITS.values()))


if __name__ == "__main__":
    main()
