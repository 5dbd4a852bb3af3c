"""The layout calculator (common/layout*.c) against CuTe's own answers (goldens/layout), against brute force on random
layouts, and against bad text.  Everything runs under AddressSanitizer and UBSan."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests" / "goldens" / "layout"
SOURCES = [str(ROOT / "common" / f"layout{part}.c") for part in ("", "_maps", "_banks", "_draw", "_steps")]
CC = os.environ.get("CC", "gcc")
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g"]
if subprocess.run([CC, *SANITIZE, "-x", "c", "-", "-o", os.devnull], input=b"int main(void) { return 0; }",
                  capture_output=True).returncode:
    SANITIZE = ["-O1", "-g"]  # a compiler without its sanitizers' libraries


def golden(name):
    return json.loads((GOLDENS / name).read_text())


def build(directory, name, sources, flags):
    binary = directory / name
    subprocess.run(
        [
            CC,
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            *flags,
            "-I",
            str(ROOT / "common"),
            *sources,
            "-o",
            str(binary),
        ],
        check=True,
    )
    return str(binary)


@pytest.fixture(scope="session")
def binary(tmp_path_factory):
    return build(
        tmp_path_factory.mktemp("layout"), "layout", [str(ROOT / "common" / "layout_main.c"), *SOURCES], SANITIZE
    )


@pytest.fixture(scope="session")
def layout(binary):
    """Runs one command; returns (exit code, stdout, stderr)."""

    def run(*words, env=None):
        done = subprocess.run(
            [binary, *map(str, words)], capture_output=True, text=True, env={**os.environ, **(env or {})}
        )
        assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture(scope="session")
def answers(binary):
    """Runs many commands in one process; returns a line for each."""

    def run(commands):
        lines = "".join(" ".join(f"'{w}'" for w in map(str, c)) + "\n" for c in commands)
        done = subprocess.run([binary, "-"], input=lines, capture_output=True, text=True)
        assert done.stderr == "", done.stderr[-2000:]
        out = [a for a in done.stdout.split("\n")[:-1] if not a.startswith("  ")]
        assert len(out) == len(commands)
        return out

    return run


# ---- The algebra ----


def tiler_of(case):
    return "<" + ",".join(case["tiler"]) + ">" if "tiler" in case else case["b"]


def command_of(case):
    op = case["op"]
    a = case.get("a")
    if op in ("print", "rank", "depth", "size", "cosize", "filter", "coalesce", "right_inverse", "left_inverse"):
        return [op, a]
    if op == "size_of_mode":
        return ["size", a, case["mode"]]
    if op == "coalesce_by_mode":
        return ["coalesce", a, case["profile"]]
    if op in ("composition", "composition_by_mode"):
        return ["composition", a, tiler_of(case)]
    if op == "complement":
        return [op, a] if str(case["cotarget"]).startswith("default") else [op, a, case["cotarget"]]
    if op in ("logical_divide", "zipped_divide", "tiled_divide", "flat_divide", "logical_divide_by_mode"):
        return [op.removesuffix("_by_mode"), a, tiler_of(case)]
    if op in ("logical_product", "blocked_product", "raked_product", "max_common_vector"):
        return [op, a, case["b"]]
    if op == "tile_to_shape":
        return [op, a, case["shape"], *([case["order"]] if "order" in case else [])]
    if op == "upcast":
        return [op, a, case["n"]]
    if op == "make_layout_compact":
        return ["make", case["shape"], "row" if case["order"].startswith("row") else "column"]
    if op == "crd2idx":
        return ["index", case["coord"], a]
    if op == "idx2crd":
        return ["coordinate", case["index"], case["shape"]]
    assert op == "idx2crd_stride"
    return ["coordinate", case["index"], f"{case['shape']}:{case['stride']}"]


def test_every_algebra_case_prints_as_cute_does(answers):
    cases = golden("layout_algebra.json")["cases"]
    assert len(cases) == 2091
    got = answers([command_of(c) for c in cases])
    wrong = [(c["id"], command_of(c), g, c["result"]) for c, g in zip(cases, got) if g != c["result"]]
    assert not wrong, f"{len(wrong)} differ, the first: {wrong[:5]}"


def test_images_of_the_results(answers):
    cases = [c for c in golden("layout_algebra.json")["cases"] if "image" in c]
    for case, got in zip(cases, answers([["image", c["result"]] for c in cases])):
        assert [int(x) for x in got.split()] == case["image"], case


def test_raw_prints_are_read(answers):
    cases = [c for c in golden("layout_algebra.json")["cases"] if "image" in c]
    for case, got in zip(cases, answers([["print", c["raw"]] for c in cases])):
        assert got == case["result"]


def test_what_cute_refuses_is_refused(answers):
    cases = golden("layout_algebra_rejected.json")["cases"]
    assert len(cases) == 39
    for case, got in zip(cases, answers([command_of(c) for c in cases])):
        assert got.startswith("refused: ") and case["reason"] in got, (case, got)


# ---- Swizzles ----


def test_swizzle_tables(answers):
    tables = golden("swizzle.json")["tables"]
    got = answers([["image", f"Sw<{t['B']},{t['M']},{t['S']}> o 0 o 4096:1", 4096] for t in tables])
    for table, line in zip(tables, got):
        assert [int(x) for x in line.split()] == table["map"]


@pytest.mark.parametrize("d", ["32", "64", "128"])
def test_swizzled_tiles(answers, d):
    tile = golden("swizzle.json")["tiles"][d]
    got = answers(
        [
            ["tile_to_shape", tile["atom"], f"(64,{d})"],
            ["image", tile["atom"], 10**6],
            ["image", tile["tile"], 10**6],
            ["print", tile["tile_raw"]],
        ]
    )
    assert got[0] == got[3] == tile["tile"]
    for line, offsets in ((got[1], tile["atom_offsets"]), (got[2], tile["tile_offsets"])):
        columns = zip(*offsets)  # an integer coordinate runs down the first column first
        assert [int(x) for x in line.split()] == [x for column in columns for x in column]


# ---- The objects of the walk, and the maps ----

WALKS = [("layouts_article.json", 64), ("layouts_D32.json", 32), ("layouts_D128.json", 128)]


def walk_of(layout, *words):
    """{(section, name): (text, start offset or None)}"""
    code, out, err = layout("walk", *words)
    assert code == 0, err
    objects, section = {}, ""
    for line in out.splitlines():
        if line.startswith("["):
            section = line[1:-1]
            continue
        name, text, *note = re.split("  +", line)
        objects[section, name] = text, int(note[0].removeprefix("# at ")) if note else None
    return objects


@pytest.mark.parametrize("name,d", WALKS)
def test_walk(layout, name, d):
    objects, entries = walk_of(layout, "--head-dim", d), golden(name)["entries"]
    assert len(entries) == 167
    wrong = []
    for entry in entries:
        text, start = objects.get((entry["section"], entry["name"]), (None, None))
        said = re.search(r"offset (?:from mQ = )?(\d+)", entry.get("note", ""))
        if text != entry["text"] or (said and start != int(said[1])):
            wrong.append((entry["name"], text, start, entry["text"], entry.get("note")))
    assert not wrong, f"{len(wrong)} differ: {wrong[:5]}"


def tv_table(answers, text, threads, rows):
    """A TV layout as [thread][value] = [row, column]."""
    offsets = [int(x) for x in answers([["image", text, 10**9]])[0].split()]
    return [[[x % rows, x // rows] for x in offsets[t::threads]] for t in range(threads)]


def first_line(layout, *words):
    code, out, err = layout(*words)
    assert code == 0, err
    return out.splitlines()[0]


@pytest.mark.parametrize("operand,rows", [("A", 16), ("B", 8), ("C", 16)])
def test_mma_ownership(layout, answers, operand, rows):
    fragments = golden("fragments_m16n8k16.json")
    assert tv_table(answers, first_line(layout, "mma", operand), 32, rows) == fragments["atom"][operand]
    tiled = fragments["tiled"][operand]
    assert tv_table(answers, first_line(layout, "mma", operand, "--tiled"), 128, 64)[: len(tiled)] == tiled


def test_fragment_slots(layout, answers):
    fragments, walk = golden("fragments_m16n8k16.json"), walk_of(layout)
    names = {
        "A_plain": "tCrA",
        "A_swizzled": "tCrQ",
        "B_plain": "tCrB",
        "B_swizzled": "tCrK",
        "Vt": "tCrVt",
        "C": "tCrC",
    }
    stored = [(fragments["fragment_storage"][key], walk["fragments", name][0]) for key, name in names.items()]
    stored += [(fragments["c_to_a"], walk["views", "tCrP"][0]), (fragments["rowcol"], walk["views", "tCrS_rowcol"][0])]
    for (want, text), image in zip(stored, answers([["image", text, 1000] for _, text in stored])):
        assert text == want["layout"]
        assert [int(x) for x in image.split()] == want["slot_of_value"]


def test_p_stays_where_it_is(layout, answers):
    """Every lane's scores are the A operand of the second product: C's owner of a cell is A's."""
    fragments = golden("fragments_m16n8k16.json")
    c = tv_table(answers, first_line(layout, "mma", "C", "--tiled"), 128, 64)
    a = tv_table(answers, first_line(layout, "mma", "A", "--tiled"), 128, 64)
    slots = [int(x) for x in answers([["image", walk_of(layout)["views", "tCrP"][0]]])[0].split()]
    for thread in range(128):
        assert [c[thread][slot] for slot in slots] == a[thread] == fragments["c_to_a"]["coords"][thread]
        rows, cols = fragments["rowcol"]["rows"][thread], fragments["rowcol"]["cols"][thread]
        assert sorted(c[thread]) == sorted([row, col] for row in rows for col in cols)


