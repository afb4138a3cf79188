"""The analyzer's process as its server sees it: it answers, dies, hangs, and comes back."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from serving.analyzer.messages import Arrival, Ended
from serving.engine.server.advice.client import MAX_CALLS, AnalyzerClient

pytestmark = pytest.mark.usefixtures("subprocesses")

ANALYZER = """
import json, os, sys, time
log = open(sys.argv[1], "a")
print(json.dumps({"kind": "recorded", "calls": []}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    print(message["kind"], message["call"], file=log, flush=True)
    if message["call"] == "fatal": os._exit(3)
    if message["call"] == "noise": print("noise", flush=True)
    if message["call"] == "hang": time.sleep(600)
    if message["kind"] == "arrival":
        tags = {"slo_weight": 2.0} if message["shape"] else {}
        print(json.dumps({"kind": "advice", "call": message["call"], "tags": tags}), flush=True)
    else:
        print(json.dumps({"kind": "recorded", "calls": [message["call"]]}), flush=True)
"""


class Beside:
    """A client with a process that follows ANALYZER."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.registry = CollectorRegistry()
        command = [sys.executable, "-c", ANALYZER, str(self.log)]
        self.client = AnalyzerClient(command, registry=self.registry)

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"orchestrate_{name}", labels) or 0.0

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(2000):
            if holds():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it did not happen within 20 s")

    async def until_up(self) -> None:
        await self.until(lambda: self.value("analyzer_up") == 1.0)

    async def ask(self, call: str, shape: str = "s") -> dict[str, object]:
        self.client.arrived(Arrival(call=call, at_s=time.monotonic(), model="m", shape=shape))
        return dict(await self.client.advice(call))


@pytest.fixture
async def beside(tmp_path: Path) -> AsyncIterator[Beside]:
    beside = Beside(tmp_path)
    beside.client.start()
    await beside.until_up()
    yield beside
    await beside.client.close()
    assert beside.client.process_id is None


async def answered(beside: Beside, call: str) -> None:
    """Ask until an answer comes in time, which a busy machine may delay."""
    async with asyncio.timeout(20):
        number = 0
        while await beside.ask(f"{call}{number}") != {"slo_weight": 2.0}:
            number += 1
            await asyncio.sleep(0.01)


async def test_it_answers_with_tags_or_with_nothing(beside: Beside) -> None:
    await answered(beside, "a")
    assert beside.value("advice_total", outcome="tags") == 1
    assert await beside.ask("b", shape="") == {}
    assert await beside.client.advice("unknown") == {}
    assert beside.value("advice_total", outcome="away") == 1


async def test_after_its_death_it_is_started_again_and_told_what_it_had_not_recorded(
    beside: Beside,
) -> None:
    await answered(beside, "open")
    beside.client.arrived(Arrival(call="done", at_s=0.0, model="m"))
    beside.client.ended(Ended(call="done", at_s=1.0))
    await beside.until(lambda: "ended done" in beside.log.read_text())
    first = beside.client.process_id
    # A call that kills it would kill each new one: it ends, and is recorded as such.
    beside.client.arrived(Arrival(call="fatal", at_s=0.0, model="m"))
    await beside.until(lambda: beside.value("analyzer_deaths_total") == 1)
    assert await beside.client.advice("fatal") == {}
    beside.client._calls.pop("fatal")
    beside.log.unlink()
    await beside.until_up()
    await answered(beside, "again")
    assert beside.client.process_id != first
    lines = beside.log.read_text().splitlines()
    assert "arrival open0" in lines
    assert "arrival done" not in lines


async def test_while_it_hangs_nothing_waits_for_it(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.engine.server.advice.client.HUNG_S", 1.5)
    assert await beside.ask("hang") == {}
    before_s = asyncio.get_running_loop().time()
    for number in range(50):
        assert await beside.ask(f"late{number}") == {}
    # Had each waited, it would have been a second.
    assert asyncio.get_running_loop().time() - before_s < 50 * 0.02
    assert beside.value("advice_total", outcome="late") == 51
    beside.client._calls.pop("hang")
    await beside.until(lambda: beside.value("analyzer_deaths_total") == 1)
    await beside.until_up()
    await answered(beside, "again")


async def test_a_process_that_says_something_else_is_replaced(
    beside: Beside, caplog: pytest.LogCaptureFixture
) -> None:
    await beside.ask("noise")
    await beside.until(lambda: beside.value("analyzer_deaths_total") == 1)
    assert "the analyzer ended (no message: b'noise" in caplog.text
    assert "requests go on without its predictions" in caplog.text


async def test_a_command_that_does_not_exist_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    beside = Beside(tmp_path)
    beside.client = AnalyzerClient(["/nowhere/analyzer"], registry=CollectorRegistry())
    beside.client.start()
    await beside.until(lambda: "No such file" in caplog.text)
    assert await beside.ask("a") == {}
    await beside.client.close()


def test_the_calls_of_an_absent_process_are_limited() -> None:
    client = AnalyzerClient(["x"], registry=CollectorRegistry())
    for number in range(MAX_CALLS + 10):
        client.arrived(Arrival(call=str(number), at_s=0.0, model="m"))
    assert len(client._calls) == MAX_CALLS


async def test_a_new_process_is_told_everything_in_order_however_slowly_it_reads(
    tmp_path: Path,
) -> None:
    beside = Beside(tmp_path)
    slow = ANALYZER.replace("for line in", "time.sleep(1)\nfor line in")
    beside.registry = CollectorRegistry()
    command = [sys.executable, "-c", slow, str(beside.log)]
    beside.client = AnalyzerClient(command, registry=beside.registry)
    for number in range(0, 1200, 2):  # two at once, more than _MAX_UNREAD_BYTES together
        for call in (str(number), str(number + 1)):
            beside.client.arrived(Arrival(call=call, at_s=0.0, model="m", words="x" * 1200))
        for call in (str(number), str(number + 1)):
            beside.client.ended(Ended(call=call, at_s=1.0))
    beside.client.start()
    await beside.until(lambda: beside.log.exists() and "ended 1199" in beside.log.read_text())
    lines = beside.log.read_text().splitlines()
    assert lines[:4] == ["arrival 0", "arrival 1", "ended 0", "ended 1"]
    assert len(lines) == 2400
    assert beside.value("analyzer_deaths_total") == 0
    await beside.client.close()
