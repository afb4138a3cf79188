from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from orchestrator.display.axis import Axis, axis_for
from orchestrator.display.glyphs import UNICODE
from orchestrator.display.rows import rows_of
from orchestrator.display.text_timeline import MAX_ROWS, MIN_WIDTH, timeline_lines
from store.records import CallRecord, Status
from tests.cli.cli_samples import a_call, a_run, research_calls

times = st.floats(min_value=0.0, max_value=1e6)


def plain(lines: list[Text]) -> str:
    return "\n".join(line.plain for line in lines)


def drawn(
    *, calls: list[CallRecord] | None = None, width: int = 80, ascii_only: bool = False
) -> str:
    calls = research_calls() if calls is None else calls
    return plain(timeline_lines(a_run(), calls, width=width, ascii_only=ascii_only))


UNICODE_80 = """\
                   0       15 s    30 s    45 s         ended      due     slack
                   ┬───────┬───────┬───────┬───────┃
0 plan             ██▍ │                           ┃    4.2 s    7.5 s    +3.3 s
1 search (tool) ×2   ▍     │                       ┃    4.4 s   15.0 s   +10.6 s
2 read ×2            ██████│▓▓▓                    ┃   20.5 s   15.5 s    -5.0 s
3 write                       ░░░░░░░░░░░          ┃        –   60.0 s         –
█ running   ▓ past its sub-deadline   ░ did not end   │ sub-deadline
┃ deadline 60.0 s"""  # noqa: RUF001

ASCII_60 = """\
                   0          30 s           ended     slack
                   +----------+---------!
0 plan             ==|                  !    4.2 s    +3.3 s
1 search (tool) x2  =   |               !    4.4 s   +10.6 s
2 read x2           ====|xx             !   20.5 s    -5.0 s
3 write                   ~~~~~~~~      !        -         -
= running   x past its sub-deadline   ~ did not end
| sub-deadline   ! deadline 60.0 s"""

LATE_100 = """\
           0        10 s     20 s     30 s      40 s     50 s       ended      due     slack  tokens
           ┬────────┬────────┬────────┬─────────┃────────┬──────
0 plan     ██████████████████│▓▓▓▓▓▓▓▓▓         ┃                  30.0 s   20.0 s   -10.0 s     120
  #0 plan  ██████████████████│▓▓▓▓▓▓▓▓▓         ┃                  30.0 s   20.0 s   -10.0 s     120
1 write                               ██████████┃▓▓▓▓▓▓▓▓▓▓▓▓▓     55.0 s   40.0 s   -15.0 s     120
  #1 write                            ██████████┃▓▓▓▓▓▓▓▓▓▓▓▓▓     55.0 s   40.0 s   -15.0 s     120
█ running   ▓ past its sub-deadline   │ sub-deadline   ┃ deadline 40.0 s"""

BROKEN_80 = """\
        0                   500 ms                      ended      due     slack
        ┬───────────────────┬─────────────────────┈┃
0 plan  ████████████████████▎                     │┃   500 ms   30.0 s   +29.5 s
1 write                     ████████████████████▍ │┃    1.0 s   60.0 s   +59.0 s
█ running   │ sub-deadline   ┃ deadline 60.0 s, not to scale"""

RUNNING_80 = """\
        0         500 ms     1 s       1.5 s            ended      due     slack
        ┬─────────┬──────────┬─────────┬────────────
0 plan  ██████████▋                                    500 ms        –         –
1 write           ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░          –        –         –
█ running   ░ has not ended"""  # noqa: RUF001


def test_a_run_is_drawn_as_in_this_example() -> None:
    assert drawn() == UNICODE_80


def test_a_terminal_without_unicode_gets_the_timeline_in_ascii() -> None:
    assert drawn(width=60, ascii_only=True) == ASCII_60


