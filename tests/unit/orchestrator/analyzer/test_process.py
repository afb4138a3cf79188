"""The analyzer's process with a real store: it records, ends with its input, and comes back."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analyzer.__main__ import Process
from orchestrator.analyzer.recording import application_of
from orchestrator.settings import Settings
from serving.analyzer.messages import Advice, Arrival, Recorded, decode, encode
from serving.slo import TagValue
from store.errors import StoreLocked
from store.records import CallRecord, LengthSample, PatternRecord, RunRecord
from store.session import open_store
from tests.unit.orchestrator.analyzer.served_calls import arrival, ended

pytestmark = pytest.mark.usefixtures("subprocesses")


class Analyzer:
    """A process, and the calls that it has recorded."""

    def __init__(self, store: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.analyzer", "m"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ)
            | {"ORCHESTRATE_ANALYZER_STORE": store, "ORCHESTRATE_PROGRAM_IDLE_S": "1"},
        )
        self.recorded: set[str] = set()

    def send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        message = decode(line)
        if isinstance(message, Recorded):
            self.recorded.update(message.calls)
        return message

    def advice(self, message: Arrival) -> dict[str, TagValue]:
        self.send(encode(message))
        while not isinstance(received := self.receive(), Advice) or received.call != message.call:
            pass
        return received.tags

    def until_recorded(self, *calls: str) -> None:
        while not self.recorded.issuperset(calls):
            self.receive()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self) -> tuple[int, str]:
        """Close its input; returns its exit code and what it said on its error output."""
        _, errors = self._process.communicate(timeout=20)
        return self._process.returncode, errors.decode()


Start = Callable[[], Analyzer]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'served.db'}"


@pytest.fixture
def start(store: str) -> Iterator[Start]:
    """Starts a process with the store."""
    with ExitStack() as stack:

        def started() -> Analyzer:
            analyzer = Analyzer(store)
            stack.callback(analyzer.kill)
            return analyzer

        yield started


def program(analyzer: Analyzer, name: str) -> tuple[str, str]:
    """A program of two calls that take 10 and 30 tokens; returns their ids."""
    calls = (f"{name}-plan", f"{name}-work")
    for call, tokens in zip(calls, (10, 30), strict=True):
        shape = call.rpartition("-")[2]
        began_s = time.monotonic()
        analyzer.advice(arrival(call, began_s, program=name, shape=shape, program_deadline_s=60))
        analyzer.send(encode(ended(call, began_s + tokens / 1000, tokens)))
    return calls


def records(
    url: str,
) -> tuple[list[RunRecord], list[CallRecord], list[PatternRecord], list[LengthSample]]:
    async def read() -> Any:
        application = application_of("m")
        async with await open_store(url) as store, store.reading() as tx:
            runs = list(await tx.runs.newest(limit=100))
            calls = [call for run in runs for call in await tx.calls.of_run(run.id)]
            patterns = list(await tx.patterns.of_application(application))
            return runs, calls, patterns, list(await tx.calls.length_samples(application, limit=99))

    return asyncio.run(read())  # type: ignore[no-any-return]


def test_programs_are_recorded_as_runs_without_text(store: str, start: Start) -> None:
    analyzer = start()
    calls = program(analyzer, "one")
    analyzer.until_recorded(*calls)  # it was idle
    analyzer.advice(arrival("open", time.monotonic(), program="two"))
    code, errors = analyzer.end()
    assert (code, errors) == (0, "")
    runs, recorded, patterns, samples = records(store)
    # Nothing is known of the call that was still running.
    assert {run.id: run.status for run in runs} == {"one-plan": "completed"}
    assert [(call.stage, call.output_tokens) for call in recorded] == [(0, 10), (2, 30)]
    assert [pattern.run_id for pattern in patterns] == ["one-plan"]
    assert [sample.output_tokens for sample in samples] == [10, 30]


def test_after_it_was_killed_predictions_are_as_before(start: Start) -> None:
    analyzer = start()
    for number in range(12):
        program(analyzer, f"p{number}")
    analyzer.until_recorded("p11-work")
    asked = arrival("0", time.monotonic(), program="q0", shape="plan", program_deadline_s=60)
    before = analyzer.advice(asked)
    while "slo_future" not in before:  # it takes up the records with its next tick
        time.sleep(0.1)
        asked = replace(asked, call=f"{asked.call}0", program=f"{asked.program}0")
        before = analyzer.advice(asked)
    assert "slo_length_q" in before
    analyzer.kill()
    other = start()
    assert other.advice(asked) == before
    assert other.end()[0] == 0


def test_calls_that_are_told_twice_are_recorded_once(store: str, start: Start) -> None:
    first = start()
    calls = program(first, "one")
    first.until_recorded(*calls)
    first.kill()
    second = start()
    program(second, "one")
    second.until_recorded(*calls)
    assert second.end()[0] == 0
    runs, recorded, patterns, _ = records(store)
    assert (len(runs), len(recorded), len(patterns)) == (1, 2, 1)


def test_a_damaged_message_is_logged_and_the_others_are_answered(start: Start) -> None:
    analyzer = start()
    analyzer.send(b"no message\n")
    analyzer.send(b'{"kind": "arrival"}\n')
    assert analyzer.advice(arrival("a", 0.0)) == {}
    code, errors = analyzer.end()
    assert code == 0
    assert errors.count("no message: ") == 2


def test_a_store_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, errors = Analyzer(f"sqlite:///{tmp_path}/file/served.db").end()
    assert code == 1
    assert errors.startswith("the analyzer ended: ")
    assert "file/served.db" in errors
    assert "Traceback" not in errors


async def test_what_the_store_does_not_take_is_recorded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(analyzer_store=f"sqlite:///{tmp_path / 'served.db'}")
    answers = io.BytesIO()
    async with await open_store(settings.analyzer_store) as store:
        process = Process(store, settings, answers)
        for number in range(3):
            process.take(encode(arrival(f"{number}", time.monotonic(), program=f"p{number}")))
            process.take(encode(ended(f"{number}", time.monotonic())))

        async def locked(*args: object, **options: object) -> bool:
            raise StoreLocked(settings.analyzer_store, "another one writes")

        with monkeypatch.context() as patch:
            patch.setattr("orchestrator.analyzer.__main__.record", locked)
            with pytest.raises(StoreLocked):
                await process.close()
        await process.close()
    recorded = [decode(line) for line in answers.getvalue().splitlines()]
    calls = [each.calls for each in recorded if isinstance(each, Recorded)]
    assert calls == [("0",), ("1",), ("2",)]
