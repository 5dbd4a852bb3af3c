"""docs/06_variants.md: its table of lines is what the sources say, its examples run, its bugs hide where it says so.

Run as a program, this file writes the numbers of that table anew."""
import re
import subprocess
import sys

import pytest
from conftest import BACKEND, ROOT, binary, make
from test_bugs import Bug

PAGE, STEP = ROOT / "docs/06_variants.md", ROOT / "step06_variants"
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.M)
on_cpu = pytest.mark.skipif(BACKEND != "cpu", reason="about the CPU executor")


def section(heading):
    return PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def seams():
    """{function: (file, first line, last line)} of variants.h and attention.cu; a definition ends with a brace in column 0."""
    found = {}
    for file in ("variants.h", "attention.cu"):
        lines = (STEP / file).read_text().splitlines()
        for first, line in enumerate(lines, 1):
            if name := re.match(r"(?:static|__global__)[^;=]*?\*?\b(?!__launch_bounds__)(\w+)\((?!THREADS)", line):
                found[name[1]] = file, first, lines.index("}", first) + 1
    return found


def numbers(name):
    """What the table says of a function: where it is defined, and the lines of attention.cu that call it."""
    file, first, last = seams()[name]
    own = range(first, last + 1) if file == "attention.cu" else ()
    code = re.sub(r"/\*.*?\*/", lambda comment: re.sub(r"[^\n]", " ", comment[0]), (STEP / "attention.cu").read_text(), flags=re.S)
    calls = [i for i, line in enumerate(code.splitlines(), 1) if re.search(rf"\b{name}\b", line) and i not in own]
    return f"{file} {first}-{last}", ", ".join(map(str, calls)) or "–"


def test_the_lines_of_each_seam():
    rows = ROW.findall(section("Which lines"))
    assert len(rows) > 10
    for name, defined, called, _ in rows:
        assert (defined, called) == numbers(name), f"{name}: python tests/test_variant_pages.py"


def test_every_seam_has_its_row():
    """But for helpers that only other seams use."""
    named = {row[0] for row in ROW.findall(section("Which lines"))}
    helpers = {"clamp", "keys_below", "blocks_for"}
    assert {name for name, (file, *_) in seams().items() if file == "variants.h"} - helpers <= named


def test_every_variant_has_its_section():
    rows = re.findall(r"^\| ([\w, -]+?) \| .*\|$", section("Who has it where"), re.M)[1:]
    assert len(rows) == 11
    for row in rows:
        text = section(row[0].upper() + row[1:].replace(", ", " and "))
        assert "**Seam.**" in text and "**Pitfall.**" in text and "make run-step06" in text, row


def test_its_bugs_exist():
    names = re.findall(r"BUG=(\w+)", PAGE.read_text())
    assert len(names) > 10
    for name in names:
        assert list(ROOT.glob(f"step*/bugs/{name}.patch")), name


HIDING = re.findall(r'^\| `(\w+)` \| `"(.+?)"` \|', section("What hides a mistake"), re.M)


@on_cpu
@pytest.mark.parametrize("name, arguments", HIDING)
def test_what_hides_a_bug(name, arguments):
    """With the bug's own settings; that its own arguments show it is test_bugs.py's."""
    bug = Bug(STEP / f"bugs/{name}.patch")
    make("-j2", "step01"), make("step06", f"BUG={name}", *bug.settings)
    done = subprocess.run([bug.program(name), *arguments.split()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr


EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_run(example, runner):
    subprocess.run([sys.executable, "-c", example], cwd=runner.folder, check=True)
    arguments = re.search(r'# make run-step06 ARGS="(.*)"', example)[1].split()
    done = runner.run(STEP.name, *arguments)
    assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr


def update():
    before, title, rest = PAGE.read_text().partition("\n## Which lines\n")
    table, more, after = rest.partition("\n## ")
    PAGE.write_text(before + title + ROW.sub(lambda row: "| `{}` | {} | {} | {} |".format(row[1], *numbers(row[1]), row[4]), table)
                    + more + after)


if __name__ == "__main__":
    update()