def test_late_time_is_drawn_differently_and_the_axis_extends_past_the_deadline() -> None:
    calls = [
        a_call(0, 0, "plan", started_s=1.0, finished_s=30.0, sub_deadline_s=20.0),
        a_call(
            1,
            1,
            "write",
            started_s=30.0,
            finished_s=55.0,
            sub_deadline_s=40.0,
            status=Status.FAILED,
        ),
    ]
    run = a_run(deadline_s=40.0, elapsed_s=55.0)
    assert plain(timeline_lines(run, calls, width=100, with_calls=True)) == LATE_100


def test_a_deadline_far_beyond_the_work_is_drawn_after_a_break() -> None:
    calls = [
        a_call(0, 0, "plan", finished_s=0.5, sub_deadline_s=30.0),
        a_call(1, 1, "write", started_s=0.5, finished_s=1.0, sub_deadline_s=60.0),
    ]
    assert plain(timeline_lines(a_run(elapsed_s=1.0), calls, width=80)) == BROKEN_80


def test_a_running_run_is_drawn_up_to_now() -> None:
    calls = [
        a_call(0, 0, "plan", finished_s=0.5),
        a_call(1, 1, "write", started_s=0.5, finished_s=None, status=Status.RUNNING),
    ]
    run = a_run(deadline_s=None, elapsed_s=None, status=Status.RUNNING)
    assert plain(timeline_lines(run, calls, width=80, now_s=2.0)) == RUNNING_80


@given(
    spans=st.lists(
        st.tuples(times, st.none() | times, st.none() | times, st.integers(0, 5)), max_size=12
    ),
    deadline_s=st.none() | st.floats(min_value=0.001, max_value=1e6),
    elapsed_s=st.none() | times,
    width=st.integers(60, 200),
    ascii_only=st.booleans(),
    with_calls=st.booleans(),
)
def test_no_line_is_wider_than_the_given_width(
    spans: list[tuple[float, float | None, float | None, int]],
    deadline_s: float | None,
    elapsed_s: float | None,
    width: int,
    ascii_only: bool,
    with_calls: bool,
) -> None:
    calls = [
        a_call(
            node,
            stage,
            "a-step-with-a-long-name",
            started_s=began_s,
            finished_s=None if took_s is None else began_s + took_s,
            sub_deadline_s=due_s,
        )
        for node, (began_s, took_s, due_s, stage) in enumerate(spans)
    ]
    run = a_run(deadline_s=deadline_s, elapsed_s=elapsed_s)
    lines = timeline_lines(run, calls, width=width, ascii_only=ascii_only, with_calls=with_calls)
    assert all(len(line.plain) <= width for line in lines)
    if ascii_only:
        assert all(line.plain.isascii() for line in lines)


@pytest.mark.parametrize("width", [-1, 0, 1, 20, 34, 35, MIN_WIDTH])
@pytest.mark.parametrize("deadline_s", [None, 0.5, 1e6])
def test_a_timeline_that_is_asked_to_be_too_narrow_has_the_least_width(
    width: int, deadline_s: float | None
) -> None:
    run, calls = a_run(deadline_s=deadline_s), [a_call(0, 0, "a-step-with-a-long-name")]
    least = plain(timeline_lines(run, calls, width=MIN_WIDTH))
    assert plain(timeline_lines(run, calls, width=width)) == least
    assert all(len(line) <= MIN_WIDTH for line in least.splitlines()[:3])


