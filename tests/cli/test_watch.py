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

from cli.commands.watch import changes, glances
from cli.render.overview import RunSummary, bar, overview, plain_line, summarise
from cli.terminal.glyphs import UNICODE
from store.records import RunOutcome, Status, StepKind, StepRecord
from store.session import open_store
from tests.cli.cli_processes import PATIENCE_S, orchestrate, read_until, slow_run, started
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
NOBODY = 2**30  # more than any process id that Linux gives
UNFINISHED: dict[str, Any] = {
    "elapsed_s": None, "finished_at": None, "status": Status.RUNNING, "process_id": os.getpid(),
}  # fmt: skip


def going_on(run_id: str = RUN, **changes: Any) -> Any:
    return a_run(run_id, **{"started_at": datetime.now(UTC), **UNFINISHED, **changes})


def seen(run: Any = None, status: str = "running", **counts: int) -> RunSummary:
    given = {"num_steps": 3, "num_running": 2, "num_done": 14, "tokens": 1234}
    return RunSummary(run or a_run(started_at=NOON, **UNFINISHED), status, **given | counts)


def drawn(found: list[RunSummary], width: int, *, now: datetime = NOON) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(overview(found, now=now, width=width))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_a_glance_counts_steps_calls_and_tokens() -> None:
    done = {"status": Status.COMPLETED, "finished_s": 1.0}
    steps = [
        StepRecord(RUN, "plan", "plan", 0.0, **done),  # type: ignore[arg-type]
        StepRecord(RUN, "plan/llm", "llm", 0.0, StepKind.LLM, **done),  # type: ignore[arg-type]
        StepRecord(RUN, "now", "now", 0.0, StepKind.VALUE, **done),  # type: ignore[arg-type]
        StepRecord(RUN, "write", "write", 0.0),
    ]
    found = summarise(a_run(), "running", research_calls(), steps)
    assert (found.num_steps, found.num_running, found.num_done, found.tokens) == (1, 1, 5, 360)


def test_a_run_is_shown_with_the_time_that_is_left() -> None:
    line = drawn([seen()], 100, now=NOON + timedelta(seconds=15))[1]
    assert line.split()[:5] == ["deep-research", "3f2a9c1b", "running", "15.0", "s"]
    assert "45.0 s" in line
    assert line.split()[-4:] == ["3", "14", "2", "1,234"]
    assert "-1.0 s" in drawn([seen()], 100, now=NOON + timedelta(seconds=61))[1]


@pytest.mark.parametrize(("after_s", "cells"), [(0.0, 0), (15.0, 5), (30.0, 10), (59.9, 19)])
def test_the_bar_is_filled_as_far_as_time_is_used_up(after_s: float, cells: int) -> None:
    now = NOON + timedelta(seconds=after_s)
    text = bar(seen(), now=now, cells=20, glyphs=UNICODE).plain
    assert len(text) == 20
    assert text.count(UNICODE.work) == cells


def test_the_bar_of_a_late_run_is_drawn_otherwise_and_none_without_a_deadline() -> None:
    now = NOON + timedelta(seconds=61)
    late = bar(seen(), now=now, cells=20, glyphs=UNICODE)
    assert late.plain == UNICODE.late * 20
    free = seen(a_run(deadline_s=None, **UNFINISHED))
    assert not bar(free, now=now, cells=20, glyphs=UNICODE)


def test_a_usual_terminal_has_room_for_everything() -> None:
    ended = seen(a_run("aaaa00010000"), "completed", num_running=0, tokens=12_345)
    heads = " ".join(drawn([seen(), ended], 80)[0].split())
    assert heads == "flow run status elapsed deadline left steps calls busy tokens"


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_overview_fits_the_terminal(width: int) -> None:
    found = [
        seen(),
        seen(a_run("aaaa00010000"), "completed", num_running=0, tokens=12_345_678),
        seen(a_run("bbbb00010000", flow="a flow with a long name" * 3, deadline_s=None)),
    ]
    lines = drawn(found, width, now=NOON + timedelta(seconds=15))
    assert len(lines) == 4
    assert all(len(line) <= width for line in lines)
    assert all(one.run.id[:8] in line for one, line in zip(found, lines[1:], strict=True))
    assert "45.0 s" in lines[1]


def test_a_line_is_printed_only_when_something_but_the_time_has_changed() -> None:
    console = Console(file=StringIO(), width=80)
    tell = changes(console)
    for found in ([seen()], [seen()], [seen(num_done=15)], [seen(num_done=15), seen(a_run("b"))]):
        tell(found)
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == [RUN, RUN, "b"]
    assert "15 done" in lines[1]


def test_a_line_says_all_that_the_table_does() -> None:
    ended = seen(a_run(), "completed")
    assert "completed: 41.2 s of 60.0 s, deadline met; steps" in plain_line(ended, now=NOON)
    assert "61.0 s of 60.0 s, 1.0 s over" in plain_line(seen(), now=NOON + timedelta(seconds=61))
    assert plain_line(seen(), now=NOON + timedelta(seconds=15)) == (
        f"deep-research {RUN} running: 15.0 s of 60.0 s, 45.0 s left; steps: 3 done; "
        "calls: 2 running, 14 done, 1,234 tokens"
    )