@pytest.mark.parametrize("d", [32, 64, 128])
@pytest.mark.parametrize("operand", ["A", "B", "Vt"])
def test_ldmatrix(layout, answers, operand, d):
    want = golden("ldmatrix.json")["D"][str(d)]["ops"][operand]
    rows, lanes = (d if operand == "Vt" else 64), len(want["address"])
    code, out, err = layout("ldmatrix", operand[0], "--head-dim", d)
    assert code == 0, err
    address, result = (tv_table(answers, line.split()[1], 128, rows)[:lanes] for line in out.splitlines())
    assert [[lane[i] for i in range(0, len(lane), 8)] for lane in address] == want["address"]
    assert [[lane[i : i + 8] for i in range(0, len(lane), 8)] for lane in result] == want["receives"]
    tile = [int(x) for x in answers([["image", want["smem"], 10**6]])[0].split()]
    assert [[tile[r + rows * c] for r, c in lane] for lane in want["address"]] == want["offset_swizzled"]
    walk = walk_of(layout, "--head-dim", d)
    names = {"A_plain": "tXrA", "A_swizzled": "tXrQ", "B_plain": "tXrB", "B_swizzled": "tXrK"}
    for key, retile in want["retile"].items():
        text = walk["smem_to_reg_copy", names.get(key, "tXrVt")][0]
        assert text == retile["retile"]
        assert [int(x) for x in answers([["image", text, 1000]])[0].split()] == retile["slots"]


