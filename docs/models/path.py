"""The way of a tile through a chip: the shortest path over the moves that the machine can make.

Attention hands three things over for each tile of keys: the scores, from the matrix unit's accumulator to where softmax is
computed; the probabilities, from there to the matrix unit's operand; the partial O, to where it is rescaled and added up.

    python3 docs/models/path.py --machine nvidia
    python3 docs/models/path.py --machine ascend --drop UB:L1       what if there were no such move
    python3 docs/models/path.py --machine ascend --add L0C:UB       what if there were
    python3 docs/models/path.py --machine ascend --dot              the moves as a Graphviz picture
"""
from collections import deque

from options import Options, positive

MACHINES = {
    # Ampere, and what these steps use: the moves of a thread or a warp
    "nvidia": dict(memory="global", accumulator="registers", vector="registers", operand="registers", moves={
        ("global", "shared"): "cp.async", ("global", "registers"): "load", ("shared", "registers"): "ldmatrix, load",
        ("registers", "shared"): "store", ("registers", "global"): "store"}),
    # Blackwell: the accumulator has a memory of its own
    "blackwell": dict(memory="global", accumulator="TMEM", vector="registers", operand="TMEM", moves={
        ("global", "shared"): "TMA", ("shared", "global"): "TMA", ("global", "registers"): "load",
        ("shared", "registers"): "load", ("registers", "shared"): "store", ("registers", "global"): "store",
        ("TMEM", "registers"): "tcgen05.ld", ("registers", "TMEM"): "tcgen05.st", ("shared", "TMEM"): "tcgen05.cp"}),
    # the table of T.copy in tilelang-ascend's programming guide; L1, L0A, L0B, L0C are the Cube core's, UB the Vector core's
    "ascend": dict(memory="GM", accumulator="L0C", vector="UB", operand="L0A", moves={
        ("GM", "L1"): "", ("GM", "UB"): "", ("UB", "L1"): "", ("UB", "UB"): "", ("L1", "L0A"): "", ("L1", "L0B"): "",
        ("L0C", "GM"): "", ("UB", "GM"): ""}),
}


def shortest(moves, start, end):
    """The places on the way, both ends included, or None; of two equally short ways the one listed first."""
    ways = deque([[start]])
    seen = {start}
    while ways:
        way = ways.popleft()
        if way[-1] == end:
            return way
        for a, b in moves:
            if a == way[-1] and b not in seen:
                seen.add(b)
                ways.append(way + [b])
    return None


def hand_overs(machine, block_m, block_n, d):
    """{what: (start, end, bytes of a tile)}: scores and partial O are f32, probabilities have 16 bits."""
    return {"scores": (machine["accumulator"], machine["vector"], block_m * block_n * 4),
            "probabilities": (machine["vector"], machine["operand"], block_m * block_n * 2),
            "partial O": (machine["accumulator"], machine["vector"], block_m * d * 4)}


def through_memory(machine, way, size):
    """Bytes written to and read from global memory on this way."""
    return 2 * size * (machine["memory"] in way[1:-1])


def dot(machine, ways):
    """The moves; those on the way of the scores are thick."""
    bold = set(zip(ways["scores"], ways["scores"][1:]))
    lines = ['digraph moves {', '  bgcolor="white"', '  rankdir=LR',
             '  node [shape=box style=filled fillcolor="#afd7ff" fontname="monospace" fontsize=11]',
             '  edge [fontname="monospace" fontsize=9]']
    roles = {"memory": "global memory", "accumulator": "accumulator", "vector": "softmax", "operand": "operand"}
    for place in dict.fromkeys(p for move in machine["moves"] for p in move):
        words = [role for key, role in roles.items() if machine[key] == place]
        colour = ' fillcolor="#ffd7af"' if place == machine["memory"] else ""
        lines.append(f'  {place} [label="{place}{chr(92) + "n" if words else ""}{", ".join(words)}"{colour}]')
    for (a, b), by in machine["moves"].items():
        lines.append(f'  {a} -> {b} [label="{by}"{" penwidth=3" if (a, b) in bold else ""}]')
    return "\n".join(lines + ["}"])


def main():
    parser = Options(__doc__)
    parser.add_argument("--machine", choices=MACHINES, default="ascend")
    parser.add_argument("--from", dest="start", help="with --to: one path of your own")
    parser.add_argument("--to", dest="end")
    parser.add_argument("--drop", action="append", default=[], metavar="A:B", help="do without this move")
    parser.add_argument("--add", action="append", default=[], metavar="A:B", help="allow this move too")
    parser.add_argument("--block-m", type=positive, default=128, help="query rows of a tile (128)")
    parser.add_argument("--block-n", type=positive, default=128, help="keys of a tile (128)")
    parser.add_argument("--d", type=positive, default=128, help="elements of a row (128)")
    parser.add_argument("--dot", action="store_true", help="print a picture for Graphviz")
    a = parser.parse_args()
    machine = MACHINES[a.machine]
    places = list(dict.fromkeys(place for move in machine["moves"] for place in move))
    moves = dict(machine["moves"])
    own = [f"{a.start or places[0]}:{a.end or places[0]}"]
    for option, words in (("--drop", a.drop), ("--add", a.add), ("--from --to", own)):
        for word in words:
            move = tuple(word.split(":"))
            if len(move) != 2 or not set(move) <= set(places):
                parser.error(f"{option} {word}: {a.machine} has {', '.join(places)}")
            if option == "--drop" and moves.pop(move, None) is None:
                parser.error(f"--drop {word}: {a.machine} has no such move")
            if option == "--add":
                moves[move] = "added"
    if bool(a.start) != bool(a.end):
        parser.error("--from and --to go together")
    machine = {**machine, "moves": moves}

    if a.start:
        way = shortest(moves, a.start, a.end)
        print(" -> ".join(way) if way else f"no way from {a.start} to {a.end}")
        return
    asked = hand_overs(machine, a.block_m, a.block_n, a.d)
    ways = {what: shortest(moves, start, end) for what, (start, end, _) in asked.items()}
    stuck = [what for what, way in ways.items() if way is None]
    if stuck:
        parser.error(f"--drop {', '.join(a.drop)}: no way is left for the {' and the '.join(stuck)}")
    if a.dot:
        print(dot(machine, ways))
        return
    print(f"{a.machine}: a tile of {a.block_m} rows x {a.block_n} keys, d {a.d}")
    print(f"{'':<14} {'moves':>5} {'bytes':>8} {'through ' + machine['memory']:>15}")
    extra = 0
    for what, way in ways.items():
        size = asked[what][2]
        extra += through_memory(machine, way, size)
        print(f"{what:<14} {len(way) - 1:>5} {size:>8,} {through_memory(machine, way, size):>15,}  "
              + (" -> ".join(way) if len(way) > 1 else f"stays in {way[0]}"))
    print(f"{'sum':<14} {sum(len(way) - 1 for way in ways.values()):>5} {'':>8} {extra:>15,}")


if __name__ == "__main__":
    main()
