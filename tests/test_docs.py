"""The chapters: links lead somewhere, headings are the agreed ones, quoted numbers are what the commands print now.

A block ```console in a chapter is a command after "$ " and its output.  Run as a program, this file writes the output
of every such command anew; what the prose around it says remains to be read.
"""
import os
import re
import shlex
import subprocess
import sys

import pytest
from conftest import BACKEND, CC, DEFAULTS, ROOT, STEPS, binary, make, own_environment

HEADINGS = ["Change", "Why", "Picture", "Run", "Look at", "Result", "Still slow because", "Try"]
CHAPTERS = sorted(ROOT.glob("step*/README.md"))
SKIPPED = {"build", ".venv", ".git", ".pytest_cache", ".hypothesis"}
PAGES = sorted(p for p in ROOT.rglob("*.md") if not SKIPPED & set(p.relative_to(ROOT).parts))
QUOTING = [p for p in PAGES if ".zh-CN" not in p.name]  # test_translations.py compares the Chinese pages with these
PRINTER = ("build/layout ", "make -s ")  # run by a shell: the layout printer, and what is piped through grep
COUNTED = ("global ", "shared ", "warps ")  # lines that do not depend on the machine

named = dict(ids=lambda p: str(p.relative_to(ROOT)) if hasattr(p, "relative_to") else None)
chapters = pytest.mark.parametrize("chapter", CHAPTERS, **named)


def prose(page):
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def headings(page):
    return re.findall(r"^#+ +(.+?) *$", prose(page), flags=re.M)


def anchor(heading):
    """The name that a page of Markdown gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(page):
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


@pytest.mark.parametrize("page", PAGES, **named)
def test_links_lead_somewhere(page):
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{link}: no such file"
        if fragment:
            assert fragment in map(anchor, headings(target)), f"{link}: no such heading"


@chapters
def test_chapters_stay_in_this_repository(chapter):
    assert not re.search(r"https?:|www\.", chapter.read_text())
    assert any("attention.cu" in link for link in links(chapter))


def test_every_step_has_a_chapter_and_its_answers():
    assert [c.parent.name for c in CHAPTERS] == [s for s in STEPS if (ROOT / s / "README.md").exists()]
    answers = headings(ROOT / "docs/answers.md")
    for chapter in CHAPTERS:
        assert chapter.parent.name in answers


@chapters
def test_headings(chapter):
    found = headings(chapter)
    assert found[0].startswith(chapter.parent.name) and found[1:] == HEADINGS


@pytest.mark.parametrize("chapter, before", list(zip(CHAPTERS[1:], STEPS)), **named)
def test_changed_lines(chapter, before):
    step = chapter.parent.name
    counted = subprocess.run(["git", "diff", "--no-index", "--patience", "--numstat", f"{before}/attention.cu",
                              f"{step}/attention.cu"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    added, removed = int(counted[0]), int(counted[1])
    sentence = f"{added + removed} lines changed: {added} added and {removed} removed"
    assert sentence in " ".join(chapter.read_text().split()), sentence
    command = f"diff-{step.split('_')[0]}"
    assert f"make {command}" in chapter.read_text()
    assert make(command).stdout.splitlines()[-1] == sentence


# ---- commands and what they print ----

def blocks(page):
    """(command, output) of every block ```console; a command goes on until its quotes are closed."""
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), flags=re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            lines = part.splitlines(keepends=True)
            for end in range(1, len(lines) + 1):
                try:
                    shlex.split("".join(lines[:end]))
                    break
                except ValueError:
                    continue
            yield "".join(lines[:end]), "".join(lines[end:])


def output(command):
    """What the command prints, from the programs that the tests build."""
    words = shlex.split(command)
    if words[0] == "make" and words[1].startswith("run-"):
        settings = dict(word.split("=", 1) for word in words[2:])
        arguments = shlex.split(settings.pop("ARGS", ""))
        settings = {k: v if k == "DTYPE" else int(v) for k, v in settings.items()}
        step = next(s for s in STEPS if s.startswith(words[1][len("run-"):] + "_"))
        done = subprocess.run([binary(step, **settings), *arguments], cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        return done.stdout
    if words[0] == "make" and words[1].startswith("bug-"):
        binary(STEPS[0])  # what steps share is built
        printed = make("-s", *words[1:], check=False).stdout.splitlines(keepends=True)
        return "".join(line for line in printed if not line.startswith("nvcc is here"))
    if command.startswith(PRINTER):
        make("build/layout", f"build/{BACKEND}/test_probe")
        words = [w.split("=", 1) for w in words if re.match("(%s)=" % "|".join(DEFAULTS), w)]
        binary(STEPS[0], **{k: v if k == "DTYPE" else int(v) for k, v in words})  # not two workers at a time
        printed = subprocess.run(command, shell=True, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
                                 env={**own_environment(), "CC": CC, "BACKEND": BACKEND}).stdout.splitlines(keepends=True)
        return "".join(line for line in printed if not line.startswith("nvcc is here"))
    if command.startswith("python3 docs/models/"):  # by a shell; a wrong option is an answer too
        return subprocess.run(shlex.quote(sys.executable) + command[len("python3"):], shell=True, cwd=ROOT, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    assert words[:2] == ["python3", "-c"], f"no test knows how to run {command}"
    return subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def exact(text, whole):
    """The lines that every machine must print alike."""
    lines = [re.sub(r"and \d+ are free", "and ... are free", line) for line in text.splitlines()]
    if whole:
        return lines
    refusals = r"step\d+_\w+: |flash_fwd: |error: "
    return [line.split(":")[0] if line.startswith("FAIL") else line for line in lines
            if line.startswith((*COUNTED, "PASS", "FAIL")) or re.match(refusals, line)]


def big_memory():
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") > 200 << 30


EXAMPLES = [(page, *example) for page in QUOTING for example in blocks(page)]


@pytest.mark.skipif(BACKEND != "cpu", reason="the executor counts on the CPU")
@pytest.mark.parametrize("page, command, quoted", EXAMPLES,
                         ids=[f"{page.parent.name}/{i}" for i, (page, *_) in enumerate(EXAMPLES)])
def test_quoted_output(page, command, quoted):
    if "65536" in command and big_memory():
        pytest.skip("this machine has room for what the chapter shows to be refused")
    whole = command.startswith(("python3", *PRINTER))
    expected = exact(quoted, whole)
    assert expected, f"nothing to compare in the output of {command}"
    assert expected == exact(output(command), whole)


def update():
    for page in QUOTING:
        text = page.read_text()
        for command, quoted in blocks(page):
            text = text.replace("$ " + command + quoted, "$ " + command + output(command), 1)
        page.write_text(text)


if __name__ == "__main__":
    update()