@pytest.mark.parametrize("d", [32, 64, 128])
def test_copy_partition(layout, answers, d):
    want = golden("copy_partition.json")["D"][str(d)]
    table = tv_table(answers, first_line(layout, "copy", "--head-dim", d), 128, 64)
    assert [thread[::8] for thread in table] == want["chunks"]
    walk = walk_of(layout, "--head-dim", d)
    assert walk["gmem_copy", "ThrLayout"][0] == want["thread_layout"]
    tile = [int(x) for x in answers([["image", walk["smem", "sQ"][0], 10**6]])[0].split()]
    assert [[tile[r + 64 * c] for r, c in chunks] for chunks in want["chunks"]] == want["offset_swizzled"]


# ---- Banks ----

PATTERNS = {
    "ldmatrix_A": "ldmatrix-a",
    "ldmatrix_B": "ldmatrix-b",
    "ldmatrix_Vt_trans": "ldmatrix-v",
    "cp_async_kernel": "copy-cute",
    "cp_async_linear": "copy",
    "store_C_half2": "store-c",
}


@pytest.mark.parametrize("d", [32, 64, 128])
def test_bank_conflicts(layout, d):
    swizzled = golden("swizzle.json")["tiles"][str(d)]["tile"]
    tiles = {
        "row_major": f"(64,{d}):({d},1)",
        "padded8": f"(64,{d}):({d + 8},1)",
        "swizzled": swizzled,
        "sw333_unblocked": f"Sw<3,3,3> o 0 o (64,{d}):({d},1)",
    }
    for name, tile in golden("bank_conflicts.json")["D"][str(d)].items():
        for pattern, want in tile["patterns"].items():
            code, out, err = layout("banks", PATTERNS[pattern], tiles[name])
            assert code == 0, err
            *lines, total = out.splitlines()
            got = {}
            for line in lines:
                label, _, phases = line.strip().partition("  ")
                sums, _, count = phases.strip().partition(" = ")
                got[tuple(map(int, re.findall(r"\d+", label)))] = [int(x) for x in sums.split("+")], int(count)
            expected = {
                tuple(v for k, v in i.items() if k not in ("phases", "wavefronts")): (i["phases"], i["wavefronts"])
                for i in want["per_instruction"]
            }
            assert got == expected, (d, name, pattern)
            s = want["summary"]
            assert total == (
                f"{s['instructions']} instructions, {s['total']} wavefronts, {s['min']} to {s['max']} each"
            )


