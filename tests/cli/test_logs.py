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
from cli.render.event_line import Happening, not_yet_told
from cli.render.event_log import happenings
from store.records import CallKind, CallOutcome, RunOutcome, Status, StepKind, StepRecord
from store.session import open_store
from tests.cli.cli_processes import PATIENCE_S, orchestrate, read_until, slow_run, started
from tests.cli.cli_samples import NOON, a_call, a_run, exit_code, fill_store, research_calls

RUN = "3f2a9c1b77de"
NOBODY = 2**30  # more than any process id that Linux gives
UNFINISHED: dict[str, Any] = {"elapsed_s": None, "finished_at": None, "status": Status.RUNNING}


def a_step(path: str, started_s: float, finished_s: float | None, **changes: Any) -> StepRecord:
    status = Status.RUNNING if finished_s is None else Status.COMPLETED
    name = path.rpartition("/")[2]
    given: dict[str, Any] = {"status": status, "finished_s": finished_s, "name": name}
    return StepRecord(run_id=RUN, path=path, started_s=started_s, **given | changes)


def of(run: Any = None, calls: Any = (), steps: Any = (), status: str | None = None) -> History:
    run = run or a_run(RUN)
    return History(run, status or str(run.status), calls=calls, steps=steps)


def told(history: History) -> list[str]:
    return [happening.told.plain for happening in happenings(history)]


def events(found: list[Happening]) -> list[str]:
    return [happening.event for happening in found]


@pytest.fixture
def one_run(store_url: str) -> str:
    steps = [a_step("plan", 0.0, 4.3), a_step("plan/llm", 0.1, 4.2, kind=StepKind.LLM)]
    calls = [replace(call, step_path=f"{call.step_path}/llm") for call in research_calls()]
    older = a_run("aaaa00010000", started_at=NOON - timedelta(hours=1))
    fill_store(store_url, [older, a_run(RUN)], calls, steps)
    return RUN


