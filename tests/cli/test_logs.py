from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.reading.following import follow
from cli.reading.history import History
from cli.render.event_line import EventLine, take_new
from cli.render.event_log import event_lines
from store.records import CallKind, CallOutcome, RunOutcome, Status, StepKind, StepRecord
from store.session import open_store
from tests.cli.cli_processes import TIMEOUT_S, orchestrate, read_until, slow_run, started
from tests.cli.cli_samples import NOON, a_call, a_run, exit_code, fill_store, research_calls

RUN = "3f2a9c1b77de"
NO_PROCESS = 2**30  # larger than any process id of Linux
UNFINISHED: dict[str, Any] = {"elapsed_s": None, "finished_at": None, "status": Status.RUNNING}


def a_step(path: str, started_s: float, finished_s: float | None, **changes: Any) -> StepRecord:
    status = Status.RUNNING if finished_s is None else Status.COMPLETED
    name = path.rpartition("/")[2]
    defaults: dict[str, Any] = {"status": status, "finished_s": finished_s, "name": name}
    return StepRecord(run_id=RUN, path=path, started_s=started_s, **defaults | changes)


def history_of(
    run: Any = None, calls: Any = (), steps: Any = (), status: str | None = None
) -> History:
    run = run or a_run(RUN)
    return History(run, status or str(run.status), calls=calls, steps=steps)


def texts(history: History) -> list[str]:
    return [event.text.plain for event in event_lines(history)]


def names(events: list[EventLine]) -> list[str]:
    return [event.event for event in events]


@pytest.fixture
def one_run(store_url: str) -> str:
    steps = [a_step("plan", 0.0, 4.3), a_step("plan/llm", 0.1, 4.2, kind=StepKind.LLM)]
    calls = [replace(call, step_path=f"{call.step_path}/llm") for call in research_calls()]
    older = a_run("aaaa00010000", started_at=NOON - timedelta(hours=1))
    fill_store(store_url, [older, a_run(RUN)], calls, steps)
    return RUN


