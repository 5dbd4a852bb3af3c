"""The Chinese pages, NAME.zh-CN.md, stay in step with the English ones.

A page is a list of blocks: of code, headings, rows of tables, items, paragraphs.  The two lists must agree: a block of
code to the last character, any other in its kind and in the numbers, pieces of `code` and links that it holds.  Whether
the words say the same remains to be read.  Run as a program, this file copies the English blocks of code into the
Chinese pages.
"""
import re
import sys

import pytest
from conftest import ROOT
from test_docs import CHAPTERS, PAGES, headings, links

CHINESE = ".zh-CN.md"
PAIRS = [(page.with_name(page.name.replace(CHINESE, ".md")), page) for page in PAGES if page.name.endswith(CHINESE)]
FENCED = re.compile(r"^```.*?^```$", flags=re.M | re.S)

pairs = pytest.mark.parametrize("english, chinese", PAIRS,
                                ids=[str(english.parent.relative_to(ROOT)) for english, _ in PAIRS])


def meaning(prose):
    """What prose holds in either language: pieces of code, links, numbers, in any order."""
    prose = prose.replace(CHINESE, ".md")
    found = (re.findall(r"`(.+?)`", prose), re.findall(r"\]\((.+?)\)", prose),
             re.findall(r"\d+(?:[.,]\d+)*", re.sub(r"\]\(.+?\)", "]", prose)))
    return tuple(map(sorted, found))


def outline(text):
    """The blocks of a page: of code as it is; of prose what it begins with and what it holds, a row cell by cell."""
    found = []
    for i, part in enumerate(re.split(f"({FENCED.pattern})", text, flags=FENCED.flags)):
        if i % 2:
            found.append(part)
            continue
        for block in re.split(r"\n\s*\n|\n(?=#+ |- |\d+\. |\|)", part):
            block = " ".join(block.split())
            kind = re.match(r"#+ |- |\d+\. |\||", block)[0]
            if block:
                found.append((kind, *map(meaning, block.split("|") if kind == "|" else [block])))
    return found


@pairs
def test_both_have_the_same_outline(english, chinese):
    ours, theirs = outline(english.read_text()), outline(chinese.read_text())
    for block, translated in zip(ours, theirs):
        assert block == translated
    assert len(ours) == len(theirs)


@pairs
def test_links_stay_in_the_language(english, chinese):
    """But for one on the third line, which leads to the other language."""
    assert english.read_text().splitlines()[2] == f"[中文]({chinese.name})"
    assert chinese.read_text().splitlines()[2] == f"[English]({english.name})"
    assert [link for link in links(english) if link.endswith(CHINESE)] == [chinese.name]
    for link in links(chinese)[1:]:
        target = (chinese.parent / link.partition("#")[0]).resolve()
        assert target not in dict(PAIRS), f"{link}: there is a Chinese one"


def test_chapters_have_the_same_headings():
    translated = [headings(chinese)[1:] for english, chinese in PAIRS if english in CHAPTERS]
    assert all(found == translated[0] for found in translated)


# ---- a change of either side alone is seen ----

def changes(text):
    """The page with one thing changed, for everything that counts in it."""
    lines = text.splitlines(keepends=True)
    code = [False]
    for line in lines:
        code.append(code[-1] != line.startswith("```"))
    for i, line in enumerate(lines):
        before, after = "".join(lines[:i]), "".join(lines[i + 1:])
        inside = code[i] or code[i + 1]
        if inside or re.match(r"#|\||- |\d+\. ", line) or "`" in line or "](" in line:
            yield f"without line {i + 1}", before + after
        if line.startswith("#"):
            yield f"line {i + 1} a level deeper", before + "#" + line + after
        if line.startswith("|"):
            yield f"line {i + 1} with one more cell", before + line.rstrip("\n") + " |\n" + after
        places = [m.start() for m in re.finditer(r"\d", line)] + [m.end() for m in re.finditer(r"\]\(|`\b", line)]
        for place in [0] * inside + places:
            changed = "7" if line[place] != "7" else "8"
            yield f"line {i + 1}, column {place + 1}", before + line[:place] + changed + line[place + 1:] + after


@pairs
@pytest.mark.parametrize("side", ["english", "chinese"])
def test_a_change_of_one_side_is_seen(english, chinese, side):
    changed, kept = (english, chinese) if side == "english" else (chinese, english)
    expected, count = outline(kept.read_text()), 0
    for what, text in changes(changed.read_text()):
        assert outline(text) != expected, what
        count += 1
    assert count > 100


# ---- copying the code ----

def with_code_of(english, chinese):
    """The Chinese page with the blocks of code of the English one, by position."""
    code = FENCED.findall(english)
    if len(code) != len(FENCED.findall(chinese)):
        raise ValueError("not the same number of blocks of code")
    return FENCED.sub(lambda _: code.pop(0), chinese)


@pairs
def test_code_is_copied(english, chinese):
    ours, theirs = english.read_text(), chinese.read_text()
    stale = FENCED.sub(lambda block: block[0].replace("\n", "\nold ", 1), theirs)
    assert with_code_of(ours, stale) == theirs != stale
    with pytest.raises(ValueError):
        with_code_of(ours, theirs + "\n```\nextra\n```\n")


if __name__ == "__main__":
    for english, chinese in PAIRS:
        try:
            text = with_code_of(english.read_text(), chinese.read_text())
        except ValueError as problem:
            sys.exit(f"{chinese.relative_to(ROOT)}: {problem}")
        if text != chinese.read_text():
            chinese.write_text(text)
            print(f"wrote {chinese.relative_to(ROOT)}")
