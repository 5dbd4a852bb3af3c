"""From accumulators to the A operand, for one lane: { build/layout mma C; build/layout mma A; } | python3 this LANE >x.dot

Reads the first line of each, (lane, value):(strides) with the place row + 16 * column, and joins the values of two
pieces of S (columns 0-7 and 8-15) to the register halves of A that want the same element of P.
"""
import re
import sys

COLOURS = ["#afd7af", "#afd7ff", "#ffd7af", "#d7afff"]


def places(layout, lane):
    """(row, column) of each value of a lane."""
    shape, stride = (re.findall(r"\d+", half) for half in layout.split(":"))
    shape, stride = list(map(int, shape)), list(map(int, stride))
    start = lane % shape[0] * stride[0] + lane // shape[0] * stride[1]
    found = []
    for value in range(eval("*".join(map(str, shape[2:])))):
        place = start
        for n, step in zip(shape[2:], stride[2:]):
            place, value = place + value % n * step, value // n
        found.append((place % 16, place // 16))
    return found


def main():
    lane = int(sys.argv[1]) if sys.argv[1:] in [[str(lane)] for lane in range(32)] else None
    layouts = [line for line in sys.stdin if re.match(r"\(\(", line)] if lane is not None else []
    if len(layouts) != 2:
        print("operand.py: it takes a lane, 0 to 31, and reads the layouts C and A from build/layout", file=sys.stderr)
        sys.exit(2)
    c, a = layouts
    pieces = [(name, i, row, column + 8 * right) for right, name in enumerate(("left", "right"))
              for i, (row, column) in enumerate(places(c, lane))]
    operand = places(a, lane)
    print('digraph operand {\n  bgcolor="white"\n  rankdir=LR\n  node [shape=plain fontname="monospace" fontsize=11]')
    for title, rows in (("s", [(f"{n}[{i}]", f"S({r},{k})", operand.index((r, k)) // 2) for n, i, r, k in pieces]),
                        ("p", [(f"a.{'xyzw'[i // 2]} {'high' if i % 2 else 'low'}", f"P({r},{k})", i // 2)
                               for i, (r, k) in enumerate(operand)])):
        print(f'  {title} [label=<<table border="0" cellborder="1" cellspacing="0" cellpadding="3">')
        heading = f"lane {lane}: accumulators, f32" if title == "s" else f"lane {lane}: A operand, 16 bits"
        print(f'  <tr><td border="0" colspan="2">{heading}</td></tr>')
        for i, (name, element, register) in enumerate(rows):
            print(f'  <tr><td bgcolor="{COLOURS[register]}" port="l{i}">{name}</td>'
                  f'<td bgcolor="{COLOURS[register]}" port="r{i}">{element}</td></tr>')
        print("  </table>>]")
    for i, (_, _, row, column) in enumerate(pieces):
        print(f"  s:r{i}:e -> p:l{operand.index((row, column))}:w")
    print("}")


if __name__ == "__main__":
    main()
