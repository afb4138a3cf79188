from __future__ import annotations

import os
import pty
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli.commands.watch import change_printer, read_summaries
from cli.render.overview import RunSummary, bar, overview, plain_line, summarise
from orchestrator.display.glyphs import UNICODE
from store.records import RunOutcome, Status, StepKind, StepRecord
from store.session import open_store
from tests.cli.cli_processes import TIMEOUT_S, orchestrate, read_until, slow_run, started
from tests.cli.cli_samples import (
    NOON,
    a_call,
    a_run,
    exit_code,
    fill_store,
    recorded_runs,
    research_calls,
)

RUN = "3f2a9c1b77de"
NO_PROCESS = 2**30  # larger than any process id of Linux
UNFINISHED: dict[str, Any] = {
    "elapsed_s": None, "finished_at": None, "status": Status.RUNNING, "process_id": os.getpid(),
}  # fmt: skip


def running_run(run_id: str = RUN, **changes: Any) -> Any:
    return a_run(run_id, **{"started_at": datetime.now(UTC), **UNFINISHED, **changes})


def summary_of(run: Any = None, status: str = "running", **counts: int) -> RunSummary:
    defaults = {"num_steps": 3, "num_running": 2, "num_done": 14, "tokens": 1234}
    return RunSummary(run or a_run(started_at=NOON, **UNFINISHED), status, **defaults | counts)


def table_lines(summaries: list[RunSummary], width: int, *, now: datetime = NOON) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(overview(summaries, now=now, width=width))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_a_summary_counts_completed_steps_calls_and_tokens() -> None:
    done = {"status": Status.COMPLETED, "finished_s": 1.0}
    steps = [
        StepRecord(RUN, "plan", "plan", 0.0, **done),  # type: ignore[arg-type]
        StepRecord(RUN, "plan/llm", "llm", 0.0, StepKind.LLM, **done),  # type: ignore[arg-type]
        StepRecord(RUN, "now", "now", 0.0, StepKind.VALUE, **done),  # type: ignore[arg-type]
        StepRecord(RUN, "write", "write", 0.0),
    ]
    summary = summarise(a_run(), "running", research_calls(), steps)
    counts = (summary.num_steps, summary.num_running, summary.num_done, summary.tokens)
    assert counts == (1, 1, 5, 360)


def test_a_run_is_shown_with_its_remaining_time() -> None:
    line = table_lines([summary_of()], 100, now=NOON + timedelta(seconds=15))[1]
    assert line.split()[:5] == ["deep-research", "3f2a9c1b", "running", "15.0", "s"]
    assert "45.0 s" in line
    assert line.split()[-4:] == ["3", "14", "2", "1,234"]
    assert "-1.0 s" in table_lines([summary_of()], 100, now=NOON + timedelta(seconds=61))[1]


@pytest.mark.parametrize(("after_s", "cells"), [(0.0, 0), (15.0, 5), (30.0, 10), (59.9, 19)])
def test_the_bar_is_filled_in_proportion_to_the_elapsed_time(after_s: float, cells: int) -> None:
    now = NOON + timedelta(seconds=after_s)
    text = bar(summary_of(), now=now, cells=20, glyphs=UNICODE).plain
    assert len(text) == 20
    assert text.count(UNICODE.work) == cells


def test_a_late_run_has_another_bar_and_one_without_a_deadline_has_none() -> None:
    now = NOON + timedelta(seconds=61)
    late = bar(summary_of(), now=now, cells=20, glyphs=UNICODE)
    assert late.plain == UNICODE.late * 20
    without_deadline = summary_of(a_run(deadline_s=None, **UNFINISHED))
    assert not bar(without_deadline, now=now, cells=20, glyphs=UNICODE)


def test_80_columns_have_room_for_the_whole_table() -> None:
    ended = summary_of(a_run("aaaa00010000"), "completed", num_running=0, tokens=12_345)
    headings = " ".join(table_lines([summary_of(), ended], 80)[0].split())
    assert headings == "flow run status elapsed deadline left steps calls busy tokens"


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_overview_fits_the_terminal(width: int) -> None:
    summaries = [
        summary_of(),
        summary_of(a_run("aaaa00010000"), "completed", num_running=0, tokens=12_345_678),
        summary_of(a_run("bbbb00010000", flow="a flow with a long name" * 3, deadline_s=None)),
    ]
    lines = table_lines(summaries, width, now=NOON + timedelta(seconds=15))
    assert len(lines) == 4
    assert all(len(line) <= width for line in lines)
    assert all(each.run.id[:8] in line for each, line in zip(summaries, lines[1:], strict=True))
    assert "45.0 s" in lines[1]


def test_a_line_is_printed_only_if_more_than_the_time_has_changed() -> None:
    console = Console(file=StringIO(), width=80)
    print_changes = change_printer(console)
    for summaries in (
        [summary_of()],
        [summary_of()],
        [summary_of(num_done=15)],
        [summary_of(num_done=15), summary_of(a_run("b"))],
    ):
        print_changes(summaries)
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == [RUN, RUN, "b"]
    assert "15 done" in lines[1]


