"""Beside the bytes that the executor counted for each step: what a closed formula says, and the traffic of the formula on paper.

    make compare        (reads build/compare/*.json; needs no packages)

A byte is asked for when a lane names it in a load or store, however many lanes name the same one and wherever it then
comes from.  "on paper" counts each array once for each line of the formula that uses it: 4 N^2 + 4 N d elements for step 01
(S and P in f32), the tiled form for the others: Q and O once, K and V once for each block of query rows.
"""
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def ceil(a, b):
    return -(-a // b)


def asked(run):
    """Bytes that the lanes of a step ask for, loads and stores, with the reason in words."""
    set_ = run["settings"]
    Sq, Sk, D = run["seq_q"], run["seq_kv"], run["head_dim"]
    warps, block_m = set_["warps"], 16 * set_["row_tiles"] * set_["warps"]
    blocks, tiles, e = ceil(Sq, block_m), ceil(Sk, set_["block_n"]), 2
    out = Sq * D * e + Sq * 4                                        # O and LSE
    q_each_tile = 4 * Sq * D * e * tiles                             # the four lanes of a row's group, in every tile
    step = run["step"][:6]
    if step == "step01":
        scores, softmax, output = 2 * Sq * Sk * D * e, 3 * Sq * Sk * 4, Sq * Sk * D * (4 + e)
        return scores + softmax + output + 2 * Sq * Sk * 4 + out, "a thread reads its own row of Q, of K and of P"
    if step == "step02":
        return q_each_tile + blocks * warps * 8 * 2 * Sk * D * e + out, "8 groups of each warp read all of K and V"
    if step in ("step03", "step04"):
        return q_each_tile + blocks * 2 * Sk * D * e + out, "a group's four lanes read Q again for each tile"
    return Sq * D * e + blocks * 2 * Sk * D * e + out, "nothing twice: the tiled form, and LSE"


def on_paper(run):
    Sq, Sk, D = run["seq_q"], run["seq_kv"], run["head_dim"]
    block_m = 16 * run["settings"]["row_tiles"] * run["settings"]["warps"]
    if run["step"].startswith("step01"):
        return 4 * Sq * Sk * 4 + 2 * (Sq + Sk) * D * 2
    return 2 * Sq * D * 2 + ceil(Sq, block_m) * 2 * Sk * D * 2


def main():
    print(f"{'step':<22} {'on paper':>11} {'formula':>12} {'counted':>12}  equal  why the lanes ask for more than the paper")
    wrong = 0
    for path in sorted((ROOT / "build/compare").glob("*.json")):
        run = json.loads(path.read_text())
        if not run["counters"]:
            sys.exit(0)  # a GPU counts nothing by itself
        heads = run["batch"] * run["heads"]
        formula, why = asked(run)
        counted = run["counters"]["load_bytes"] + run["counters"]["store_bytes"]
        wrong += heads * formula != counted
        print(f"{run['step']:<22} {heads * on_paper(run):>11,} {heads * formula:>12,} {counted:>12,}  "
              f"{'yes' if heads * formula == counted else 'NO':<5}  {why}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