def test_events_are_printed_from_start_to_end_in_order_of_time(
    one_run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("logs", "3f2a") == 0
    lines = capsys.readouterr().out.splitlines()
    times = [float(line.split(" s ")[0]) for line in lines]
    assert times == sorted(times)
    assert lines[0].endswith(
        f"run {RUN} began: deep-research, deadline 60.0 s, embedded engine, model demo, policy edf"
    )
    assert lines[-1] == f"  41.200 s  run {RUN} completed in time: took 41.2 s of 60.0 s"


def test_a_call_is_printed_with_its_sub_deadline_and_not_also_as_a_step(one_run: str) -> None:
    call = a_call(
        0, 0, "plan", started_s=0.1, finished_s=4.2, sub_deadline_s=7.5, prompt_tokens=1200,
        cached_tokens=16, ttft_s=0.05, step_path="plan/llm",
    )  # fmt: skip
    steps = [a_step("plan", 0.0, 4.3), a_step("plan/llm", 0.1, 4.2, kind=StepKind.LLM)]
    assert texts(history_of(calls=[call], steps=steps))[1:-1] == [
        "step plan began",
        "call #0 plan (llm) began: stage 0, due at 7.5 s",
        "call #0 plan (llm) completed after 4.1 s, 1,200 tokens in (16 cached), 120 out, "
        "first token after 50 ms, 3.3 s early",
        "step plan completed after 4.3 s",
    ]


def test_without_an_id_the_newest_run_is_printed(
    one_run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("logs") == 0
    assert f"run {one_run} began" in capsys.readouterr().out


def test_json_has_one_object_per_line_of_text(
    one_run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("logs") == 0
    lines = capsys.readouterr().out.splitlines()
    assert exit_code("logs", "--json") == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(documents) == len(lines)
    assert {document["run"] for document in documents} == {one_run}
    late = next(
        each for each in documents if each["event"] == "call_finished" and each["node"] == 4
    )
    assert late["identity"] == "demo:read"
    assert (late["stage"], late["kind"], late["output_tokens"]) == (2, "llm", 120)
    assert late["slack_s"] == pytest.approx(-5.0)
    assert documents[-1]["event"] == "run_finished"
    assert documents[-1]["in_time"] is True


def test_failures_are_printed_with_their_errors() -> None:
    failed: dict[str, Any] = {
        "status": Status.FAILED, "error_type": "EngineDied", "error_message": "out of\nmemory",
    }  # fmt: skip
    run = a_run(RUN, elapsed_s=3.0, **failed)
    call = a_call(0, 0, "plan", finished_s=3.0, output_tokens=None, **failed)
    lines = texts(history_of(run, [call], [a_step("plan", 0.0, 3.0, **failed)]))
    error = "EngineDied: out of memory"
    assert f"call #0 plan (llm) failed after 3.0 s: {error}" in lines
    assert f"step plan failed after 3.0 s: {error}" in lines
    assert lines[-1] == f"run {RUN} failed: took 3.0 s of 60.0 s: {error}"


def test_a_run_past_its_deadline_is_called_late() -> None:
    assert texts(history_of(a_run(RUN, elapsed_s=61.0)))[-1].startswith(f"run {RUN} completed late")
    assert texts(history_of(a_run(RUN, deadline_s=None)))[-1] == f"run {RUN} completed: took 41.2 s"


def test_a_running_run_has_no_end_event_and_an_orphaned_one_has_its_own() -> None:
    run = a_run(RUN, process_id=77, **UNFINISHED)
    assert names(event_lines(history_of(run))) == ["run_started"]
    events = event_lines(history_of(run, status="orphaned"))
    assert names(events) == ["run_started", "run_orphaned"]
    assert "its process (77) is gone" in events[-1].line.plain


def test_at_equal_times_ends_precede_starts_but_never_their_own_start() -> None:
    calls = [
        a_call(0, 0, "a", started_s=0.0, finished_s=1.0, step_path="a/llm"),
        a_call(1, 1, "b", started_s=1.0, finished_s=1.0, step_path="b/llm"),
    ]
    steps = [a_step("a", 0.0, 1.0), a_step("b", 1.0, 1.0)]
    between = texts(history_of(calls=calls, steps=steps))[1:-1]
    assert [line.replace(" completed", " ended").split(" after")[0] for line in between] == [
        "step a began", "call #0 a (llm) began: stage 0", "call #0 a (llm) ended", "step a ended",
        "step b began", "call #1 b (llm) began: stage 1", "call #1 b (llm) ended", "step b ended",
    ]  # fmt: skip


def test_the_end_of_a_call_lost_with_its_process_precedes_the_resumption() -> None:
    run = a_run(RUN, attempts=2, claimed_at=NOON + timedelta(seconds=30))
    lost = a_call(0, 0, "plan", finished_s=None, status=Status.CANCELLED, output_tokens=None)
    again = a_call(1, 0, "plan", started_s=31.0, finished_s=35.0)
    events = event_lines(history_of(run, [lost, again]))
    assert names(events) == [
        "run_started", "call_started", "call_finished", "run_resumed",
        "call_started", "call_finished", "run_finished",
    ]  # fmt: skip
    assert events[2].at_s is None
    assert events[2].line.plain.split() == ["?", "call", "#0", "plan", "(llm)", "cancelled"]


def test_a_question_and_its_answer_are_separate_events_and_the_answer_has_no_time() -> None:
    asked = a_step("input", 2.0, 2.0, kind=StepKind.INPUT, name="May I\nbuy it?")
    events = event_lines(history_of(steps=[asked, a_step("buy", 9.0, 9.5)]))
    assert events[1].text.plain == "input input asks: May I buy it?"
    assert names(events)[1:4] == ["input_required", "input_answered", "step_started"]
    assert events[2].at_s is None


def test_no_event_of_a_growing_run_is_taken_twice() -> None:
    seen: set[tuple[object, ...]] = set()
    running = a_run(RUN, **UNFINISHED)
    began = a_call(0, 0, "plan", finished_s=None, status=Status.RUNNING)
    first = take_new(event_lines(history_of(running, [began])), seen)
    assert names(first) == ["run_started", "call_started"]
    ended = replace(began, status=Status.COMPLETED, finished_s=1.0)
    assert names(take_new(event_lines(history_of(running, [ended])), seen)) == ["call_finished"]
    assert take_new(event_lines(history_of(running, [ended])), seen) == []
    assert names(take_new(event_lines(history_of(calls=[ended])), seen)) == ["run_finished"]


async def test_following_ends_when_the_run_ends(store_url: str) -> None:
    seen: set[tuple[object, ...]] = set()
    queue: asyncio.Queue[str] = asyncio.Queue()

    def enqueue(history: History) -> None:
        for event in names(take_new(event_lines(history), seen)):
            queue.put_nowait(event)

    async with await open_store(store_url) as store:
        now = datetime.now(UTC)
        async with store.transaction() as tx:
            await tx.runs.add(a_run(RUN, process_id=os.getpid(), started_at=now, **UNFINISHED))
        following = asyncio.create_task(follow(store_url, "3f2a", enqueue))
        assert await queue.get() == "run_started"
        async with store.transaction() as tx:
            tool = a_call(0, 0, "search", kind=CallKind.TOOL, status=Status.RUNNING)
            await tx.calls.start(replace(tool, finished_s=None))
        assert await queue.get() == "call_started"
        async with store.transaction() as tx:
            await tx.calls.finish(RUN, 0, CallOutcome(Status.COMPLETED, 1.0))
            await tx.runs.finish(RUN, RunOutcome(Status.COMPLETED, now, 1.5))
        await asyncio.wait_for(following, TIMEOUT_S)
    assert [queue.get_nowait(), queue.get_nowait()] == ["call_finished", "run_finished"]
    assert queue.empty()


@pytest.mark.usefixtures("subprocesses")
def test_a_run_of_another_process_is_followed_until_it_ends(corpus: Path, store_url: str) -> None:
    with started(*slow_run(corpus)) as run:
        read_until(run.stderr, "stage 0")
        with started(*orchestrate("logs", "--follow", "--json")) as logs:
            read_until(logs.stdout, '"call_started"')
            assert logs.poll() is None
            run.send_signal(signal.SIGINT)
            rest, errors = logs.communicate(timeout=TIMEOUT_S)
        run.communicate(timeout=TIMEOUT_S)
    documents = [json.loads(line) for line in rest.splitlines()]
    assert [each["event"] for each in documents][-1] == "run_finished"
    assert documents[-1]["status"] == "cancelled"
    assert "call_started" not in {each["event"] for each in documents}
    assert (logs.returncode, errors) == (0, "")


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_following_without_a_message(store_url: str, number: signal.Signals) -> None:
    now = datetime.now(UTC)
    fill_store(store_url, [a_run(RUN, started_at=now, process_id=os.getpid(), **UNFINISHED)])
    with started(*orchestrate("logs", "-f")) as logs:
        read_until(logs.stdout, "began")
        logs.send_signal(number)
        rest, errors = logs.communicate(timeout=TIMEOUT_S)
    assert (logs.returncode, rest, errors) == (128 + number, "", "")


def test_following_an_orphaned_run_does_not_wait_for_an_end(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run(RUN, process_id=NO_PROCESS, **UNFINISHED)])
    assert exit_code("logs", "--follow") == 0
    assert "orphaned" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("command", ["logs", "watch"])
def test_an_unknown_run_is_bad_input(
    one_run: str, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert exit_code(command, "beef") == 2
    assert "beef" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["logs", "watch"])
def test_a_default_store_without_runs_is_bad_input_and_none_is_created(
    new_default_store: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert exit_code(command) == 2
    assert "no runs are recorded yet" in capsys.readouterr().err
    assert exit_code(command, "3f2a") == 2
    assert "3f2a" in capsys.readouterr().err
    assert not new_default_store.exists()


@pytest.mark.parametrize("command", ["logs", "watch"])
def test_a_locked_store_is_reported(
    one_run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = tmp_path / "runs.db"
    holder = sqlite3.connect(path, isolation_level=None)
    try:
        holder.execute("PRAGMA locking_mode=EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        holder.execute("UPDATE runs SET flow = flow")
        url = f"sqlite:///{path}?timeout=0.1"
        assert exit_code(command, one_run, "--store", url) == 5
    finally:
        holder.close()
    assert "busy" in capsys.readouterr().err
