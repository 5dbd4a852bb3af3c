"""Parts of the keys, each attended to by itself, become one row: O = sum of w O_part, LSE = ln sum exp(LSE_part).

Each O_part is already divided by its own l, so the weight of a part is w = l_part / sum of l = exp(LSE_part - LSE), with the
largest LSE taken off first.  A part without keys has LSE = -inf: weight 0.  Then, what 16 bits do to partial results:
f16 parts and a sum of many terms in bf16.

    python3 docs/models/split_kv.py --parts 6       two of the parts are empty
"""
import math
import sys
from pathlib import Path

from options import Options, need_numpy, positive

np = need_numpy()
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "common"))
import reference  # noqa: E402


def partial(scores, values):
    """(O, LSE) of some keys: scores [keys], values [keys, D]."""
    if len(scores) == 0:
        return np.zeros(values.shape[1]), -np.inf
    m = scores.max()
    p = np.exp(scores - m)
    return p @ values / p.sum(), m + np.log(p.sum())


def combine(os, lses):
    """(O, LSE, weights) of parts: os [parts, D], lses [parts]."""
    m = lses.max()
    if m == -np.inf:                                                    # nobody saw a key
        return np.zeros(os.shape[1]), -np.inf, np.zeros(len(lses))
    weights = np.exp(lses - m)
    lse = m + np.log(weights.sum())
    weights /= weights.sum()
    return weights @ os, lse, weights


def split(scores, values, parts):
    """os [parts, D], lses [parts]; the keys are dealt out evenly, no remainder is dropped."""
    ends = [part * len(scores) // parts for part in range(parts + 1)]
    os, lses = zip(*(partial(scores[a:b], values[a:b]) for a, b in zip(ends, ends[1:])))
    return np.array(os), np.array(lses)


def worst_factor(lse, base):
    """By how much a weight is off, at worst, once an LSE of this size is kept in f16."""
    return float(base ** (np.spacing(np.float16(lse)) / 2))


def rounded(x, dtype):
    return x.astype(dtype).astype(np.float64)


def error_of_parts(size, o_type, lse_type, keys=4096, parts=64, d=64, seed=2):
    """Relative L2 error of O when the parts of a row are kept in these types, the LSE of the row being about `size`."""
    random = np.random.default_rng(seed)
    scores, values = random.standard_normal(keys), random.standard_normal((keys, d))
    exact, lse = partial(scores, values)
    os, lses = split(scores + (size - lse), values, parts)
    o = combine(rounded(os, o_type), rounded(lses, lse_type))[0]
    return np.linalg.norm(o - exact) / np.linalg.norm(exact)


def bf16(x):
    return reference.from_bf16(reference.to_bf16(x))


def bf16_sum(terms):
    """Added one after another along axis 0, rounded each time, as atomic additions to a bf16 number are."""
    result = np.zeros(terms.shape[1:])
    for term in bf16(terms):
        result = bf16(result + term)
    return result


def main():
    parser = Options(__doc__)
    parser.add_argument("--parts", type=positive, default=2, help="of the hand example's four keys (2)")
    a = parser.parse_args()
    scores, values = np.array([1.0, 2, 3, 4]), np.array([[10.0], [20], [30], [40]])
    os, lses = split(scores, values, a.parts)
    o, lse, weights = combine(os, lses)
    print("part       LSE        O   weight")
    for part in range(a.parts):
        print(f"{part:>4} {lses[part]:>9.4f} {os[part, 0]:>8.4f} {weights[part]:>8.4f}")
    print(f" all {lse:>9.4f} {o[0]:>8.4f}   (the plain mean of the parts would be {os.mean():.4f})")

    print("\nworst factor of a weight, LSE kept in f16\n  LSE near   base 2   base e")
    for size in (13, 300, 1200):
        print(f"  {size:>8} {worst_factor(size, 2):>8.3f} {worst_factor(size, math.e):>8.3f}")

    print("\nrelative error of O, 64 parts, natural LSE\n  LSE near  all f32    O f16  LSE f16")
    for size in (13, 300, 1200):
        errors = [error_of_parts(size, *types) for types in
                  ((np.float32, np.float32), (np.float16, np.float32), (np.float32, np.float16))]
        print(f"  {size:>8} " + " ".join(f"{error:>8.0e}" for error in errors))

    terms = np.random.default_rng(1).standard_normal((64, 10000))
    exact, forward, backward = terms.sum(0), bf16_sum(terms), bf16_sum(terms[::-1])
    print("\n10000 sums of 64 terms in bf16: relative L2 error")
    print(f"  rounded once, at the end   {np.linalg.norm(bf16(exact) - exact) / np.linalg.norm(exact):.2%}")
    print(f"  rounded at every addition  {np.linalg.norm(forward - exact) / np.linalg.norm(exact):.2%}")
    print(f"  last term first            {np.mean(forward != backward):.0%} of the sums are other numbers")


if __name__ == "__main__":
    main()
