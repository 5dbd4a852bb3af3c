"""Two pictures of step 06, computed from a small example: python3 docs/diagrams/variants.py split|paged >x.dot"""
import sys
from math import exp, log

PARTS = ["#afd7af", "#afd7ff", "#ffd7af", "#d7afff"]


def table(name, rows):
    print(f'  {name} [label=<<table border="0" cellborder="1" cellspacing="0" cellpadding="4">')
    for cells in rows:
        text = "".join(f'<td bgcolor="{colour}" port="{port}">{label}</td>' for label, colour, port in cells)
        print(f"  <tr>{text}</tr>")
    print("  </table>>]")


def split(tiles=8, parts=3):
    """split_range of step06, one score a tile; what each part leaves, and its weight in combine."""
    scores, v = [1, 3, 2, 5, 4, 4, 6, 1], [10, 20, 30, 40, 50, 60, 70, 80]
    total = log(sum(map(exp, scores)))
    ranges = [(tiles * i // parts, tiles * (i + 1) // parts) for i in range(parts)]
    cells = [(f"tile {t}<br/>s {scores[t]}<br/>v {v[t]}", PARTS[i], f"p{i}" if t == a else "")
             for i, (a, b) in enumerate(ranges) for t in range(a, b)]
    table("tiles", [cells])
    out = 0
    for i, (a, b) in enumerate(ranges):
        lse = log(sum(exp(s) for s in scores[a:b]))
        o = sum(exp(s - lse) * x for s, x in zip(scores[a:b], v[a:b]))
        weight = exp(lse - total)
        out += weight * o
        table(f"part{i}", [[(f"block {i}", PARTS[i], ""), (f"O {o:.2f}", "white", ""), (f"LSE {lse:.3f}", "white", "")]])
        print(f'  tiles:p{i} -> part{i}\n  part{i} -> all [label=" w = exp({lse:.3f} - {total:.3f}) = {weight:.3f}"]')
    table("all", [[("combine", "#e4e4e4", ""), (f"O {out:.2f}", "white", ""), (f"LSE {total:.3f}", "white", "")]])


def paged(size=16, pages=4, lengths=(20, 7), block_table=((2, 0), (3, -1))):
    """Pages of two batch entries in one pool."""
    free = ["free"] * pages
    for entry, length in enumerate(lengths):
        used = -(-length // size)
        table(f"entry{entry}", [[(f"batch {entry}, {length} keys<br/>keys {size * i} to {min(length, size * (i + 1)) - 1}"
                                  f"<br/>block_table[{entry}][{i}] = {block_table[entry][i]}", PARTS[entry], f"p{i}")
                                 for i in range(used)]])
        for i in range(used):
            page = block_table[entry][i]
            free[page] = f"keys {size * i} to {min(length, size * (i + 1)) - 1} of {entry}"
            print(f"  entry{entry}:p{i}:s -> pool:g{page}:n")
    table("pool", [[(f"page {p}<br/>{free[p]}", "white" if free[p] == "free" else PARTS[int(free[p][-1])], f"g{p}")
                    for p in range(pages)]])


print('digraph variants {\n  bgcolor="white"\n  node [shape=plain fontname="monospace" fontsize=11]')
print('  edge [fontname="monospace" fontsize=10]')
{"split": split, "paged": paged}[sys.argv[1]]()
print("}")
