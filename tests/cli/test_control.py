"""Runs of another process are listed, answered and cancelled, by Python and by the command line."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from orchestrator import AnswerRefused, NoOpenQuestion, RunAlreadyEnded, RunInfo
from orchestrator.runtime.run_control import RunControl
from store.records import Status
from store.session import open_store
from tests.cli.asking_run import RUN_ID
from tests.cli.cli_processes import TIMEOUT_S, Process, orchestrate, read_until, started
from tests.cli.cli_samples import a_run, exit_code, fill_store, recorded_runs

T = TypeVar("T")

NO_PROCESS = 2**31 - 1  # larger than any process id of Linux
DEAD: dict[str, Any] = {
    "status": Status.RUNNING,
    "process_id": NO_PROCESS,
    "finished_at": None,
    "elapsed_s": None,
}


def asking_run(store_url: str, *arguments: str) -> tuple[str, ...]:
    return (str(Path(__file__).with_name("asking_run.py")), store_url, *arguments)


def controlled(store_url: str, work: Callable[[RunControl], Awaitable[T]]) -> T:
    """Do something with the store of a process that has opened it, from this process."""

    @asynccontextmanager
    async def control() -> AsyncIterator[RunControl]:
        async with await open_store(store_url) as store:
            yield RunControl(store)

    async def run() -> T:
        async with control() as opened, asyncio.timeout(TIMEOUT_S):
            return await work(opened)

    return asyncio.run(run())


async def the_asking_run(control: RunControl) -> RunInfo:
    """The run of the other process, once it waits for an answer."""
    while True:
        for run in await control.runs(flow="asking"):
            if run.questions:
                return run
        await asyncio.sleep(0.05)


def ended(process: Process) -> tuple[int, str]:
    """The exit code of a process, once it has ended, and what it wrote on stderr."""
    _, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, errors


@pytest.mark.usefixtures("subprocesses")
def test_another_processes_question_is_listed_and_answered_from_python(store_url: str) -> None:
    async def answer(control: RunControl) -> None:
        run = await the_asking_run(control)
        assert (run.id, run.status) == (RUN_ID, "running")
        [question] = run.questions
        assert (question.text, question.schema) == ("how many?", {"type": "integer"})
        with pytest.raises(AnswerRefused, match="'many' is not of type 'integer'"):
            await control.answer(run.id, "many")
        await control.answer(run.id, 7)

    with started(*asking_run(store_url, "end")) as process:
        read_until(process.stdout, "ready")
        controlled(store_url, answer)
        assert "ended with 7" in read_until(process.stdout, "ended")[-1]
    assert controlled(store_url, lambda control: control.get(RUN_ID)).status == "completed"


@pytest.mark.usefixtures("subprocesses")
def test_a_dead_processes_question_takes_answers_by_command_until_one_is_read(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(*asking_run(store_url, "end")) as process:
        read_until(process.stdout, "ready")
        controlled(store_url, the_asking_run)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=TIMEOUT_S)
    assert exit_code("answer", RUN_ID, "many") == 2
    assert "'many' is not of type 'integer'" in " ".join(capsys.readouterr().err.split())
    assert exit_code("answer", RUN_ID, "6") == 0
    assert "answered: how many?" in capsys.readouterr().err
    assert exit_code("answer", RUN_ID, "7") == 0
    assert "answer replaced: how many?" in capsys.readouterr().err
    with started(*asking_run(store_url, "end")) as process:  # the same id: it resumes the run
        assert "ended with 7" in read_until(process.stdout, "ended")[-1]
    with pytest.raises(NoOpenQuestion):
        controlled(store_url, lambda control: control.answer(RUN_ID, 8))


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("by", ["python", "command"])
def test_another_processes_run_is_cancelled_and_its_caller_told(store_url: str, by: str) -> None:
    with started(*asking_run(store_url)) as process:
        read_until(process.stdout, "ready")
        controlled(store_url, the_asking_run)
        if by == "python":
            assert controlled(store_url, lambda each: each.cancel(RUN_ID)).status == "cancelled"
        else:
            with started(*orchestrate("cancel", "ask", "--store", store_url)) as command:
                code, errors = ended(command)
                assert code == 0
                assert f"run {RUN_ID} is cancelled" in errors
        code, errors = ended(process)
    assert code == 1
    assert f"RunCancelled: run {RUN_ID} was cancelled" in errors
    with pytest.raises(RunAlreadyEnded):
        controlled(store_url, lambda each: each.cancel(RUN_ID))
    [question] = controlled(store_url, lambda each: each.get(RUN_ID)).questions
    assert question.text == "how many?"


def test_a_run_without_a_process_is_cancelled_by_the_command(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run("r1", **DEAD)])
    assert exit_code("cancel", "r") == 0
    assert "orchestrate resume r1" in " ".join(capsys.readouterr().err.split())
    [run] = recorded_runs(store_url)
    assert (run.status, run.error_type) == (Status.CANCELLED, "CancelledError")


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_a_run_that_has_ended_cannot_be_cancelled(
    store_url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run("r1", status=status)])
    assert exit_code("cancel", "r1") == 2
    assert f"run r1 has ended: it is {status}" in " ".join(capsys.readouterr().err.split())
    assert recorded_runs(store_url)[0].cancel_requested_at is None


def test_an_unknown_run_cannot_be_cancelled(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [])
    assert exit_code("cancel", "r1") == 2
    assert "no run 'r1'" in " ".join(capsys.readouterr().err.split())


def test_a_run_that_its_process_does_not_end_in_time_is_still_to_be_cancelled(
    store_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.commands.cancel.WAIT_S", 0.01)
    elsewhere = {"host": "another", "leased_until": None}
    fill_store(store_url, [a_run("r1", **DEAD | elsewhere)])
    assert exit_code("cancel", "r1") == 0
    assert "its process has not ended it yet" in " ".join(capsys.readouterr().err.split())
    [run] = recorded_runs(store_url)
    assert run.status is Status.RUNNING
    assert run.cancel_requested_at is not None


def test_an_orphaned_run_that_was_to_be_cancelled_is_not_resumed_with_the_others(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run("r1", cancel_requested_at=a_run().started_at, **DEAD)])
    assert exit_code("resume", "--orphans") == 0
    assert "no orphaned runs" in capsys.readouterr().err


@pytest.mark.parametrize("deadline", ["soon", "0s", "-1"])
def test_resume_refuses_a_deadline_that_is_no_time(
    store_url: str, deadline: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run("r1", status=Status.FAILED)])
    assert exit_code("resume", "r1", f"--deadline={deadline}") == 2
    assert "write it like 60s" in " ".join(capsys.readouterr().err.split())
