"""Runs are submitted, worked on and managed by commands."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.errors import BadInput
from cli.work.queues.working import flows_of
from store.records import RunRecord, Status
from store.session import open_store
from tests.cli.cli_processes import TIMEOUT_S, read_until, started
from tests.cli.cli_samples import exit_code

WORKER = str(Path(__file__).with_name("queue_worker.py"))
SHOUT = f"{WORKER}:shout"


def runs_in(store_url: str) -> Sequence[RunRecord]:
    async def read() -> Sequence[RunRecord]:
        async with await open_store(store_url) as store, store.reading() as tx:
            return await tx.runs.newest()

    return asyncio.run(read())


def until(holds: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.05)


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What a command prints as JSON."""
    capsys.readouterr()
    assert exit_code(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_a_submitted_run_prints_its_id_and_what_is_known_of_its_deadline(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("submit", SHOUT, "--text", "hi", "--deadline", "2m", "--priority", "3")
    assert exit_code(*arguments, "--user", "ann") == 0
    printed = capsys.readouterr()
    [run] = runs_in(store_url)
    assert printed.out == f"{run.id}\n"
    assert "too few past runs" in printed.err
    assert (run.status, run.priority, run.slo_user) == (Status.QUEUED, 3, "ann")
    [waiting] = output_of(capsys, "queue", "waiting")["runs"]
    assert (waiting["id"], waiting["deadline_s"]) == (run.id, 120.0)
    assert exit_code("ps", "--status", "queued") == 0
    assert "shout" in capsys.readouterr().out


def test_a_key_submits_one_run(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, again = [
        output_of(capsys, "submit", SHOUT, "--text", "hi", "--key", "k") for _ in range(2)
    ]
    assert (first["is_new"], again["is_new"], again["run"]) == (True, False, first["run"])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--queue", "a b"], "queue="),
        (["--not-before", "soon"], "is not a duration"),
        (["--not-before", "2030-01-01"], "time zone"),
        (["--attempts", "0"], "attempts="),
        (["--cron", "* * * * *"], "--schedule"),
        (["--cron", "61 * * * *", "--schedule", "x"], "is not a schedule"),
        (["--cron", "* * * * *", "--schedule", "x", "--timezone", "Mars"], "timezone="),
        (["--cron", "* * * * *", "--schedule", "x", "--key", "k"], "key="),
    ],
)
def test_what_cannot_be_submitted_is_refused_by_name(
    store_url: str, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    assert exit_code("submit", SHOUT, "--text", "hi", *options) == 2
    assert reason in capsys.readouterr().err


def test_queues_are_limited_paused_drained_and_opened_again(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("queue", "limit", "q", "--max-running", "4", "--max-per-user", "2") == 0
    assert exit_code("queue", "limit", "q", "--max-per-user", "0") == 0
    assert exit_code("queue", "pause", "q") == 0
    [queue] = output_of(capsys, "queue", "list")["queues"]
    assert (queue["max_running"], queue["max_running_of_user"]) == (4, None)
    assert (queue["is_paused"], queue["is_draining"]) == (True, False)
    assert exit_code("queue", "drain", "q") == 0
    assert exit_code("submit", SHOUT, "--text", "hi", "--queue", "q") == 2
    assert "is drained" in capsys.readouterr().err
    assert exit_code("queue", "resume", "q") == 0
    assert exit_code("submit", SHOUT, "--text", "hi", "--queue", "q") == 0
    capsys.readouterr()
    assert exit_code("queue", "list") == 0
    assert "open" in capsys.readouterr().out
    assert exit_code("queue", "limit", "q") == 2
    assert exit_code("queue", "pause", "no queue") == 2


def test_a_cancelled_run_is_queued_again(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = output_of(capsys, "submit", SHOUT, "--text", "hi")["run"]
    assert exit_code("cancel", run) == 0
    assert [each.status for each in runs_in(store_url)] == [Status.CANCELLED]
    assert exit_code("queue", "requeue", run, "--deadline", "60s") == 0
    [again] = runs_in(store_url)
    assert (again.status, again.attempts) == (Status.QUEUED, 2)
    assert exit_code("queue", "requeue", run) == 2


def test_a_schedule_is_listed_and_removed(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = ("--cron", "30 2 * * *", "--schedule", "night", "--timezone", "Europe/Berlin")
    assert exit_code("submit", SHOUT, "--text", "hi", *schedule) == 0
    [listed] = output_of(capsys, "queue", "schedules")["schedules"]
    assert (listed["name"], listed["flow"]) == ("night", "shout")
    assert runs_in(store_url) == []
    assert exit_code("queue", "schedules") == 0
    assert "30 2 * * *" in capsys.readouterr().out
    assert exit_code("queue", "unschedule", "night") == 0
    assert exit_code("queue", "unschedule", "night") == 2


def test_a_worker_takes_all_flows_of_a_file() -> None:
    assert [flow.name for flow in flows_of([WORKER])] == ["shout", "doze"]
    assert [flow.name for flow in flows_of([SHOUT, WORKER])] == ["shout", "doze"]
    assert "deep-research" in [flow.name for flow in flows_of([])]


def test_a_worker_refuses_what_is_no_flow(tmp_path: Path) -> None:
    empty, other = tmp_path / "empty.py", tmp_path / "other.py"
    empty.write_text("x = 1")
    other.write_text("from orchestrator import flow\n@flow\nasync def shout(): ...\n")
    for references in ([str(empty)], ["nonsense"], [WORKER, str(other)]):
        with pytest.raises(BadInput):
            flows_of(references)


@pytest.mark.slow
@pytest.mark.usefixtures("subprocesses")
def test_a_worker_executes_runs_and_hands_one_back_at_sigterm(
    store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = tmp_path / "begun"
    doze = output_of(capsys, "submit", f"{WORKER}:doze", "--file", str(begun))["run"]
    shout = output_of(capsys, "submit", SHOUT, "--text", "hi")["run"]
    with started(WORKER, store_url, "0") as process:
        read_until(process.stderr, "working on default")
        until(lambda: begun.exists())
        until(lambda: any(run.status is Status.COMPLETED for run in runs_in(store_url)))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
    assert f"handed back, for any worker: {doze}" in errors
    statuses = {run.id: (run.status, run.failed_attempts) for run in runs_in(store_url)}
    assert statuses == {doze: (Status.QUEUED, 0), shout: (Status.COMPLETED, 0)}


@pytest.mark.slow
@pytest.mark.usefixtures("subprocesses")
def test_the_runs_of_a_killed_worker_are_taken_by_the_next(
    store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = tmp_path / "begun"
    run = output_of(capsys, "submit", f"{WORKER}:doze", "--file", str(begun))["run"]
    with started(WORKER, store_url, "0") as process:
        until(lambda: begun.exists())
        process.kill()
    begun.unlink()
    with started(WORKER, store_url, "0") as process:
        read_until(process.stderr, f"run {run} has lost its worker: it is queued")
        until(lambda: begun.exists())
    [taken] = runs_in(store_url)
    assert (taken.status, taken.attempts, taken.failed_attempts) == (Status.RUNNING, 2, 1)
