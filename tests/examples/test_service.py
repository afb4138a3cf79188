"""The service example on vLLM: 20 clients of two users, one of which floods it, and a shutdown.

The tests run in order: the last one ends the process that they share.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from orchestrator.runtime.run_control import RunControl, RunInfo
from store.session import open_store
from tests.engine.test_server import free_port
from tests.places import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.slow]

START_S = 180
STOP_S = 60
ANN, FLO = ({"Authorization": f"Bearer {user}-secret"} for user in ("ann", "flo"))
NUM_FLOODING = 17
NUM_OTHERS = 3


@dataclass
class Place:
    """Where the service runs: its store, and its address."""

    store: str
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(f"sqlite:///{tmp_path_factory.mktemp('service') / 'service.db'}")


@pytest.fixture(scope="module")
def process(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    with running(place) as process:
        yield process


@contextmanager
def running(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """The service in a process of its own, once it answers."""
    settings = {
        "ORCHESTRATE_STORE": place.store,
        "ORCHESTRATE_MODEL": "random",
        "ORCHESTRATE_POLICY_PARAMS": '{"fairness": 0.5}',
        "ORCHESTRATE_FIT_EVERY": "0",
        "SERVICE_DRAIN_S": "2",
        "SERVICE_KEYS": "ann-secret:ann,flo-secret:flo",
    }
    command = [sys.executable, "-m", "uvicorn", "--app-dir", "examples", "service:app"]
    command += ["--port", str(place.port), "--log-level", "warning"]
    command += ["--timeout-graceful-shutdown", "1"]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | settings)
    try:
        for _ in range(START_S * 5):
            assert process.poll() is None, "the service did not start"
            try:
                httpx.get(place.url)
            except httpx.TransportError:
                asyncio.run(asyncio.sleep(0.2))
            else:
                break
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@dataclass
class Client:
    """One client of the service."""

    http: httpx.AsyncClient
    key: dict[str, str]

    async def order(self, topic: str = "tides", *, ask: bool = False) -> httpx.Response:
        order = {"topic": topic, "ask": ask}
        return await self.http.post("/articles", headers=self.key, json=order)

    async def events(self, run_id: str) -> AsyncIterator[tuple[str, Any]]:
        path = f"/articles/{run_id}/text"
        async with self.http.stream("GET", path, headers=self.key) as response:
            name = ""
            async for line in response.aiter_lines():
                kind, _, value = line.partition(": ")
                if kind == "event":
                    name = value
                elif kind == "data":
                    yield name, json.loads(value)

    async def article(self) -> list[tuple[str, Any]]:
        """All events of a new article; none if the service refuses it."""
        begun = await self.order()
        if begun.status_code == 429:
            await asyncio.sleep(0.1)
            return []
        assert begun.status_code == 201, begun.text
        return [event async for event in self.events(begun.json()["id"])]


def http_of(place: Place) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=place.url, timeout=60)


async def runs_of(place: Place) -> list[RunInfo]:
    store = await open_store(place.store)
    async with store:
        return await RunControl(store).runs(limit=None)


async def flooded(place: Place) -> tuple[list[list[tuple[str, Any]]], int]:
    """The articles of a user beside another one's flood, and how many that one has."""
    async with http_of(place) as http:
        ann, flo = Client(http, ANN), Client(http, FLO)
        num_of_the_flood = 0

        async def flood() -> None:
            nonlocal num_of_the_flood
            while True:
                num_of_the_flood += bool(await flo.article())

        async def articles() -> list[list[tuple[str, Any]]]:
            return [await ann.article() for _ in range(3)]

        flooding = [asyncio.create_task(flood()) for _ in range(NUM_FLOODING)]
        each = await asyncio.gather(*(articles() for _ in range(NUM_OTHERS)))
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)
    return [article for articles_of_one in each for article in articles_of_one], num_of_the_flood


@pytest.mark.usefixtures("process")
def test_streams_flow_and_a_flood_costs_another_user_no_promise(place: Place) -> None:
    articles, num_of_the_flood = asyncio.run(flooded(place))
    assert num_of_the_flood > 0
    assert len(articles) == 3 * NUM_OTHERS
    for events in articles:
        pieces = [data for name, data in events if name == "text"]
        assert len(pieces) > 1, "the text arrived in one piece"
        name, end = events[-1]
        assert (name, end["status"]) == ("end", "completed")
        assert end["text"] == "".join(pieces)
    of_ann = [run for run in asyncio.run(runs_of(place)) if run.user == "ann"]
    assert len(of_ann) == len(articles)
    for run in of_ann:
        assert run.elapsed_s is not None
        assert run.deadline_s is not None
        assert run.elapsed_s <= run.deadline_s


@pytest.mark.usefixtures("process")
def test_a_question_is_answered_by_another_request_of_the_same_user_only(place: Place) -> None:
    async def ask() -> tuple[list[int], Any]:
        async with http_of(place) as http:
            ann, flo = Client(http, ANN), Client(http, FLO)
            run_id = (await ann.order(ask=True)).json()["id"]
            path = f"/articles/{run_id}"
            while not (await http.get(path, headers=ANN)).json()["questions"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            statuses = []
            for key, given in [(FLO, "plain"), (ANN, "loud"), ({}, "plain"), (ANN, "playful")]:
                sent = await http.post(f"{path}/answer", headers=key, json={"value": given})
                statuses.append(sent.status_code)
            assert (await http.get(path, headers=flo.key)).status_code == 404
            events = [event async for event in ann.events(run_id)]
            return statuses, events[-1][1]["status"]

    statuses, status = asyncio.run(ask())
    assert statuses == [404, 409, 401, 204]
    assert status == "completed"


def test_sigterm_ends_the_service_without_a_lost_run(
    place: Place, process: subprocess.Popen[bytes]
) -> None:
    begun: set[str] = set()

    async def begin_some() -> None:
        async with http_of(place) as http:
            ann = Client(http, ANN)
            orders = await asyncio.gather(*(ann.order(ask=n % 2 == 0) for n in range(8)))
            begun.update(order.json()["id"] for order in orders)

    async def answer_all() -> dict[str, str]:
        """Answer the questions that the first process left, and wait for all articles."""
        async with http_of(place) as http:
            ends: dict[str, str] = {}
            while not begun <= ends.keys():
                for run in (await http.get("/articles", headers=ANN)).json():
                    if run["questions"]:
                        path = f"/articles/{run['id']}/answer"
                        await http.post(path, headers=ANN, json={"value": "plain"})
                    elif run["status"] != "running":
                        ends[run["id"]] = run["status"]
                await asyncio.sleep(0.1)
            return ends

    asyncio.run(begin_some())
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_S) in (0, -signal.SIGTERM)  # uvicorn raises it again at its end
    statuses = {run.id: run.status for run in asyncio.run(runs_of(place)) if run.id in begun}
    assert statuses.keys() == begun
    assert set(statuses.values()) <= {"completed", "orphaned"}
    assert "orphaned" in statuses.values()  # those that wait for an answer
    with running(place):
        ends = asyncio.run(answer_all())
    assert {run_id: ends[run_id] for run_id in begun} == dict.fromkeys(begun, "completed")
