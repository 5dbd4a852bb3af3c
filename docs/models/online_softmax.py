"""One row of attention, a tile of keys at a time.  Of the keys seen so far it keeps

    m    any number; the largest score is the choice that never overflows
    l  = sum of exp(scale * (x - m))
    U  = sum of exp(scale * (x - m)) * v        O = U / l in the end, LSE = scale * m + ln l

and when m becomes m', it multiplies l and U by c = exp(scale * (m - m')).

    python3 docs/models/online_softmax.py                          scores 1 2 | 3 4, values 10 20 | 30 40
    python3 docs/models/online_softmax.py --scores 4,1,3,2 --values 40,10,30,20 --tile 1
    python3 docs/models/online_softmax.py --m zero                 no maximum at all
    python3 docs/models/online_softmax.py --exp double_log2e       a bug: log2(e) twice
"""
import math

from options import Options, numbers, positive

LOG2E = math.log2(math.e)


def exp(x):
    """e to the x, as the hardware has it: infinity where it is too large."""
    return math.exp(x) if x < 709 else math.inf


def exp2(x):
    return 2.0 ** x if x < 1024 else math.inf


EXPONENTIALS = {
    "exp": lambda x, scale: exp(x * scale),
    "exp2": lambda x, scale: exp2(x * (scale * LOG2E)),                 # one factor, made once, outside all loops
    "double_log2e": lambda x, scale: exp2(x * (scale * LOG2E) * LOG2E),
}
CHOICES = {                             # the next m, of the one before and the largest score of the tile
    "max": lambda m, largest: max(m, largest),
    "tile": lambda m, largest: largest,         # the tile's own maximum: m may fall, then c is above 1
    "zero": lambda m, largest: 0.0,
}


def tiles(scores, values, size):
    return [(scores[i:i + size], values[i:i + size]) for i in range(0, len(scores), size)]


def online(parts, scale=1.0, choose=CHOICES["max"], e=EXPONENTIALS["exp"]):
    """(m, c, l, U) after each part; a part is a list of scores and a list of their values.  One pass over the keys."""
    m, l, U = -math.inf, 0.0, 0.0
    for scores, values in parts:
        m_new = choose(m, max(scores))
        c = 0.0 if m == -math.inf else e(m - m_new, scale)              # before the first part l and U are 0 anyway
        p = [e(x - m_new, scale) for x in scores]
        l = c * l + sum(p)
        U = c * U + sum(p_j * v for p_j, v in zip(p, values))
        m = m_new
        yield m, c, l, U


def plain(scores, values, scale=1.0):
    """(O, LSE), in three passes over the keys."""
    m = max(scores)                                                                      # pass 1
    l = sum(exp(scale * (x - m)) for x in scores)                                        # pass 2
    return sum(exp(scale * (x - m)) / l * v for x, v in zip(scores, values)), scale * m + math.log(l)       # pass 3


def main():
    parser = Options(__doc__)
    parser.add_argument("--scores", type=numbers, default=[1.0, 2.0, 3.0, 4.0], help="1,2,3,4")
    parser.add_argument("--values", type=numbers, default=[10.0, 20.0, 30.0, 40.0], help="one for each score: 10,20,30,40")
    parser.add_argument("--tile", type=positive, default=2, help="keys of a tile (2)")
    parser.add_argument("--scale", type=float, default=1.0, help="above 0 (1)")
    parser.add_argument("--m", choices=CHOICES, default="max", help="what m is: the maximum so far, the tile's, or zero")
    parser.add_argument("--exp", choices=EXPONENTIALS, default="exp")
    a = parser.parse_args()
    if len(a.values) != len(a.scores):
        parser.error(f"--values has {len(a.values)} numbers, --scores {len(a.scores)}: one value for each score")
    if not 0 < a.scale < math.inf:
        parser.error(f"--scale {a.scale:g}: it must be above 0, and finite")

    print("tile  scores             m       c         l         U       U/l")
    for i, (m, c, l, U) in enumerate(online(tiles(a.scores, a.values, a.tile), a.scale, CHOICES[a.m], EXPONENTIALS[a.exp])):
        words = " ".join(f"{x:g}" for x in a.scores[i * a.tile:(i + 1) * a.tile])
        print(f"{i:>4}  {words:<14} {m:>5g} {c:>7.4f} {l:>9.4f} {U:>9.3f} {divide(U, l):>9.4f}")
    print(f"one pass      O {divide(U, l):.4f}  LSE {a.scale * m + (math.log(l) if l else -math.inf):.4f}")
    print("three passes  O {:.4f}  LSE {:.4f}".format(*plain(a.scores, a.values, a.scale)))


def divide(a, b):
    return math.nan if b == 0 or math.isinf(b) else a / b


if __name__ == "__main__":
    main()