def test_a_run_is_told_from_its_start_to_its_end_in_order_of_time(
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


def test_a_call_is_told_with_its_sub_deadline_and_not_once_more_as_a_step(one_run: str) -> None:
    call = a_call(
        0, 0, "plan", started_s=0.1, finished_s=4.2, sub_deadline_s=7.5, prompt_tokens=1200,
        cached_tokens=16, ttft_s=0.05, step_path="plan/llm",
    )  # fmt: skip
    steps = [a_step("plan", 0.0, 4.3), a_step("plan/llm", 0.1, 4.2, kind=StepKind.LLM)]
    assert told(of(calls=[call], steps=steps))[1:-1] == [
        "step plan began",
        "call #0 plan (llm) began: stage 0, due at 7.5 s",
        "call #0 plan (llm) completed after 4.1 s, 1,200 tokens in (16 cached), 120 out, "
        "first token after 50 ms, 3.3 s early",
        "step plan completed after 4.3 s",
    ]


def test_without_a_run_the_newest_is_told(one_run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("logs") == 0
    assert f"run {one_run} began" in capsys.readouterr().out


def test_json_has_an_object_for_every_line(
    one_run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("logs") == 0
    lines = capsys.readouterr().out.splitlines()
    assert exit_code("logs", "--json") == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(documents) == len(lines)
    assert {document["run"] for document in documents} == {one_run}
    late = next(one for one in documents if one["event"] == "call_finished" and one["node"] == 4)
    assert late["identity"] == "demo:read"
    assert (late["stage"], late["kind"], late["output_tokens"]) == (2, "llm", 120)
    assert late["slack_s"] == pytest.approx(-5.0)
    assert documents[-1]["event"] == "run_finished"
    assert documents[-1]["in_time"] is True


def test_what_failed_is_told_with_its_error() -> None:
    failed: dict[str, Any] = {
        "status": Status.FAILED, "error_type": "EngineDied", "error_message": "out of\nmemory",
    }  # fmt: skip
    run = a_run(RUN, elapsed_s=3.0, **failed)
    call = a_call(0, 0, "plan", finished_s=3.0, output_tokens=None, **failed)
    lines = told(of(run, [call], [a_step("plan", 0.0, 3.0, **failed)]))
    why = "EngineDied: out of memory"
    assert f"call #0 plan (llm) failed after 3.0 s: {why}" in lines
    assert f"step plan failed after 3.0 s: {why}" in lines
    assert lines[-1] == f"run {RUN} failed: took 3.0 s of 60.0 s: {why}"


def test_a_run_past_its_deadline_is_told_to_be_late() -> None:
    assert told(of(a_run(RUN, elapsed_s=61.0)))[-1].startswith(f"run {RUN} completed late")
    assert told(of(a_run(RUN, deadline_s=None)))[-1] == f"run {RUN} completed: took 41.2 s"


def test_a_run_that_goes_on_has_no_end_and_an_orphaned_one_says_so() -> None:
    run = a_run(RUN, process_id=77, **UNFINISHED)
    assert events(happenings(of(run))) == ["run_started"]
    found = happenings(of(run, status="orphaned"))
    assert events(found) == ["run_started", "run_orphaned"]
    assert "its process (77) is gone" in found[-1].line.plain


def test_at_one_moment_what_ended_comes_before_what_began_but_never_before_its_own_start() -> None:
    calls = [
        a_call(0, 0, "a", started_s=0.0, finished_s=1.0, step_path="a/llm"),
        a_call(1, 1, "b", started_s=1.0, finished_s=1.0, step_path="b/llm"),
    ]
    steps = [a_step("a", 0.0, 1.0), a_step("b", 1.0, 1.0)]
    between = told(of(calls=calls, steps=steps))[1:-1]
    assert [line.replace(" completed", " ended").split(" after")[0] for line in between] == [
        "step a began", "call #0 a (llm) began: stage 0", "call #0 a (llm) ended", "step a ended",
        "step b began", "call #1 b (llm) began: stage 1", "call #1 b (llm) ended", "step b ended",
    ]  # fmt: skip


def test_a_call_that_went_down_with_its_process_is_told_before_the_run_was_resumed() -> None:
    run = a_run(RUN, attempts=2, claimed_at=NOON + timedelta(seconds=30))
    lost = a_call(0, 0, "plan", finished_s=None, status=Status.CANCELLED, output_tokens=None)
    again = a_call(1, 0, "plan", started_s=31.0, finished_s=35.0)
    found = happenings(of(run, [lost, again]))
    assert events(found) == [
        "run_started", "call_started", "call_finished", "run_resumed",
        "call_started", "call_finished", "run_finished",
    ]  # fmt: skip
    assert found[2].at_s is None
    assert found[2].line.plain.split() == ["?", "call", "#0", "plan", "(llm)", "cancelled"]


def test_a_question_is_told_as_one_and_its_answer_at_an_unknown_time() -> None:
    asked = a_step("input", 2.0, 2.0, kind=StepKind.INPUT, name="May I\nbuy it?")
    found = happenings(of(steps=[asked, a_step("buy", 9.0, 9.5)]))
    assert found[1].told.plain == "input input asks: May I buy it?"
    assert events(found)[1:4] == ["input_required", "input_answered", "step_started"]
    assert found[2].at_s is None


def test_nothing_is_told_twice_of_a_run_that_grows() -> None:
    known: set[tuple[object, ...]] = set()
    running = a_run(RUN, **UNFINISHED)
    began = a_call(0, 0, "plan", finished_s=None, status=Status.RUNNING)
    first = not_yet_told(happenings(of(running, [began])), known)
    assert events(first) == ["run_started", "call_started"]
    ended = replace(began, status=Status.COMPLETED, finished_s=1.0)
    assert events(not_yet_told(happenings(of(running, [ended])), known)) == ["call_finished"]
    assert not_yet_told(happenings(of(running, [ended])), known) == []
    assert events(not_yet_told(happenings(of(calls=[ended])), known)) == ["run_finished"]


async def test_following_ends_with_the_run(store_url: str) -> None:
    known: set[tuple[object, ...]] = set()
    seen: asyncio.Queue[str] = asyncio.Queue()

    def tell(history: History) -> None:
        for event in events(not_yet_told(happenings(history), known)):
            seen.put_nowait(event)

    async with await open_store(store_url) as store:
        now = datetime.now(UTC)
        async with store.transaction() as tx:
            await tx.runs.add(a_run(RUN, process_id=os.getpid(), started_at=now, **UNFINISHED))
        following = asyncio.create_task(follow(store_url, "3f2a", tell))
        assert await seen.get() == "run_started"
        async with store.transaction() as tx:
            tool = a_call(0, 0, "search", kind=CallKind.TOOL, status=Status.RUNNING)
            await tx.calls.start(replace(tool, finished_s=None))
        assert await seen.get() == "call_started"
        async with store.transaction() as tx:
            await tx.calls.finish(RUN, 0, CallOutcome(Status.COMPLETED, 1.0))
            await tx.runs.finish(RUN, RunOutcome(Status.COMPLETED, now, 1.5))
        await asyncio.wait_for(following, PATIENCE_S)
    assert [seen.get_nowait(), seen.get_nowait()] == ["call_finished", "run_finished"]
    assert seen.empty()


def test_following_a_run_of_another_process_goes_on_until_it_ends(
    corpus: Path, store_url: str
) -> None:
    with started(*slow_run(corpus)) as run:
        read_until(run.stderr, "stage 0")
        with started(*orchestrate("logs", "--follow", "--json")) as logs:
            read_until(logs.stdout, '"call_started"')
            assert logs.poll() is None
            run.send_signal(signal.SIGINT)
            rest, complaints = logs.communicate(timeout=PATIENCE_S)
        run.communicate(timeout=PATIENCE_S)
    documents = [json.loads(line) for line in rest.splitlines()]
    assert [one["event"] for one in documents][-1] == "run_finished"
    assert documents[-1]["status"] == "cancelled"
    assert "call_started" not in {one["event"] for one in documents}
    assert (logs.returncode, complaints) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_following_without_a_word(store_url: str, number: signal.Signals) -> None:
    now = datetime.now(UTC)
    fill_store(store_url, [a_run(RUN, started_at=now, process_id=os.getpid(), **UNFINISHED)])
    with started(*orchestrate("logs", "-f")) as logs:
        read_until(logs.stdout, "began")
        logs.send_signal(number)
        rest, complaints = logs.communicate(timeout=PATIENCE_S)
    assert (logs.returncode, rest, complaints) == (128 + number, "", "")


def test_following_an_orphaned_run_does_not_wait_for_an_end(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run(RUN, process_id=NOBODY, **UNFINISHED)])
    assert exit_code("logs", "--follow") == 0
    assert "orphaned" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("command", ["logs", "watch"])
def test_an_unknown_run_is_bad_input(
    one_run: str, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert exit_code(command, "beef") == 2
    assert "beef" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["logs", "watch"])
def test_a_missing_store_is_bad_input_and_none_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert exit_code(command) == 2
    assert "no runs are recorded yet" in capsys.readouterr().err
    assert exit_code(command, "3f2a") == 2
    assert "3f2a" in capsys.readouterr().err
    assert not (tmp_path / "runs.db").exists()


@pytest.mark.parametrize("command", ["logs", "watch"])
def test_a_locked_store_is_named(
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
