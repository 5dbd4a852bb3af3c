"""Pictures of step 06, computed from small examples: python3 docs/diagrams/variants.py split|paged|causal|... >x.dot"""
import sys
from math import exp, log

PARTS = ["#afd7af", "#afd7ff", "#ffd7af", "#d7afff"]
HIDDEN, IN_VAIN, MASKED, WHOLE = "white", "#ffafaf", "#afd7ff", "#afd7af"  # what docs/models/blocked.py --map prints
BLOCKS = ["#..", ".#.", "#.#"]  # a block mask; # is computed
MASKS = {  # [(title, rows, keys, does a row see key j)]; c is the key across from the row
    "masks": [("causal", 16, 16, lambda c, j: j <= c), ("window", 16, 16, lambda c, j: c - 5 <= j <= c),
              ("block-causal", 16, 16, lambda c, j: j // 6 <= c // 6)],
    "causal": [("12 rows, 12 keys", 12, 12, lambda c, j: j <= c), ("8 rows, 12 keys", 8, 12, lambda c, j: j <= c),
               ("12 rows, 8 keys", 12, 8, lambda c, j: j <= c)],
    "window": [("--window 4,0", 16, 16, lambda c, j: c - 4 <= j <= c), ("--window 2,2", 16, 16, lambda c, j: abs(c - j) <= 2)],
    "block_causal": [("--block-causal 6", 16, 16, lambda c, j: j // 6 <= c // 6),
                     ("12 rows, 8 keys", 12, 8, lambda c, j: j // 6 <= c // 6)],
    "block_sparse": [("--block-size 6", 16, 16, lambda c, j: BLOCKS[c // 6][j // 6] == "#")]}


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


def masks(name, tile=4):
    """Who sees what, in tiles of 4 x 4: hidden and never computed, computed in vain, seen in a masked tile, in a whole one."""
    for number, (title, rows, keys, sees) in enumerate(MASKS[name]):
        seen = [[sees(row + keys - rows, key) for key in range(keys)] for row in range(rows)]
        print(f'  mask{number} [label=<<table border="0" cellborder="1" cellspacing="0" cellpadding="0">')
        print(f'  <tr><td border="0" colspan="{keys}">{title}</td></tr>')
        for row in range(rows):
            squares = ""
            for key in range(keys):
                top, left = row // tile * tile, key // tile * tile
                inside = [seen[i][j] for i in range(top, min(top + tile, rows)) for j in range(left, min(left + tile, keys))]
                colour = HIDDEN if not any(inside) else IN_VAIN if not seen[row][key] else \
                    WHOLE if all(inside) and name != "block_sparse" else MASKED
                squares += f'<td width="12" height="12" bgcolor="{colour}"></td>'
            print(f"  <tr>{squares}</tr>")
        print("  </table>>]")


def gqa(group=8, rows=16):
    """A decode step: the rows of a tile that a block fills, for a head alone and for the heads of a group together."""
    for name, title, tiles in (("alone", "a block for each head: K and V read 8 times", [[0]] * group),
                               ("together", "one for the group", [list(range(group))])):
        print(f'  {name} [label=<<table border="0" cellborder="1" cellspacing="2" cellpadding="1">')
        print(f'  <tr><td border="0" colspan="{len(tiles)}">{title}</td></tr>')
        for row in range(rows):
            cells = ""
            for number, used in enumerate(tiles):
                text = f"head {row if len(used) > 1 else number}" if row in used else " "
                cells += f'<td width="48" bgcolor="{PARTS[0] if row in used else "white"}">{text}</td>'
            print(f"  <tr>{cells}</tr>")
        print("  </table>>]")


def varlen(lengths=(3, 0, 5), block_m=4):
    """Packed sequences, and the grid that is made for the longest."""
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    table("q", [[(f"row {starts[s] + t}<br/>token {t} of {s}", PARTS[s], f"r{starts[s] + t}")
                 for s, length in enumerate(lengths) for t in range(length)]])
    for s, length in enumerate(lengths):
        for number in range(-(-max(lengths) // block_m)):
            first, last = number * block_m, min((number + 1) * block_m, length)
            gone = first >= length
            print(f'  block{s}_{number} [label="sequence {s}, block {number}\\n'
                  f'{"leaves" if gone else f"tokens {first} to {last - 1}"}" shape=box style=filled '
                  f'fillcolor="{"white" if gone else PARTS[s]}"]')
            if not gone:
                print(f"  q:r{starts[s] + first} -> block{s}_{number}")


PICTURES = {name: masks for name in MASKS} | {"split": split, "paged": paged, "gqa": gqa, "varlen": varlen}
if len(sys.argv) != 2 or sys.argv[1] not in PICTURES:
    print(f"variants.py: it draws one of {', '.join(PICTURES)}", file=sys.stderr)
    sys.exit(2)
print('digraph variants {\n  bgcolor="white"\n  node [shape=plain fontname="monospace" fontsize=11]')
print('  edge [fontname="monospace" fontsize=10]')
PICTURES[sys.argv[1]](*sys.argv[1:] if sys.argv[1] in MASKS else ())
print("}")