def test_bank_patterns_with_idle_lanes(layout):
    """Rows of 12 pieces: 128 threads bring 10 rows a pass, 8 of them rest; the seventh pass has 4 rows, 48 threads."""
    out = layout("banks", "copy", "(64,96):(96,1)")[1]
    assert "warp 3 step 5" in out and "warp 1 step 6" in out and "warp 2 step 6" not in out
    assert out.splitlines()[-1].startswith("26 instructions, ")
    assert "16 instructions, 64 wavefronts, 4 to 4 each" in layout("banks", "load-rows", "(64,64):(64,1)")[1]
    assert "too small" in layout("banks", "copy", "(64,512):(512,1)", "--warps", 1)[2]


def test_wavefronts_measured_on_hardware(answers):
    cases = json.loads((GOLDENS.parent / "wavefronts_h200.json").read_text())["cases"]
    names = {
        "16-byte load": "load16",
        "8-byte load": "load8",
        "16-byte store": "store16",
        "8-byte store": "store8",
        "ldmatrix.x4": "ldmatrix",
    }
    commands = [
        [
            "banks",
            names[c["instruction"]],
            "(" + ",".join(map(str, c["lane_offset_units"])) + ")",
            "--bytes",
            c["unit_bytes"],
        ]
        for c in cases
    ]
    for case, got in zip(cases, answers(commands)):
        assert got.split(", ")[1] == f"{case['wavefronts']} wavefronts", case


# ---- Brute force on random layouts ----