@pytest.mark.parametrize("with_calls", [False, True])
def test_a_timeline_of_many_stages_counts_those_that_it_does_not_draw(with_calls: bool) -> None:
    calls = [a_call(node, node, "step", output_tokens=2) for node in range(1000)]
    calls[-1] = replace(calls[-1], status=Status.FAILED)
    lines = timeline_lines(a_run(), calls, width=120, with_calls=with_calls)
    assert len(lines) <= MAX_ROWS + 10
    num_left = (2000 if with_calls else 1000) - MAX_ROWS + 1
    [others] = [line for line in lines if f"and {num_left:,} more stages" in line.plain]
    num_drawn = -(-(MAX_ROWS - 1) // 2) if with_calls else MAX_ROWS - 1
    assert others.plain.endswith(f" {2 * (1000 - num_drawn):,}")
    assert any(span.style == "red" for span in others.spans)


@given(at_s=times, work_end_s=times, deadline_s=st.none() | times, cells=st.integers(10, 150))
def test_every_time_has_a_cell_on_the_axis(
    at_s: float, work_end_s: float, deadline_s: float | None, cells: int
) -> None:
    axis = axis_for(work_end_s=work_end_s, deadline_s=deadline_s, cells=cells)
    assert 0 <= axis.cell(at_s) < cells
    assert 0 <= axis.place(at_s) <= cells
    assert axis.deadline_cell is None or 0 <= axis.deadline_cell < cells


@given(one_s=times, other_s=times, work_end_s=times, deadline_s=st.none() | times)
def test_a_later_time_is_never_further_left(
    one_s: float, other_s: float, work_end_s: float, deadline_s: float | None
) -> None:
    axis = axis_for(work_end_s=work_end_s, deadline_s=deadline_s, cells=40)
    earlier, later = sorted([one_s, other_s])
    assert axis.cell(earlier) <= axis.cell(later)


@given(work_end_s=times, deadline_s=st.none() | times, cells=st.integers(10, 150))
def test_labels_stay_on_the_axis(work_end_s: float, deadline_s: float | None, cells: int) -> None:
    labels = axis_for(work_end_s=work_end_s, deadline_s=deadline_s, cells=cells).labels()
    assert len(labels) == cells
    assert labels.startswith("0")


def test_the_axis_is_broken_only_if_the_deadline_is_far_beyond_the_work() -> None:
    assert axis_for(work_end_s=3.0, deadline_s=60.0, cells=40).broken
    assert not axis_for(work_end_s=21.0, deadline_s=60.0, cells=40).broken


def test_work_past_the_deadline_is_on_the_axis() -> None:
    axis = axis_for(work_end_s=90.0, deadline_s=60.0, cells=40)
    assert axis.deadline_cell is not None
    assert axis.deadline_cell < axis.cell(89.9)


def test_a_call_of_no_duration_is_still_visible() -> None:
    calls = [a_call(0, 0, "plan", started_s=10.0, finished_s=10.0)]
    bar = drawn(calls=calls).splitlines()[2]
    assert set(bar) & set(UNICODE.partial)


def test_a_stage_lasts_from_its_first_start_to_its_last_end() -> None:
    rows = rows_of(a_run(), research_calls(), with_calls=False)
    assert [(row.began_s, row.ended_s) for row in rows] == [
        (0.1, 4.2),
        (4.2, 4.4),
        (4.5, 20.5),
        (20.6, None),
    ]
    assert [row.tokens for row in rows] == [120, 0, 240, 0]
    assert rows[2].slack_s == -5.0
    assert rows[3].slack_s is None


def test_calls_are_drawn_below_their_stage() -> None:
    rows = rows_of(a_run(), research_calls(), with_calls=True)
    labels = [row.label for row in rows]
    assert labels[:5] == ["0 plan", "  #0 plan", "1 search (tool) ×2", "  #1 search", "  #2 search"]  # noqa: RUF001


def test_a_stage_with_a_failed_call_has_failed() -> None:
    calls = research_calls()
    calls[3] = replace(calls[3], status=Status.FAILED)
    assert [row.status for row in rows_of(a_run(), calls, with_calls=False)] == [
        Status.COMPLETED,
        Status.COMPLETED,
        Status.FAILED,
        Status.RUNNING,
    ]


def test_a_run_without_calls_has_no_timeline() -> None:
    assert drawn(calls=[]) == "no calls were made"


@pytest.mark.parametrize(("width", "columns"), [(60, 2), (80, 3), (140, 4)])
def test_wider_terminals_get_more_columns(width: int, columns: int) -> None:
    head = drawn(width=width).splitlines()[0].split()
    assert head[-columns] == "ended"


def test_an_axis_without_a_deadline_marks_none() -> None:
    assert Axis(cells=20, end_s=1.0).deadline_cell is None
