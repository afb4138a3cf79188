"""A drawing of branches shows exactly the graph's edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.display.branch_lines import BranchLine, branch_lines
from orchestrator.display.glyphs import ASCII_BRANCHES, UNICODE_BRANCHES, BranchGlyphs

Graph = Mapping[str, Sequence[str]]


def drawn(graph: Graph, nodes: str, glyphs: BranchGlyphs = UNICODE_BRANCHES) -> str:
    lines = branch_lines(list(nodes), graph, glyphs)
    return "\n".join(f"{line.text} {line.node}" if line.node else line.text for line in lines)


FORKS = {"a": "bcd", "b": "e", "c": "fg", "d": "h", "e": "h", "f": "h", "g": "h"}

FORKS_UNICODE = """\
● a
├─┬─╮
● │ │ b
│ ● │ c
│ ├─┼─╮
│ │ ● │ d
● │ │ │ e
│ ● │ │ f
│ │ │ ● g
├─┴─┴─╯
● h"""

FORKS_ASCII = """\
* a
|-+-.
* | | b
| * | c
| |-|-.
| | * | d
* | | | e
| * | | f
| | | * g
|-+-+-'
* h"""

REWIND = """\
● a
├─╮
│ ● b
│ ● c
● d"""

TWO_ROOTS = """\
● a

● b
● c"""


def test_forks_and_merges_are_drawn_as_in_this_example() -> None:
    assert drawn(FORKS, "abcdefgh") == FORKS_UNICODE


def test_a_terminal_without_unicode_gets_the_same_in_ascii() -> None:
    assert drawn(FORKS, "abcdefgh", ASCII_BRANCHES) == FORKS_ASCII


def test_what_was_abandoned_is_beside_the_branch_that_goes_on() -> None:
    assert drawn({"a": "bd", "b": "c"}, "abcd") == REWIND


def test_a_second_root_does_not_look_as_if_the_first_one_led_to_it() -> None:
    assert drawn({"b": "c"}, "abc") == TWO_ROOTS


def test_nothing_is_drawn_of_an_empty_graph() -> None:
    assert drawn({}, "") == ""


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[str], dict[str, list[str]]]:
    """Nodes in their order, and a few later ones as the children of each."""
    nodes = [str(number) for number in range(draw(st.integers(0, 12)))]
    children = {
        node: draw(st.lists(st.sampled_from(nodes[at + 1 :]), max_size=4, unique=True))
        for at, node in enumerate(nodes[:-1])
    }
    return nodes, children


def edges_in(lines: Sequence[BranchLine], glyphs: BranchGlyphs) -> set[tuple[str, str]]:
    """The edges that a reader of the drawing sees, by following its columns downwards."""
    edges: set[tuple[str, str]] = set()
    above: dict[int, set[str]] = {}  # column -> the nodes from which it comes
    for line in lines:
        cells = dict(enumerate(line.text[::2]))
        for at in [at for at in above if cells.get(at, " ") in (" ", glyphs.level)]:
            del above[at]
        if line.node is not None:
            [at] = [at for at, cell in cells.items() if cell == glyphs.node]
            edges |= {(each, line.node) for each in above.get(at, ())}
            above[at] = {line.node}
            continue
        stem = min((at for at, cell in cells.items() if cell == glyphs.stem), default=None)
        for at, cell in cells.items():
            if cell in (glyphs.part, glyphs.parts):
                assert stem is not None
                above[at] = set(above[stem])
            if cell in (glyphs.join, glyphs.joins):
                assert stem is not None
                above[stem] |= above.pop(at)
    return edges


@given(graph=graphs())
@example(graph=(["a", "b", "c"], {"b": ["c"]}))
def test_a_reader_of_the_drawing_sees_each_node_once_and_all_edges(
    graph: tuple[list[str], dict[str, list[str]]],
) -> None:
    nodes, children = graph
    lines = list(branch_lines(nodes, children, UNICODE_BRANCHES))
    assert [line.node for line in lines if line.node is not None] == nodes
    expected = {(node, child) for node, below in children.items() for child in below}
    assert edges_in(lines, UNICODE_BRANCHES) == expected
    assert all(line.text == line.text.rstrip() for line in lines)


@given(graph=graphs())
def test_both_sets_of_characters_draw_lines_of_the_same_width(
    graph: tuple[list[str], dict[str, list[str]]],
) -> None:
    nodes, children = graph
    widths = [
        [len(line.text) for line in branch_lines(nodes, children, glyphs)]
        for glyphs in (UNICODE_BRANCHES, ASCII_BRANCHES)
    ]
    assert widths[0] == widths[1]


@pytest.mark.parametrize("glyphs", [UNICODE_BRANCHES, ASCII_BRANCHES])
def test_each_character_takes_one_cell(glyphs: BranchGlyphs) -> None:
    cells = [getattr(glyphs, name) for name in type(glyphs).__dataclass_fields__]
    assert {len(cell) for cell in cells} == {1}