class Calculator:
    """A running calculator: one command in, one line out."""

    def __init__(self, binary):
        self.process = subprocess.Popen([binary, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, *words):
        self.process.stdin.write(" ".join(f"'{w}'" for w in words) + "\n")
        self.process.stdin.flush()
        answer = "  "
        while answer.startswith("  "):  # the text and the caret under the refusal before
            answer = self.process.stdout.readline().rstrip("\n")
        assert answer, "the calculator died"
        return answer


@pytest.fixture(scope="session")
def ask(binary):
    calculator = Calculator(binary)
    yield calculator
    calculator.process.stdin.close()
    assert calculator.process.wait() in (0, 2)


def leaves(text):
    """((2,4),8):((1,2),16) as [(2, 1), (4, 2), (8, 16)]"""
    shape, stride = text.split(":")
    return list(zip(map(int, re.findall(r"-?\d+", shape)), map(int, re.findall(r"-?\d+", stride))))


def value(text, i):
    """The layout at integer coordinate i, from the definition: the first mode fastest, the last without end."""
    total, modes = 0, leaves(text)
    for n, d in modes[:-1]:
        total, i = total + i % n * d, i // n
    return total + i * modes[-1][1]


def length(text):
    product = 1
    for n, _ in leaves(text):
        product *= n
    return product


def image(text):
    return [value(text, i) for i in range(length(text))]


def tuples(leaf):
    return st.recursive(leaf, lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=5)


def layout_of(tree):
    """A tree of (shape, stride) leaves as text."""

    def side(t, k):
        return "(" + ",".join(side(m, k) for m in t) + ")" if isinstance(t, list) else str(t[k])

    return f"{side(tree, 0)}:{side(tree, 1)}"


def powers(p):
    """Layouts whose sizes and strides are powers of p: every division comes out even, nothing may be refused."""
    return tuples(st.tuples(st.sampled_from([1, p, p * p]), st.sampled_from([0, 1, p, p**2, p**3, p**4]))).map(
        layout_of
    )


@st.composite
def injective(draw, sizes=(1, 2, 3, 4, 5), gaps=(1, 1, 2, 3), most=4):
    """Disjoint modes in any order and nesting, with gaps between them."""
    stride, modes = 1, []
    for n in draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=most)):
        stride *= draw(st.sampled_from(gaps))
        modes.append((n, stride))
        stride *= n
    modes = draw(st.permutations(modes))
    cut = draw(st.integers(0, len(modes)))
    return layout_of([modes[:cut], modes[cut:]] if 0 < cut < len(modes) else list(modes))


quick = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(st.sampled_from([2, 3]).flatmap(lambda p: st.tuples(powers(p), injective((1, p, p * p), (1, 1, p)))))
def test_composition_is_the_composed_function(ask, pair):
    a, b = pair
    result = ask("composition", a, b)
    assert image(result) == [value(a, x) for x in image(b)]


@quick
@given(powers(2))
def test_coalesce_keeps_the_function(ask, a):
    result = ask("coalesce", a)
    assert image(result) == image(a)
    modes = leaves(result)
    assert all(n * d != d2 for (n, d), (_, d2) in zip(modes, modes[1:]))
    assert len(modes) == 1 or all(n > 1 for n, _ in modes)


@quick
@given(injective(), st.integers(1, 600))
def test_complement_fills_the_room(ask, a, cotarget):
    result = ask("complement", a, cotarget)
    room = image(result)
    assert room == sorted(room) and len(set(room)) == len(room)
    both = [x + y for x in image(a) for y in room]
    assert len(set(both)) == len(both)
    assert max(both) + 1 >= cotarget and set(range(cotarget)) <= set(both)


@quick
@given(injective())
def test_inverses(ask, a):
    right = ask("right_inverse", a)
    assert [value(a, x) for x in image(right)] == list(range(length(right)))
    left = ask("left_inverse", a)
    assert [value(left, x) for x in image(a)] == list(range(length(a)))


@quick
@given(
    st.sampled_from([2, 3]).flatmap(
        lambda p: st.tuples(st.just(p), st.integers(0, 3), st.integers(0, 2), st.integers(0, 3))
    )
)
def test_divide_permutes(ask, case):
    p, whole, tile, step = case
    a = ask("make", f"({p**2},({p**whole},{p}))", "row")
    if tile + step > whole + 3:
        return
    result = ask("logical_divide", a, f"{p**tile}:{p**step}")
    assert sorted(image(result)) == sorted(image(a))


@quick
@given(injective((1, 2, 4), (1, 1, 2), 3), injective((1, 2, 4), (1, 1, 2), 3))
def test_products_are_copies(ask, a, b):
    every, one = image(ask("logical_product", a, b)), image(a)
    assert len(every) == len(one) * length(b) == len(set(every))
    for first in range(0, len(every), len(one)):
        assert every[first : first + len(one)] == [x + every[first] for x in one]
    for way in ("blocked_product", "raked_product"):
        assert sorted(image(ask(way, a, b))) == sorted(every)


