"""Processes that are killed or interrupted during a run: what their stores hold afterwards."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from orchestrator import flow
from store.records import Status
from store.session import open_store
from tests.places import ROOT
from tests.recovery.scripted_research import RUN_ID
from tests.unit.orchestrator.orchestrator_samples import (
    Recorded,
    ask,
    recorded,
    scripted_runtime,
    store_url,
)

pytestmark = pytest.mark.usefixtures("subprocesses")


@pytest.fixture
def research(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs research until it is ended."""
    command = [sys.executable, "-m", "tests.recovery.scripted_research", str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def end_after(
    process: subprocess.Popen[str], num_events: int, number: signal.Signals, wait_s: float = 0.0
) -> tuple[list[dict[str, Any]], str]:
    """Send a signal after so many events; returns all events, and the text on stderr."""
    assert process.stdout is not None
    assert process.stderr is not None
    lines = list(islice(process.stdout, num_events))
    time.sleep(wait_s)
    process.send_signal(number)
    lines += process.stdout
    errors = process.stderr.read()
    process.wait(timeout=60)
    return [json.loads(line) for line in lines if line.endswith("\n")], errors


async def read_store(folder: Path) -> Recorded:
    """The run in the store of a process that has ended, which must be intact."""
    with closing(sqlite3.connect(folder / "store.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    async with await open_store(store_url(folder)) as store:
        return await recorded(store, RUN_ID)


@pytest.mark.parametrize("num_events", [1, 9, 60, 150])
async def test_every_event_that_was_reported_is_in_the_store_after_a_kill(
    tmp_path: Path, research: subprocess.Popen[str], num_events: int
) -> None:
    """Law 6. An event is emitted after its record is committed, so it must survive the kill."""
    events, _ = end_after(research, num_events, signal.SIGKILL)
    assert research.returncode == -signal.SIGKILL
    assert len(events) >= num_events
    record = await read_store(tmp_path)
    assert record.run.status is Status.RUNNING
    assert record.run.process_id == research.pid
    assert record.run.input_payload is not None
    calls = {call.node: call for call in record.calls}
    for event in events:
        if event["event"] == "StepStarted":
            assert event["path"] in record.steps
        elif event["event"] == "CallStarted":
            assert calls[event["node"]].identity == event["identity"]
        elif event["event"] == "CallFinished":
            assert calls[event["node"]].status == event["status"]
            assert (calls[event["node"]].output_tokens or 0) == event["output_tokens"]


async def test_a_store_is_usable_after_a_kill(
    tmp_path: Path, research: subprocess.Popen[str]
) -> None:
    end_after(research, 30, signal.SIGKILL)
    async with scripted_runtime(tmp_path) as runtime:
        result = await runtime.run(flow(ask))
        assert (await recorded(runtime.store, result.run_id)).run.status is Status.COMPLETED
        async with runtime.store.reading() as tx:
            assert {run.id for run in await tx.runs.newest()} == {RUN_ID, result.run_id}


@pytest.mark.parametrize("seed", range(4))
async def test_an_interrupted_run_is_recorded_as_cancelled_with_all_its_steps_and_calls(
    tmp_path: Path, research: subprocess.Popen[str], seed: int
) -> None:
    """Ctrl-C at any moment: nothing stays recorded as running."""
    moments = random.Random(seed)
    num_events, wait_s = moments.choice([1, 5, 40, 120]), moments.uniform(0, 0.01)
    events, errors = end_after(research, num_events, signal.SIGINT, wait_s)
    assert research.returncode in (-signal.SIGINT, 130)
    assert "KeyboardInterrupt" in errors
    assert "never retrieved" not in errors
    assert "was destroyed" not in errors
    assert events[-1]["event"] == "RunFinished"
    assert events[-1]["status"] == "cancelled"
    record = await read_store(tmp_path)
    assert record.run.status is Status.CANCELLED
    assert record.still_running() == []
    assert record.pattern_records == []
