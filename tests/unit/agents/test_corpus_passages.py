"""Passages of every format are verbatim, citable and never blank."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.tools.errors import Unreadable
from agents.tools.passages import MAX_CHARS, MAX_LINES, Passage
from agents.tools.readers import read_document, source_lines, split_lines
from tests.unit.agents.corpus_samples import law, prose, write

LINES = st.lists(
    st.one_of(
        st.sampled_from(["", "  ", "# Title", "## Sub ##", "```", "---", "===", "- item", "| a |"]),
        st.text(st.characters(exclude_characters="\r\n\0", codec="utf-8"), max_size=200),
        st.text("ab ", min_size=1000, max_size=3000),
    ),
    max_size=80,
)


def passages_of(text: str, file: str) -> tuple[Passage, ...]:
    try:
        return read_document(text.encode(), file).passages
    except Unreadable:
        return ()


@pytest.mark.parametrize("file", ["a.md", "a.txt"])
@law
@given(lines=LINES, end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_the_text_of_a_passage_consists_of_the_lines_of_its_file(
    file: str, lines: list[str], end: str
) -> None:
    for passage in passages_of(end.join(lines), file):
        quoted = passage.text.split("\n")
        original = lines[passage.line - 1 : passage.end_line]
        assert len(quoted) == len(original)
        assert quoted[1:-1] == original[1:-1]
        if max(map(len, original)) <= MAX_CHARS:
            assert quoted == original
        else:
            assert original[0].endswith(quoted[0]) or len(original) == 1
            assert quoted[-1] in original[-1]


@pytest.mark.parametrize("file", ["a.md", "a.txt"])
@law
@given(lines=LINES)
def test_no_word_of_a_file_is_lost_or_duplicated(file: str, lines: list[str]) -> None:
    joined = "".join(passage.text for passage in passages_of("\n".join(lines), file))
    assert re.sub(r"\s", "", joined) == re.sub(r"\s", "", "".join(lines))


@law
@given(lines=LINES)
def test_a_passage_is_neither_blank_nor_longer_than_its_limits(lines: list[str]) -> None:
    for passage in passages_of("\n".join(lines), "a.md"):
        assert passage.text.strip()
        assert len(passage.text) <= MAX_CHARS + 1
        assert passage.end_line - passage.line < MAX_LINES


@pytest.mark.parametrize("suffix", [".md", ".txt", ".html"])
def test_each_line_of_a_passage_is_found_at_its_number_in_the_source_lines(
    suffix: str, tmp_path: Path
) -> None:
    text = prose("deadlines", 40).replace("something", "<b>some</b>thing\n<i>or other</i>")
    write(tmp_path, {f"a{suffix}": text})
    lines = source_lines(tmp_path / f"a{suffix}")
    for passage in passages_of(text, f"a{suffix}"):
        for i, line in enumerate(passage.text.split("\n")):
            assert line in lines[passage.line - 1 + i]


def test_a_passage_never_contains_two_sections() -> None:
    first, second = passages_of("# A\n\nalpha\n\n# B\n\nbeta\n", "a.md")
    assert (first.heading, first.line, first.end_line) == ("A", 1, 3)
    assert (second.heading, second.line, second.end_line) == ("B", 5, 7)


def test_all_passages_of_a_section_have_its_heading() -> None:
    body = "\n\n".join(f"paragraph {i} " + "word " * 60 for i in range(8))
    parts = passages_of(f"# The heading #\n\n{body}\n", "a.md")
    assert len(parts) > 1
    assert {part.heading for part in parts} == {"The heading"}


def test_a_heading_directly_above_another_is_in_the_same_passage() -> None:
    (only,) = passages_of("# Book\n## Chapter\ntext\n", "a.md")
    assert (only.heading, only.line) == ("Chapter", 1)


def test_text_is_split_at_blank_lines_if_there_are_any() -> None:
    paragraph = "\n".join(f"line {i} of a paragraph" for i in range(7))
    text = "\n\n".join([paragraph] * 9)
    for passage in passages_of(text, "a.txt"):
        lines = split_lines(text)
        assert passage.line == 1 or lines[passage.line - 2] == ""


def test_a_hash_in_fenced_code_is_not_a_heading() -> None:
    (only,) = passages_of("# Real\n\n```sh\n# comment\n```\nafter\n", "a.md")
    assert only.heading == "Real"


def test_front_matter_is_not_a_heading() -> None:
    first, second = passages_of("---\ntitle: x\n---\n\n# Real\n\nbody\n", "a.md")
    assert (first.heading, second.heading) == ("", "Real")


@pytest.mark.parametrize(
    "front_matter",
    ["---\ntitle: x\n\ntags: y\n---", "---\n# x\ny: z\n\nx\n...", "+++\n# x\n\ny = 1\n+++"],
)
def test_front_matter_with_blank_lines_and_comments_is_not_a_heading(front_matter: str) -> None:
    first, second = passages_of(f"{front_matter}\n\n# Real\n\nbody\n", "a.md")
    assert (first.heading, second.heading) == ("", "Real")


def test_a_rule_on_the_first_line_is_not_front_matter() -> None:
    _, second = passages_of("---\nSome prose.\n\nThe Title\n---\nbody\n", "a.md")
    assert second.heading == "The Title"


@pytest.mark.parametrize(
    ("text", "heading", "shown"),
    [
        ("# Real\n<!--\n# hidden\n\nhidden\n-->\nbody", "Real", "# Real\n\n\n\n\n\nbody"),
        ("# Real\n<!-- hidden --> body", "Real", "# Real\n body"),
        ("<!-- hidden\n```\n--> body\n# Real", "Real", " body\n# Real"),
        ("```\n<!--\n# code -->\n```\nbody", "", "```\n<!--\n# code -->\n```\nbody"),
        ("# Real\n<!-- never closed\nbody", "Real", "# Real\n<!-- never closed\nbody"),
    ],
)
def test_a_comment_in_markdown_is_neither_a_heading_nor_found(
    text: str, heading: str, shown: str
) -> None:
    parts = passages_of(text, "a.md")
    assert parts[-1].heading == heading
    assert "\n".join(part.text for part in parts) == shown


@pytest.mark.parametrize("file", ["a.md", "a.txt"])
def test_an_underlined_line_is_a_heading(file: str) -> None:
    (only,) = passages_of("The Title\n=========\n\nbody\n", file)
    assert only.heading == "The Title"


def test_a_line_that_is_longer_than_a_passage_is_split_between_words() -> None:
    line = " ".join(f"word{i}" for i in range(2000))
    parts = passages_of(f"before\n{line}\nafter\n", "a.txt")
    of_line = [part for part in parts if part.line == part.end_line == 2]
    assert len(of_line) > 5
    assert all(part.text in line and part.text.startswith("word") for part in of_line)