async def test_runs_that_go_on_come_first_then_the_latest_others(store_url: str) -> None:
    async with await open_store(store_url) as store:
        async with store.transaction() as tx:
            for hour in range(4):
                await tx.runs.add(a_run(f"ended{hour}", started_at=NOON.replace(hour=hour)))
            later = datetime.now(UTC) + timedelta(minutes=1)
            await tx.runs.add(going_on("orphan", started_at=later, process_id=NOBODY))
            await tx.runs.add(going_on(RUN))
        found = await glances(store, 3, {})
        assert [one.run.id for one in found] == [RUN, "orphan", "ended3", "ended2"]
        assert [one.status for one in found] == ["running", "orphaned", "completed", "completed"]
        assert [one.run.id for one in await glances(store, 0, {})] == [RUN]


async def test_a_run_that_ends_is_seen_to(store_url: str) -> None:
    known: dict[str, RunSummary] = {}
    async with await open_store(store_url) as store:
        async with store.transaction() as tx:
            await tx.runs.add(going_on())
            await tx.calls.start(replace(research_calls()[-1], node=0))
        (before,) = await glances(store, 10, known)
        async with store.transaction() as tx:
            await tx.calls.start(a_call(1, 1, "read"))
            await tx.runs.finish(RUN, RunOutcome(Status.COMPLETED, NOON, 1.5))
        (after,) = await glances(store, 10, known)
        assert (before.status, before.num_done) == ("running", 0)
        assert (after.status, after.num_done) == ("completed", 1)
        assert (await glances(store, 10, known))[0] is after


def test_once_prints_one_frame(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill_store(store_url, [going_on(), a_run("aaaa00010000")])
    assert exit_code("watch", "--once") == 0
    told = capsys.readouterr().out
    assert [line.split()[1] for line in told.splitlines()] == ["run", "3f2a9c1b", "aaaa0001"]
    assert "\x1b" not in told


def test_once_with_a_run_is_its_picture(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill_store(store_url, [going_on()], research_calls())
    assert exit_code("watch", "3f2a", "--once") == 0
    told = capsys.readouterr().out
    assert f"run {RUN} · deep-research · running" in told
    assert "2 read" in told


def test_an_empty_store_is_told_as_such(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill_store(store_url, [])
    assert exit_code("watch", "--once") == 0
    assert "no runs yet" in capsys.readouterr().out


def test_without_a_terminal_a_run_is_told_in_lines_until_it_ends(
    corpus: Path, store_url: str
) -> None:
    with started(*slow_run(corpus)) as run:
        read_until(run.stderr, "stage 0")
        with started(*orchestrate("watch")) as every:
            read_until(every.stdout, "calls: 1 running")
            with started(*orchestrate("watch", _id_in(store_url))) as one:
                read_until(one.stdout, "call #0 plan (llm) began")
                run.send_signal(signal.SIGINT)
                rest, complaints = one.communicate(timeout=PATIENCE_S)
            assert (one.returncode, complaints) == (0, "")
            assert " cancelled: took " in rest.splitlines()[-1]
            read_until(every.stdout, "cancelled")
            every.send_signal(signal.SIGINT)
            rest, complaints = every.communicate(timeout=PATIENCE_S)
        assert (every.returncode, rest, complaints) == (130, "", "")
        run.communicate(timeout=PATIENCE_S)


def test_on_a_terminal_the_picture_is_redrawn_and_its_last_one_stays(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    fill_store(store_url, [going_on()], research_calls())
    shown = _on_a_terminal("watch", RUN, until="write", number=signal.SIGTERM)
    assert shown.count("deep-research") > 1
    assert "\x1b[?25l" in shown  # the cursor is hidden while it is redrawn,
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # and there again at the end


def test_on_a_terminal_the_overview_goes_on_until_ctrl_c(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    fill_store(store_url, [going_on()], research_calls())
    shown = _on_a_terminal("watch", until="3f2a9c1b", number=signal.SIGINT)
    assert shown.count("3f2a9c1b") > 1
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def _on_a_terminal(*arguments: str, until: str, number: signal.Signals) -> str:
    """What a command shows on a terminal, which sends it a signal at the second redrawing."""
    reading, writing = pty.openpty()
    shown = b""
    with started(*orchestrate(*arguments), stdout=writing) as process:
        os.close(writing)  # its end is to be seen
        while shown.count(until.encode()) < 2:
            shown += os.read(reading, 65536)
        process.send_signal(number)
        assert process.wait(timeout=PATIENCE_S) == 128 + number
        assert process.stderr is not None
        assert process.stderr.read() == ""
    shown += os.read(reading, 65536)
    os.close(reading)
    return shown.decode()


def _id_in(store_url: str) -> str:
    return recorded_runs(store_url)[0].id
