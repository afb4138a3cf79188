"""Processes killed or interrupted in the middle of a run: what their stores hold afterwards."""

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


@pytest.fixture
def research(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that does research for as long as it is left to."""
    command = [sys.executable, "-m", "tests.recovery.scripted_research", str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def end_after(
    process: subprocess.Popen[str], num_events: int, number: signal.Signals, wait_s: float = 0.0
) -> tuple[list[dict[str, Any]], str]:
    """Send a signal after so many events; returns all events, and what was said to stderr."""
    assert process.stdout is not None
    assert process.stderr is not None
    lines = list(islice(process.stdout, num_events))
    time.sleep(wait_s)
    process.send_signal(number)
    lines += process.stdout
    complaints = process.stderr.read()
    process.wait(timeout=60)
    return [json.loads(line) for line in lines if line.endswith("\n")], complaints


async def what_is_left(folder: Path) -> Recorded:
    """The store of a process that has ended, opened anew."""
    with closing(sqlite3.connect(folder / "store.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    async with await open_store(store_url(folder)) as store:
        return await recorded(store, RUN_ID)


@pytest.mark.parametrize("num_events", [1, 9, 60, 150])
async def test_all_that_was_acknowledged_survives_a_kill_and_the_run_is_shown_as_running(
    tmp_path: Path, research: subprocess.Popen[str], num_events: int
) -> None:
    """Law 6. An event is told once it is in the store, so every event must be found there."""
    events, _ = end_after(research, num_events, signal.SIGKILL)
    assert research.returncode == -signal.SIGKILL
    assert len(events) >= num_events
    found = await what_is_left(tmp_path)
    assert found.run.status is Status.RUNNING
    assert found.run.process_id == research.pid
    assert found.run.input_payload is not None
    calls = {call.node: call for call in found.calls}
    for event in events:
        if event["event"] == "StepStarted":
            assert event["path"] in found.steps
        elif event["event"] == "CallStarted":
            assert calls[event["node"]].identity == event["identity"]
        elif event["event"] == "CallFinished":
            assert calls[event["node"]].status == event["status"]
            assert (calls[event["node"]].output_tokens or 0) == event["output_tokens"]


async def test_a_store_goes_on_after_a_kill(
    tmp_path: Path, research: subprocess.Popen[str]
) -> None:
    end_after(research, 30, signal.SIGKILL)
    async with scripted_runtime(tmp_path) as runtime:
        result = await runtime.run(flow(ask))
        assert (await recorded(runtime.store, result.run_id)).run.status is Status.COMPLETED
        async with runtime.store.reading() as tx:
            assert {run.id for run in await tx.runs.newest()} == {RUN_ID, result.run_id}


@pytest.mark.parametrize("seed", range(4))
async def test_a_run_that_is_interrupted_is_recorded_as_cancelled_with_all_that_it_began(
    tmp_path: Path, research: subprocess.Popen[str], seed: int
) -> None:
    """Ctrl-C at any moment: nothing is left that is recorded as running."""
    moments = random.Random(seed)
    num_events, wait_s = moments.choice([1, 5, 40, 120]), moments.uniform(0, 0.01)
    events, complaints = end_after(research, num_events, signal.SIGINT, wait_s)
    assert research.returncode in (-signal.SIGINT, 130)
    assert "KeyboardInterrupt" in complaints
    assert "never retrieved" not in complaints
    assert "was destroyed" not in complaints
    assert events[-1]["event"] == "RunFinished"
    assert events[-1]["status"] == "cancelled"
    found = await what_is_left(tmp_path)
    assert found.run.status is Status.CANCELLED
    assert found.still_running() == []
    assert found.pattern_records == []