@quick
@given(tuples(st.tuples(st.integers(1, 6), st.just(0))), st.integers(0, 10**6))
def test_coordinates_come_back(ask, tree, i):
    shape = layout_of(tree).split(":")[0]
    compact = ask("make", shape)
    i %= length(compact)
    coordinate = ask("coordinate", i, shape)
    assert ask("index", coordinate, compact) == str(i)
    assert ask("coordinate", i, compact) == coordinate


@quick
@given(st.integers(0, 4), st.integers(0, 4), st.integers(-5, 5))
def test_swizzle_is_its_own_inverse(ask, bits, base, shift):
    answer = ask("image", f"Sw<{bits},{base},{shift}> o 4096:1", 4096)
    if abs(shift) < bits:
        assert answer.startswith("refused")
        return
    moved = [int(x) for x in answer.split()]
    assert sorted(moved) == list(range(4096)) or bits + base + abs(shift) > 12
    assert all(moved[x] == i for i, x in enumerate(moved) if x < 4096)


def test_deep_nesting(layout):
    for deep in (100, 3000, 10000):
        text = "(" * deep + "4" + ")" * deep + ":" + "(" * deep + "2" + ")" * deep
        code, out, err = layout("print", text)
        assert (code, out.strip()) == (0, text), err
        assert layout("coalesce", text)[1] == "4:2\n"
        assert layout("depth", text)[1] == f"{deep}\n"
        assert layout("composition", "8:3", text)[0] == 0
    code, out, err = layout("print", "(" * 20000 + "4")
    assert code == 2 and "nested more than 10000 deep" in err


# ---- Bad text, and the rest of the command line ----

BAD = [
    ("(4,2:(1,2)", "expected , or )", 4),
    ("(4,2):(1,2", "ends inside", None),
    ("(4,0):(1,2)", "at least 1", 3),
    ("(4,-2):(1,2)", "at least 1", 3),
    ("(4,2):(1,(2,3))", "the shape has a number here", 9),
    ("((4,2),2):(1,2)", "the shape has a tuple here", 11),
    ("(4,2):(1,2,3)", "no more entries", 10),
    ("(4,2):(1)", "one more stride", 8),
    ("4:1x", "nothing more", 3),
    ("():()", "at least one entry", 1),
    ("99999999999999999999:1", "does not fit in 64 bits", 0),
    ("(4,,2):(1,2,3)", "expected a number", 3),
    ("Sw<3,3> o 0 o 8:1", "Sw<bits,base,shift>", 6),
    ("Sw<3,3,1> o 0 o 8:1", "at least its number of bits", 2),
    ("Sw<3,3,3> x", "expected o", 10),
    ("4:", "expected a number", 2),
    ("4:1 \x01\xff", "nothing more", 4),
    ("(4611686018427387904,4):(1,1)", "64 bits can count", 0),
    ("2:9223372036854775807", "64 bits can count", 0),
]


@pytest.mark.parametrize("text,sentence,place", BAD)
def test_bad_text_gets_a_caret(layout, text, sentence, place):
    code, out, err = layout("print", text)
    assert (code, out) == (2, "")
    first, shown, caret = err.splitlines()
    assert first.startswith("layout: ") and sentence in err
    assert caret.rstrip()[-1] == "^" and set(caret) == {" ", "^"}
    if place is not None:
        assert caret.index("^") == 2 + place
    assert all(" " <= c <= "~" for c in shown)


def test_caret_in_a_long_line(layout):
    code, out, err = layout("print", "(" + "2," * 500 + "x)")
    shown, caret = err.splitlines()[1:]
    assert code == 2 and len(shown) < 80 and shown[caret.index("^")] == "x"


