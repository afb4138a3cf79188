"""Readers: encodings, binary files, HTML and PDF."""

import io
import re
from contextlib import suppress
from pathlib import Path

import pypdf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.tools.errors import Unreadable
from agents.tools.html_text import html_pieces
from agents.tools.readers import read_document, source_lines, split_lines
from tests.unit.agents.corpus_samples import law, pdf, write

TAGS = ["<p>", "</p>", "<b>", "</b>", "<h1>", "</h1>", "<script>", "</script>", "<style>", "<br/>"]
BROKEN = [
    "<!--",
    "-->",
    "<![if x",
    "<![CDATA[",
    "<",
    ">",
    "<a href='",
    "'",
    "<!doctype",
    "<?",
    "</",
]
TEXT = ["word", "é", "\n", " ", "&amp;", "&#10;", "&#x0d", "&", "&NewLine;", "<title>", "</title>"]


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.html"])
@pytest.mark.parametrize("data", [b"", b"\n\n \t\n", b"\xef\xbb\xbf"])
def test_a_file_without_text_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(Unreadable, match="no text"):
        read_document(data, name)


def test_only_newlines_and_carriage_returns_end_a_line() -> None:
    assert split_lines("a\x0bb\x0cc\u2028d\x85e\r\nf\rg\n\nh") == [
        *("a\x0bb\x0cc\u2028d\x85e", "f", "g", "", "h"),
    ]


PAGE = """<!doctype html>
<html><head><title>The page</title>
<style>p { color: red }</style>
<script>
var hidden = "<p>never</p>";
</script></head>
<body>
<h2
  class="x">Deadlines &amp;
  budgets</h2>
<p id="a"
   class="b">A first paragraph, with <b>bo</b>ld
words over several lines.
</p>
<!-- a comment -->
<ul><li>one</li><li>two</li></ul>
&#10;tail</body></html>
"""


def test_the_visible_text_of_a_page_has_its_source_line(tmp_path: Path) -> None:
    write(tmp_path, {"page.html": PAGE})
    visible = {n: line for n, line in enumerate(source_lines(tmp_path / "page.html"), 1) if line}
    assert visible == {
        2: "The page",
        9: "Deadlines &",
        10: "budgets",
        12: "A first paragraph, with bold",
        13: "words over several lines.",
        16: "one two",
        17: "tail",
    }


def test_scripts_styles_and_comments_of_a_page_are_removed() -> None:
    (only,) = read_document(PAGE.encode(), "page.html").passages
    assert (only.heading, only.line, only.end_line) == ("Deadlines & budgets", 2, 17)
    for hidden in ("color", "never", "comment"):
        assert hidden not in only.text


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("<p>one</p><style-guide></style-guide><p>two</p>", ["one", "two"]),
        ('<p>one<img alt="a <style> tag"><p>two', ["one", "two"]),
        ("<title>The <script> tag</title><p>two", ["The <script> tag", "two"]),
        ('<a title="<!--">one</a><p>two', ["one", "two"]),
        ("<!--><p>two", ["two"]),
        ("<!-- x --!><p>two", ["two"]),
        ("<![if x]><p>two", ["two"]),
        ("<p>a < b, c<d", ["a < b, c"]),  # "<d" begins a tag that is never closed
        ("<noscript><p>one</p></noscript><p>two", ["one", "two"]),
        ("<script>'</script>'</script><p>two", ["'", "two"]),
        ("<td>one</td><td>two</td>", ["one two"]),
        ("<template><p>hidden</template><iframe><p>hidden</iframe>two", ["two"]),
        ("<p>one &#xFDEF;&#xFDD1;&#64977; two", ["one two"]),
    ],
)
def test_a_page_is_read_as_browsers_read_it(page: str, texts: list[str]) -> None:
    assert [piece.text for piece in html_pieces([page])] == texts


SKIPPED = ["<b>", "</b>", "<b\n>", "</p\n>", "<td\n>", "<tr>", "<table>", "</table>", "<i a='\n>'>"]


@law
@given(
    parts=st.lists(
        st.sampled_from([*SKIPPED, "</body\n>", "</html>", "<!--\n>\n-->", "<!-->", "\n", "\r\n"])
        | st.integers(1, 99).map("word{}x ".format),
        max_size=30,
    )
)
def test_each_word_of_a_page_has_its_source_line(parts: list[str]) -> None:
    source = split_lines("".join(parts))
    expected = [
        (number, word)
        for number, line in enumerate(source, 1)
        for word in re.findall(r"word\d+x", line)
    ]
    found = [
        (piece.line, word)
        for piece in html_pieces(source)
        for word in re.findall(r"word\d+x", piece.text)
    ]
    assert sorted(found) == sorted(expected)


def test_a_page_on_a_single_line_is_split_at_its_headings() -> None:
    page = "".join(f"<h2>Part {i}</h2><p>{'word ' * 30}</p>" for i in range(9))
    passages = read_document(page.encode(), "page.htm").passages
    assert [passage.heading for passage in passages] == [f"Part {i}" for i in range(9)]
    assert {(passage.line, passage.end_line) for passage in passages} == {(1, 1)}


@law
@given(parts=st.lists(st.sampled_from([*TAGS, *BROKEN, *TEXT]), max_size=40))
def test_broken_html_is_read_without_errors_and_with_valid_lines(parts: list[str]) -> None:
    page = "".join(parts)
    try:
        passages = read_document(page.encode(), "a.html").passages
    except Unreadable:
        return
    num_lines = len(split_lines(page))
    for passage in passages:
        assert 1 <= passage.line <= passage.end_line <= num_lines
        assert passage.text.count("\n") == passage.end_line - passage.line


def test_the_passages_of_a_pdf_have_lines_of_the_document_and_pages(tmp_path: Path) -> None:
    write(tmp_path, {"a.pdf": pdf(["alpha", "beta"], ["gamma"], [], ["delta"])})
    reading = read_document((tmp_path / "a.pdf").read_bytes(), "a.pdf")
    passages = [(p.page, p.line, p.end_line, p.text) for p in reading.passages]
    assert passages == [(1, 1, 2, "alpha\nbeta"), (2, 3, 3, "gamma"), (4, 4, 4, "delta")]
    assert source_lines(tmp_path / "a.pdf") == ["alpha", "beta", "gamma", "delta"]


def encrypted(password: str) -> bytes:
    writer = pypdf.PdfWriter(io.BytesIO(pdf(["secret"])))
    writer.encrypt(password, "owner", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def test_a_pdf_with_a_password_is_refused() -> None:
    with pytest.raises(Unreadable, match="password"):
        read_document(encrypted("password"), "a.pdf")


def test_a_pdf_that_opens_without_a_password_is_read() -> None:
    assert read_document(encrypted(""), "a.pdf").passages[0].text == "secret"


@pytest.mark.parametrize("data", [b"", b"%PDF-1.4\n", b"not a pdf", pdf(["alpha"])[:200]])
def test_a_broken_pdf_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable, match=r"broken|no text"):
        read_document(data, "a.pdf")


@law
@given(cut_at=st.integers(0, 900), noise=st.binary(max_size=20))
def test_a_damaged_pdf_is_read_or_refused_without_other_errors(cut_at: int, noise: bytes) -> None:
    data = pdf(["alpha", "beta"], ["gamma"])
    with suppress(Unreadable):
        read_document(data[:cut_at] + noise + data[cut_at + len(noise) :], "a.pdf")
