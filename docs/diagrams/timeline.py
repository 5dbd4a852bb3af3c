"""The timeline of one block, from a trace: make -s run-step04 ARGS=--trace | python3 docs/diagrams/timeline.py >t.dot

A column is something that thread 0 does, in its order; a row below is a buffer in shared memory: what is on its way
into it, what lies in it until its last reader, and when it is free.
"""
import re
import sys

FLYING, THERE, READ, WAIT, BARRIER = "#ffd7af", "#d7f0d7", "#87c787", "#e4e4e4", "#bcbcbc"


def columns(lines):
    """[(label, colour)] of the thread, and {shared offset: [(name, started, landed, [read])]} in columns."""
    thread, tiles, flying, started = [], {}, [], []
    count = {}

    def column(label, colour=""):
        if not thread or thread[-1] != (label, colour):
            thread.append((label, colour))

    for line in lines:
        what = line[9:18].split()[0]
        place = re.search(r"shared \+ (\d+)", line)
        array = re.search(r" ([qkv]) \+ ", line)
        if what == "copy" and array:
            name = array[1].upper() + ("" if array[1] == "q" else str(count.setdefault(array[1], 0)))
            count[array[1]] = count.get(array[1], 0) + 1
            tiles.setdefault(int(place[1]), []).append((name, len(thread), [], []))
            flying.append(tiles[int(place[1])][-1])
            started.append(name)
        elif what == "commit" and started:
            column("start " + " ".join(started))
            started = []
        elif what == "wait":
            column("wait", WAIT)
            for tile in flying:
                tile[2].append(len(thread))
            flying = []
        elif what == "barrier":
            column("barrier", BARRIER)
        elif what in ("load", "ldmatrix") and place and int(place[1]) in tiles:
            tile = tiles[int(place[1])][-1]
            label = {"Q": "read Q", "K": f"S{tile[0][1:]} = Q {tile[0]}ᵀ", "V": f"O += P {tile[0]}"}[tile[0][0]]
            column(label)
            tile[3].append(len(thread) - 1)
        elif what == "shuffle" and "new_max" in line:
            column("softmax")
    return thread, tiles


def buffer_row(history, width):
    """[(columns, text, colour)] of one buffer."""
    cells = [("", "")] * width
    for name, start, landed, read in history:
        for column in range(start, width):
            if column < landed[0]:
                cells[column] = (f"{name} in flight", FLYING)
            elif column <= max(read):
                cells[column] = (f"{name} is read", READ) if column in read else (name, THERE)
            else:
                cells[column] = ("free", "")
    runs = []
    for cell in cells:
        if runs and runs[-1][1:] == cell:
            runs[-1] = (runs[-1][0] + 1, *cell)
        else:
            runs.append((1, *cell))
    return runs


def row(title, cells):
    text = f'  <tr><td border="0" align="right">{title}</td>'
    for width, label, colour in cells:
        paint = f' bgcolor="{colour}"' if colour else ""
        text += f'<td colspan="{width}"{paint}>{label or " "}</td>'
    return text + "</tr>"


def main():
    lines = [line for line in sys.stdin if line.startswith("trace ")]
    thread, tiles = columns(lines)
    print('digraph timeline {\n  bgcolor="white"\n  node [shape=plain fontname="monospace" fontsize=10]')
    print('  t [label=<<table border="0" cellborder="1" cellspacing="0" cellpadding="3">')
    print(row("a thread, in its order", [(1, *cell) for cell in thread]))
    for offset, history in sorted(tiles.items()):
        print(row(f"shared + {offset}", buffer_row(history, len(thread))))
    print("  </table>>]\n}")


if __name__ == "__main__":
    main()
