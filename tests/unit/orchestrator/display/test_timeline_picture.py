"""The picture of a run: harmless whatever its names, and true to the records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import RunResult, Timeline
from orchestrator.display.picture_rows import MAX_ROWS, picture_rows
from orchestrator.display.run_log import RunLog
from orchestrator.display.text_timeline import timeline_lines
from patterns import svg
from store.records import CallKind, CallRecord, Status, StepRecord
from tests.cli.cli_samples import a_call, a_run, research_calls
from tests.svg_reading import assert_harmless, elements, texts
from tests.unit.orchestrator.orchestrator_samples import law

HOSTILE = '</text><script>alert(1)</script><img src=x onerror="alert(1)">\x1b[2J\x00&amp;]]>'


def a_step(path: str, **changes: Any) -> StepRecord:
    defaults: dict[str, Any] = {
        "run_id": "3f2a9c1b77de",
        "path": path,
        "name": path.rpartition("/")[2],
        "started_s": 0.0,
        "finished_s": 1.0,
        "status": Status.COMPLETED,
    }
    return StepRecord(**defaults | changes)


def red(picture: str) -> list[str]:
    """The bars that are red: late, or cut off."""
    return [
        "cut" if "stroke-dasharray" in bar.attrib else "late"
        for bar in elements(picture, "rect")
        if bar.get("fill") == svg.RED and bar.get("width") != "10.0"  # not of the legend
    ]


@law
@given(name=st.text(st.characters(exclude_categories=[]), min_size=1) | st.just(HOSTILE))
def test_no_name_and_no_message_can_add_anything_to_the_picture(name: str) -> None:
    run = a_run(name, flow=name, model=name, error_type=name, error_message=name)
    run = replace(run, status=Status.FAILED)
    calls = [a_call(0, 0, name), a_call(1, 1, name, kind=CallKind.TOOL, step_path=f"{name}/x")]
    timeline = Timeline(run, calls, [a_step(name, name=name)])
    assert_harmless(timeline.svg)
    assert_harmless(timeline.html)


def test_a_hostile_name_is_shown_as_text() -> None:
    timeline = Timeline(a_run(), [a_call(0, 0, '<b>&"')])
    assert '<b>&"' in texts(timeline.svg)
    assert '<b>&"' in texts(timeline.html)


def test_the_value_of_a_result_is_text_and_not_markup() -> None:
    log = RunLog(a_run(flow=HOSTILE))
    html = RunResult(HOSTILE, "r", 60.0, 41.2, (), log)._repr_html_()
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    without_log = RunResult([HOSTILE], "<i>", 60.0, 41.2, ())._repr_html_()
    assert "<script" not in without_log
    assert "run &lt;i&gt; took 41.2 s of 60.0 s" in without_log


def test_a_long_value_is_cut_and_its_length_is_said() -> None:
    html = RunResult("x" * 10_000, "r", None, 1.0, ())._repr_html_()
    assert len(html) < 2500
    assert "10,000 characters" in html


def test_an_empty_run_says_so() -> None:
    picture = Timeline(a_run(elapsed_s=0.0)).svg
    assert "no steps and no calls" in texts(picture)
    assert not elements(picture, "rect")


def test_a_failed_run_says_why_in_red() -> None:
    run = a_run(status=Status.FAILED, error_type="Boom", error_message="no luck")
    [line] = [each for each in elements(Timeline(run).svg, "text") if each.get("fill") == svg.RED]
    assert "failed: Boom: no luck" in (line.text or "")


def test_a_run_that_missed_its_deadline_says_so_in_red() -> None:
    picture = Timeline(a_run(elapsed_s=61.0)).svg
    [line] = [each for each in elements(picture, "text") if each.get("fill") == svg.RED]
    assert (line.text or "").startswith("took 61.0 s of 60.0 s: deadline missed, 1.0 s late")


def test_a_run_without_a_deadline_has_no_line_of_a_deadline() -> None:
    with_one, without = Timeline(a_run()).svg, Timeline(a_run(deadline_s=None)).svg
    assert any(each.startswith("deadline ") for each in texts(with_one))
    assert not any(each.startswith("deadline ") for each in texts(without))
    assert any(each.startswith("took 41.2 s, no deadline") for each in texts(without))


def test_what_is_late_and_what_was_cut_off_is_red() -> None:
    on_time = a_call(0, 0, "a", finished_s=5.0, sub_deadline_s=6.0)
    late = a_call(1, 1, "b", finished_s=9.0, sub_deadline_s=6.0)
    cut = a_call(2, 2, "c", finished_s=9.0, status=Status.CANCELLED)
    assert red(Timeline(a_run(), [on_time]).svg) == []
    assert red(Timeline(a_run(), [on_time, late]).svg) == ["late"]
    assert red(Timeline(a_run(), [on_time, late, cut]).svg) == ["late", "cut"]


def test_a_bar_is_where_its_times_are() -> None:
    calls = [
        a_call(0, 0, "a", started_s=10.0, finished_s=20.0),
        a_call(1, 1, "b", started_s=20.0, finished_s=60.0),
    ]
    bars = [
        (float(bar.get("x", 0)), float(bar.get("width", 0)))
        for bar in elements(Timeline(a_run(elapsed_s=60.0), calls).svg, "rect")
        if bar.get("height") == "12.0"
    ]
    (x1, width1), (x2, width2) = bars
    assert x1 + width1 == pytest.approx(x2, abs=0.2)
    assert width2 == pytest.approx(4 * width1, rel=0.01)


def test_a_step_with_one_call_is_one_row_and_one_with_several_has_rows_for_each() -> None:
    steps = [a_step("one"), a_step("two", started_s=2.0), a_step("two/inner", started_s=3.0)]
    calls = [
        a_call(0, 0, "one", step_path="one/llm"),
        a_call(1, 1, "two", step_path="two/llm", started_s=2.0),
        a_call(2, 2, "inner", step_path="two/inner/llm", started_s=3.0),
    ]
    rows, are_stages = picture_rows(a_run(), calls, steps)
    assert not are_stages
    assert [(row.row.label, row.kind, row.depth) for row in rows] == [
        ("one", "llm", 0),
        ("two", "step", 0),
        ("two", "llm", 1),
        ("inner", "llm", 1),
    ]


@pytest.mark.parametrize("num_stages", [3, 5000])
def test_the_picture_of_a_huge_run_is_small_and_its_rows_cover_all_of_it(num_stages: int) -> None:
    calls = [
        a_call(at, at % num_stages, "read", started_s=float(at), finished_s=at + 1.0)
        for at in range(5000)
    ]
    rows, are_stages = picture_rows(a_run(), calls, [])
    assert are_stages
    assert len(rows) == min(num_stages, MAX_ROWS)
    assert max(row.row.ended_s or 0.0 for row in rows) == 5000.0
    picture = Timeline(a_run(elapsed_s=5000.0), calls).svg
    assert len(picture) < 40_000
    assert any("more stages" in each for each in texts(picture)) == (num_stages > MAX_ROWS)


def test_deeply_nested_names_do_not_leave_the_picture() -> None:
    path = "/".join("deep" for _ in range(30))
    parts = path.split("/")
    steps = [a_step("/".join(parts[: at + 1])) for at in range(len(parts))]
    picture = Timeline(a_run(), [], steps).svg
    [width] = [float(each.get("width", 0)) for each in elements(picture, "svg")]
    for each in elements(picture, "text"):
        assert float(each.get("x", 0)) <= width


def test_a_run_that_goes_on_is_drawn_until_now() -> None:
    calls = [a_call(0, 0, "a", started_s=1.0, finished_s=None, status=Status.RUNNING)]
    run = a_run(status=Status.RUNNING, elapsed_s=None, finished_at=None)
    timeline = Timeline(run, calls, (), 30.0)
    assert "so far 30.0 s of 60.0 s · running" in texts(timeline.svg)
    [bar] = [each for each in elements(timeline.svg, "rect") if each.get("height") == "12.0"]
    [whole] = [
        float(each.get("x1", 0))
        for each in elements(timeline.svg, "line")
        if each.get("stroke-width") == "2"
    ]
    end = float(bar.get("x", 0)) + float(bar.get("width", 0))
    assert end == pytest.approx(whole / 2, rel=0.2)


def test_as_text_it_is_the_same_as_in_a_terminal() -> None:
    calls: list[CallRecord] = research_calls()
    lines = [line.plain.rstrip() for line in timeline_lines(a_run(), calls, width=100)]
    head, *rest = repr(Timeline(a_run(), calls)).splitlines()
    assert rest == lines
    assert head == (
        "deep-research, completed: took 41.2 s of 60.0 s: deadline met, 18.8 s to spare"
    )


def test_the_file_has_a_background_and_the_element_of_a_page_has_none() -> None:
    timeline = Timeline(a_run(), research_calls())
    assert "prefers-color-scheme:dark" in timeline.svg
    assert "<style" not in timeline.html  # it would apply to the page around
    assert timeline._repr_html_() == timeline.html