@pytest.mark.parametrize(
    "words,sentence",
    [
        (["nonsense"], "'nonsense' is no command"),
        (["compose", "4:1"], "compose takes A B"),
        (["mma", "D"], "A, B or C"),
        (["print", "4:1", "5:1"], "print takes A"),
        (["4:1", "x"], "quote the layout"),
        (["grid", "70000:1"], "65536 at most"),
        (["complement", "(2,2):(1,1)", "8"], "overlaps itself"),
        (["compose", "(5,2):(2,1)", "8:1"], "Divisibility"),
        (["zipped_divide", "(4,4):(1,4)", "<2,_>"], "left alone"),
        (["logical_divide", "(4,4):(1,4)", "<2,2,2>"], "3 tilers"),
        (["right_inverse", "Sw<3,3,3> o 0 o 8:1"], "without a swizzle"),
        (["banks", "load3", "32:1"], "is no access"),
        (["banks", "load16", "32:1"], "no multiple of the access's 16 bytes"),
        (["banks", "ldmatrix-a", "32:1"], "needs a tile"),
        (["step05", "--warps", "0"], "--warps 0: from 1 to 32"),
        (["step05", "--head-dim"], "needs a number"),
        (["step05", "--thread", "200"], "--thread 200"),
        (["step05", "extra"], "'extra' is not an option"),
        (["walk", "--head-dim", "72"], "multiple of 32"),
        (["step07"], "no command"),
        (["upcast", "3:2", "4"], "divides the other"),
        (["index", "(1,2,3)", "(4,4):(1,4)"], "does not fit"),
        (["coordinate", "-1", "4"], "at least 0"),
        (["make", "(2,2)", "diagonal"], "is no order"),
        (["tile_to_shape", "(8,8):(8,1)", "(12,8)"], "no multiple"),
    ],
)
def test_refusals(layout, words, sentence):
    code, out, err = layout(*words)
    assert code == 2 and sentence in err and err.startswith("layout: ") and err.count("\n") in (1, 3), err


@pytest.mark.parametrize("words, sentence", [
    (["size", "(4,8)", "4294967296"], "mode 4294967296 of (4,8):(1,4): it has 2"),
    (["size", "(4,8)", "-1"], "mode -1 of (4,8):(1,4): it has 2"),
    (["print", "(4,8):(1@300,1)"], "an axis is a number from 0 to 255"),
    (["image", "(4,8)", "-5"], "image of -5 coordinates: at least 1"),
    (["copy", "--block-n", "17"], "--block-n 17: the threads copy 16 rows a pass"),
    (["copy", "--block-n", "16", "--warps", "8"], "--block-n 16: the threads copy 32 rows a pass"),
    (["ldmatrix", "V", "--block-n", "17"], "a tile of 17 x 64: the product needs multiples of 16"),
])
def test_numbers_out_of_range(layout, words, sentence):
    code, out, err = layout(*words)
    assert (code, out) == (2, "") and err.startswith(f"layout: {sentence}"), err