def test_a_plain_line_holds_what_the_table_holds() -> None:
    ended = summary_of(a_run(), "completed")
    assert "completed: 41.2 s of 60.0 s, deadline met; steps" in plain_line(ended, now=NOON)
    assert "61.0 s of 60.0 s, 1.0 s over" in plain_line(
        summary_of(), now=NOON + timedelta(seconds=61)
    )
    assert plain_line(summary_of(), now=NOON + timedelta(seconds=15)) == (
        f"deep-research {RUN} running: 15.0 s of 60.0 s, 45.0 s left; steps: 3 done; "
        "calls: 2 running, 14 done, 1,234 tokens"
    )


async def test_running_runs_come_first_then_the_latest_others(store_url: str) -> None:
    async with await open_store(store_url) as store:
        async with store.transaction() as tx:
            for hour in range(4):
                await tx.runs.add(a_run(f"ended{hour}", started_at=NOON.replace(hour=hour)))
            later = datetime.now(UTC) + timedelta(minutes=1)
            await tx.runs.add(running_run("orphan", started_at=later, process_id=NO_PROCESS))
            await tx.runs.add(running_run(RUN))
        summaries = await read_summaries(store, 3, {})
        assert [each.run.id for each in summaries] == [RUN, "orphan", "ended3", "ended2"]
        statuses = [each.status for each in summaries]
        assert statuses == ["running", "orphaned", "completed", "completed"]
        assert [each.run.id for each in await read_summaries(store, 0, {})] == [RUN]


async def test_a_run_that_has_ended_is_read_once_more_and_then_cached(store_url: str) -> None:
    cache: dict[str, RunSummary] = {}
    async with await open_store(store_url) as store:
        async with store.transaction() as tx:
            await tx.runs.add(running_run())
            await tx.calls.start(replace(research_calls()[-1], node=0))
        (before,) = await read_summaries(store, 10, cache)
        async with store.transaction() as tx:
            await tx.calls.start(a_call(1, 1, "read"))
            await tx.runs.finish(RUN, RunOutcome(Status.COMPLETED, NOON, 1.5))
        (after,) = await read_summaries(store, 10, cache)
        assert (before.status, before.num_done) == ("running", 0)
        assert (after.status, after.num_done) == ("completed", 1)
        assert (await read_summaries(store, 10, cache))[0] is after


def test_once_prints_one_table(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill_store(store_url, [running_run(), a_run("aaaa00010000")])
    assert exit_code("watch", "--once") == 0
    output = capsys.readouterr().out
    assert [line.split()[1] for line in output.splitlines()] == ["run", "3f2a9c1b", "aaaa0001"]
    assert "\x1b" not in output


def test_once_with_a_run_prints_its_timeline(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [running_run()], research_calls())
    assert exit_code("watch", "3f2a", "--once") == 0
    output = capsys.readouterr().out
    assert f"run {RUN} · deep-research · running" in output
    assert "2 read" in output


def test_an_empty_store_is_reported(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill_store(store_url, [])
    assert exit_code("watch", "--once") == 0
    assert "no runs yet" in capsys.readouterr().out


@pytest.mark.usefixtures("subprocesses")
def test_without_a_terminal_events_are_printed_until_the_run_ends(
    corpus: Path, store_url: str
) -> None:
    with started(*slow_run(corpus)) as run:
        read_until(run.stderr, "stage 0")
        with started(*orchestrate("watch")) as watch_all:
            read_until(watch_all.stdout, "calls: 1 running")
            with started(*orchestrate("watch", _id_in(store_url))) as watch_one:
                read_until(watch_one.stdout, "call #0 plan (llm) began")
                run.send_signal(signal.SIGINT)
                rest, errors = watch_one.communicate(timeout=TIMEOUT_S)
            assert (watch_one.returncode, errors) == (0, "")
            assert " cancelled: took " in rest.splitlines()[-1]
            read_until(watch_all.stdout, "cancelled")
            watch_all.send_signal(signal.SIGINT)
            rest, errors = watch_all.communicate(timeout=TIMEOUT_S)
        assert (watch_all.returncode, rest, errors) == (130, "", "")
        run.communicate(timeout=TIMEOUT_S)


@pytest.mark.usefixtures("subprocesses")
def test_on_a_terminal_the_run_is_redrawn_and_the_cursor_is_restored(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    fill_store(store_url, [running_run()], research_calls())
    shown = _on_a_terminal("watch", RUN, until="write", number=signal.SIGTERM)
    assert shown.count("deep-research") > 1
    assert "\x1b[?25l" in shown  # the cursor is hidden during the live display
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # shown again at the end


@pytest.mark.usefixtures("subprocesses")
def test_on_a_terminal_the_table_is_redrawn_until_ctrl_c(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    fill_store(store_url, [running_run()], research_calls())
    shown = _on_a_terminal("watch", until="3f2a9c1b", number=signal.SIGINT)
    assert shown.count("3f2a9c1b") > 1
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def _on_a_terminal(*arguments: str, until: str, number: signal.Signals) -> str:
    """The output of a command on a terminal; the signal is sent after the second redraw."""
    reading, writing = pty.openpty()
    shown = b""
    with started(*orchestrate(*arguments), stdout=writing) as process:
        os.close(writing)  # otherwise reading would not end with the process
        while shown.count(until.encode()) < 2:
            shown += os.read(reading, 65536)
        process.send_signal(number)
        assert process.wait(timeout=TIMEOUT_S) == 128 + number
        assert process.stderr is not None
        assert process.stderr.read() == ""
    shown += os.read(reading, 65536)
    os.close(reading)
    return shown.decode()


def _id_in(store_url: str) -> str:
    return recorded_runs(store_url)[0].id
