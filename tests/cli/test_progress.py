from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from cli.terminal.progress import PlainDisplay, live_view
from orchestrator.display.progress import RunProgress
from orchestrator.events import CallFinished, CallStarted, Event, RunFinished, RunStarted

EVENTS: list[Event] = [
    RunStarted("3f2a", "deep-research", 60.0),
    CallStarted("3f2a", 0, "llm", "demo:plan", 0, 0.1, 15.0),
    CallFinished("3f2a", 0, 0, "completed", 4.0, 63),
    CallStarted("3f2a", 1, "llm", "demo:read", 1, 4.0, 30.0),
    CallStarted("3f2a", 2, "llm", "demo:read", 1, 4.0, 30.0),
    CallStarted("3f2a", 3, "tool", "search", 1, 4.0, 30.0),
    CallFinished("3f2a", 3, 1, "failed", 4.5, 0),
]


def after(events: list[Event]) -> RunProgress:
    progress = RunProgress()
    for event in events:
        progress.update(event)
    return progress


def test_progress_counts_calls_and_tokens() -> None:
    progress = after(EVENTS)
    assert progress.calls_line() == "2 running, 1 done, 1 failed, 63 tokens"
    assert progress.stage_line(5.0) == "stage 1 read ×2, due in 25.0 s"  # noqa: RUF001
    assert progress.time_line(5.0) == "5.0 s of 60.0 s, 55.0 s left"


def test_time_past_a_deadline_is_shown_as_over_or_ago() -> None:
    progress = after(EVENTS)
    assert progress.time_line(61.0) == "61.0 s of 60.0 s, 1.0 s over"
    assert progress.stage_line(31.0).endswith("due 1.0 s ago")


def test_a_run_without_a_deadline_shows_the_elapsed_time_only() -> None:
    progress = after([RunStarted("3f2a", "deep-research", None)])
    assert progress.time_line(5.0) == "5.0 s, no deadline"
    assert progress.stage_line(5.0) == "starting"


def test_the_end_of_a_run_is_recorded() -> None:
    assert after([*EVENTS, RunFinished("3f2a", "completed", 9.0)]).ended_s == 9.0


def test_without_a_terminal_a_line_is_printed_for_each_stage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with PlainDisplay(RunProgress(), clock=lambda: 0.0) as display:
        for event in EVENTS:
            display.on_event(event)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "stage 0" in line] == lines[1:2]
    assert [line for line in lines if "stage 1" in line] == lines[2:]
    assert len(lines) == 3


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize("events", [[], EVENTS[:1], EVENTS])
def test_the_live_view_fits_the_terminal(width: int, events: list[Event]) -> None:
    console = Console(file=StringIO(), width=width)
    console.print(live_view(after(events), 5.0, spinner="*"))
    assert isinstance(console.file, StringIO)
    assert all(len(line) <= width for line in console.file.getvalue().splitlines())