@pytest.mark.parametrize("words", [["print", "4"], ["--help"], ["-"]])
def test_a_full_disk(binary, words):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run([binary, *words], input="print 4\n", stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "standard output" in done.stderr


def test_describe_and_help(layout):
    code, out, _ = layout("((2,2),8,4):((1,2),16,4)")
    assert code == 0 and "size 128, cosize 128, rank 3, depth 2" in out
    code, out, _ = layout("--help")
    assert code == 0 and "logical_divide" in out and "stepNN" in out
    assert layout("compose", "Sw<3,3,3>", "(8,64):(64,1)")[1] == "Sw<3,3,3> o 0 o (8,64):(64,1)\n"
    assert layout("left-inverse", "(4,5):(1,8)")[1] == "(8,5):(1,4)\n"


def test_grid_is_plain_without_a_terminal(layout):
    for words in (
        ["mma", "C"],
        ["mma", "B"],
        ["ldmatrix"],
        ["ldmatrix", "--trans"],
        ["copy"],
        ["work"],
        ["reuse"],
        ["grid", "(8,64):(64,1)"],
    ):
        code, out, _ = layout(*words)
        assert code == 0 and out.isascii() and "\033" not in out
        assert "\033[48;5;" in layout(*words, "--colour")[1]
        dot = layout(*words, "--dot")[1]
        assert (
            dot.startswith("digraph")
            and dot.count("<tr>") == dot.count("</tr>")
            and dot.count("<td") == dot.count("</td>")
        )
        assert dot.count("{") == dot.count("}") == 1 and 'bgcolor="white"' in dot
        if shutil.which("dot"):
            svg = subprocess.run(["dot", "-Tsvg"], input=dot, capture_output=True, text=True)
            assert svg.returncode == 0 and svg.stderr == "" and "</svg>" in svg.stdout
    assert re.search(r"^ +8 +T0V2 +T0V3", layout("mma", "C")[1], re.M)


def test_work(layout):
    out = layout("work", "--seq-q", 100, "--seq-kv", 65, "--row-tiles", 2, "--warps", 2)[1]
    rows = [line.split() for line in out.splitlines()[2:-1]]
    assert [row[0] for row in rows] == ["0", "32", "64", "96"]
    assert [row[1:7] for row in rows][1::2] == [f"block {b} warp 1 turn 0".split() for b in (0, 1)]
    assert all(row[7:] == row[1:6] + ["1"] for row in rows)


def test_reuse_needs_no_other_lane(layout):
    out = layout("reuse")[1]
    cells = re.findall(r"T(\d+) c(\d) a(\d)", out)
    assert len(cells) == 256 and all(c == a for _, c, a in cells)


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize(
    "d,rows,warps,n", [(64, 1, 4, 64), (128, 2, 4, 64), (32, 1, 1, 32), (96, 1, 4, 64), (256, 2, 8, 32)]
)
def test_steps(layout, step, d, rows, warps, n):
    code, out, err = layout(
        f"step{step:02}", "--head-dim", d, "--block-n", n, "--warps", warps, "--row-tiles", rows, "--thread", 5
    )
    assert code == 0, err
    assert f"BLOCK_M {16 * rows * warps}" in out
    if step > 1:
        assert f"((2,2),{rows},{n // 8})" in out and "tCrS" in out
    if step >= 5:
        assert f"((2,2,2),{rows},{n // 16})" in out and "tCrP" in out


@pytest.mark.parametrize("d", [32, 64, 128, 256])
def test_steps_addresses_are_the_kernels(layout, answers, d):
    """The step's ldmatrix addresses, from the formula in the kernel file."""

    def swizzle(row, chunk):
        return row * d + 8 * (chunk ^ row % 8 if d % 64 == 0 else chunk ^ row // 2 % 4)

    for lane in (0, 5, 13, 22, 31):
        out = layout("step05", "--head-dim", d, "--row-tiles", 2, "--thread", lane)[1]
        parts = {m[0]: (m[1], int(m[2])) for m in re.findall(r"^  (tXs\S+) .*? (\(\(8\S+) +from (\d+)", out, re.M)}
        assert len(parts) == 3
        steps = d // 16
        want = {
            "tXsQ": [swizzle(16 * t + lane % 16, 2 * k + lane // 16) for k in range(steps) for t in range(2)],
            "tXsK": [
                swizzle(16 * j + lane // 16 * 8 + lane % 8, 2 * k + lane // 8 % 2)
                for k in range(steps)
                for j in range(4)
            ],
            "tXsVt": [swizzle(16 * k + lane % 16, 2 * n + lane // 16) for k in range(4) for n in range(steps)],
        }
        for name, (text, start) in parts.items():
            offsets = [start + value(text, i) for i in range(length(text))]
            assert offsets[::8] == want[name], (d, lane, name)


def test_fuzz(tmp_path):
    """A million texts, most of them broken: no crash, no leak; what is read prints and reads back the same."""
    fuzz = build(tmp_path, "layout_fuzz", [str(ROOT / "tests" / "unit" / "layout_fuzz.c"), SOURCES[0]], SANITIZE)
    done = subprocess.run(
        [fuzz, "1000000"],
        capture_output=True,
        text=True,
        env={**os.environ, "ASAN_OPTIONS": "malloc_context_size=2:quarantine_size_mb=8"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"1000000 texts, \d+ read", done.stdout)
