"""Patterns as pictures: harmless whatever their names, true to the graph, and of limited size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from patterns import KeptPattern, LlmNode, PatternGraph, PatternLibrary, Stage, ToolNode, svg
from patterns.graph_svg import MAX_CALLS, MAX_STAGES
from patterns.library_svg import MAX_PATTERNS
from tests.svg_reading import assert_harmless, elements, texts
from tests.unit.patterns.pattern_strategies import SAMPLE, chain, law

any_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
HOSTILE = '"/><script>alert(1)</script><a href="x">'


def bars(picture: str) -> list[float]:
    """The widths of the bars' segments."""
    return [
        float(each.get("width", 0))
        for each in elements(picture, "rect")
        if each.get("height") == "14.0" and "fill-opacity" not in each.attrib
    ]


@law
@given(name=any_text | st.just(HOSTILE))
def test_no_name_can_add_anything_to_a_picture(name: str) -> None:
    graph = PatternGraph((LlmNode(name, 1, 1, 1.0), ToolNode(name, 1.0)), ((0, 1),))
    library = PatternLibrary((KeptPattern(1, graph.stages, 0.0),))
    for picture in (graph.svg, graph._repr_html_(), library.svg, library._repr_html_()):
        assert_harmless(picture)


def test_a_hostile_name_is_shown_as_text() -> None:
    graph = PatternGraph((ToolNode("<b>&", 1.0),))
    assert "<b>&" in texts(graph.svg)
    library = PatternLibrary((KeptPattern(1, graph.stages, 0.0),))
    assert "<b>& (tool)" in texts(library.svg)


def test_a_graph_has_a_box_for_each_call_and_a_curve_for_each_dependency() -> None:
    picture = SAMPLE.svg
    assert len(elements(picture, "rect")) == len(SAMPLE.nodes)
    assert len(elements(picture, "path")) == len(SAMPLE.edges)
    red = [each for each in elements(picture, "rect") if each.get("stroke") == svg.RED]
    assert len(red) == len(SAMPLE.critical_path())


def test_an_empty_graph_and_an_empty_library_have_pictures() -> None:
    assert "no calls" in texts(PatternGraph(()).svg)
    assert "0 patterns of 0 runs" in texts(PatternLibrary().svg)
    assert "0 patterns of 0 runs" in texts(PatternLibrary()._repr_html_())


def test_a_large_graph_is_cut_and_what_is_left_out_is_counted() -> None:
    width, depth = MAX_CALLS + 90, MAX_STAGES + 30
    nodes = tuple(LlmNode("m:a", 1, 1, 1.0) for _ in range(width + depth))
    edges = tuple((0 if at == width else at - 1, at) for at in range(width, width + depth))
    picture = PatternGraph(nodes, edges).svg
    assert len(elements(picture, "rect")) == MAX_CALLS + MAX_STAGES - 1
    assert "and 90 more" in texts(picture)
    assert any(f"the first {MAX_STAGES} stages" in each for each in texts(picture))


def test_a_bar_is_divided_by_the_shares_of_time() -> None:
    pattern = KeptPattern(1, chain(("plan", 10, 1.0), ("act", 20, 3.0)), 0.0)
    plan, act = bars(PatternLibrary((pattern,)).svg)
    assert abs((act + 1) - 3 * (plan + 1)) < 0.5
    assert bars(pattern._repr_html_()) == [plan, act]


def test_a_large_library_is_cut_the_heaviest_patterns_come_first() -> None:
    stages: tuple[Stage, ...] = chain(("plan", 10, 1.0))
    patterns = tuple(KeptPattern(at, stages, 0.0, weight=1.0 + at) for at in range(500))
    picture = PatternLibrary(patterns).svg
    assert len(bars(picture)) == MAX_PATTERNS
    assert "500" in texts(picture)
    assert "480 more patterns" in texts(picture)


def test_more_kinds_of_stages_than_colours_are_grey_and_counted() -> None:
    stages = chain(*((f"step{at}", 10, 1.0) for at in range(12)))
    picture = PatternLibrary((KeptPattern(1, stages, 0.0),)).svg
    assert len(bars(picture)) == 12
    assert "4 other kinds" in texts(picture)


def test_a_run_that_was_cut_off_is_drawn_with_a_lower_bound_of_its_time() -> None:
    stages = chain(("plan", 10, 1.0), ("act", 20, 3.0))
    whole, cut_off = [KeptPattern(at, stages, 0.0, is_cut_off=at > 0) for at in range(2)]
    assert "4.0 s" in texts(PatternLibrary((whole,)).svg)
    assert "&gt; 4.0 s" in PatternLibrary((cut_off,)).svg
