"""ChatOpenAI in an attached graph: its requests carry the SLOs of their calls to our server."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph

from orchestrator import DeadlineExceeded, flow
from orchestrator.durability.recorder import RunRecorder
from orchestrator.langgraph import attach
from serving.slo import Slo, SloKind, from_tags
from store.records import Status
from tests.unit.orchestrator.langgraph.graph_samples import TOPIC, Notes, map_reduce, sync_chain
from tests.unit.orchestrator.orchestrator_samples import all_runs, scripted_runtime, the_run
from tests.unit.orchestrator.slo_http.model_servers import ModelServer

pytestmark = pytest.mark.slow


@pytest.fixture
def url() -> str:
    """An address of its own: which servers are ours is remembered in the process."""
    _urls.append(f"http://models{len(_urls)}.test/v1")
    return _urls[-1]


_urls: list[str] = []


def model_of(server: ModelServer, url: str, **options: Any) -> ChatOpenAI:
    """A ChatOpenAI as users make it, but for what replaces the network."""
    return ChatOpenAI(
        model="random",
        base_url=url,
        api_key="secret",
        http_client=server.client(),
        http_async_client=server.async_client(),
        **options,
    )


def slos(server: ModelServer) -> list[Slo]:
    return [from_tags(tags) for tags in server.tags]


async def test_each_request_carries_the_slo_of_its_recorded_call(tmp_path: Path, url: str) -> None:
    server = ModelServer()
    graph = attach(map_reduce(model_of(server, url)).compile(), deadline="60s")
    async with scripted_runtime(tmp_path) as runtime:
        await graph.ainvoke(TOPIC)
        record = await the_run(runtime.store)
    carried = slos(server)
    assert {slo.kind for slo in carried} == {SloKind.COMPOUND}
    assert {slo.program for slo in carried} == {record.run.id}
    stages = sorted((slo.stage, slo.stage_calls) for slo in carried)
    assert stages == [(0, 1), (1, 3), (1, 3), (1, 3), (2, 1)]
    assert sorted(call.stage for call in record.calls) == [0, 1, 1, 1, 2]
    assert all(slo.length is not None or slo.deadline_s for slo in carried)
    assert all(call.sub_deadline_s is not None for call in record.calls)
    assert record.still_running() == []


@pytest.mark.parametrize("method", ["ainvoke", "invoke", "stream"])
async def test_calls_from_the_threads_of_nodes_carry_theirs_too(
    tmp_path: Path, url: str, method: str
) -> None:
    server = ModelServer()
    graph = attach(sync_chain(model_of(server, url)).compile(), deadline="60s")
    async with scripted_runtime(tmp_path) as runtime:
        if method == "ainvoke":
            await graph.ainvoke(TOPIC)
        elif method == "invoke":
            await asyncio.to_thread(graph.invoke, TOPIC)
        else:
            await asyncio.to_thread(lambda: list(graph.stream(TOPIC)))
        record = await the_run(runtime.store)
    assert [slo.stage for slo in slos(server)] == [0, 1]
    assert {slo.program for slo in slos(server)} == {record.run.id}
    assert [call.status for call in record.calls] == [Status.COMPLETED] * 2


async def test_a_call_that_blocks_the_runs_own_loop_carries_a_deadline(
    tmp_path: Path, url: str
) -> None:
    server = ModelServer()
    model = model_of(server, url)

    async def blocking(state: Notes) -> dict[str, Any]:
        return {"report": str(model.invoke("now").text)}

    builder = StateGraph(Notes).add_node("blocking", blocking).add_edge(START, "blocking")
    async with scripted_runtime(tmp_path):
        result = await attach(builder.compile(), deadline="60s").ainvoke(TOPIC)
    assert result["report"] == "all is well"
    [slo] = slos(server)
    assert slo.final_s is not None
    assert 0 < slo.final_s <= 60


async def test_a_retry_carries_the_seconds_left_and_is_the_same_call(
    tmp_path: Path, url: str
) -> None:
    server = ModelServer(statuses=(500,))
    model = model_of(server, url, max_retries=1)

    async def ask(state: Notes) -> dict[str, Any]:
        return {"report": str((await model.ainvoke("now")).text)}

    builder = StateGraph(Notes).add_node("ask", ask).add_edge(START, "ask")
    async with scripted_runtime(tmp_path) as runtime:
        await attach(builder.compile(), deadline="60s").ainvoke(TOPIC)
        assert len((await the_run(runtime.store)).calls) == 1
    first, second = slos(server)
    assert first.stage == second.stage == 0
    assert (first.final_s or 0.0) > (second.final_s or 0.0)


async def test_servers_of_others_get_requests_without_tags(tmp_path: Path, url: str) -> None:
    server = ModelServer(is_ours=False)
    graph = attach(map_reduce(model_of(server, url)).compile(), deadline="60s")
    async with scripted_runtime(tmp_path):
        await graph.ainvoke(TOPIC)
    assert server.tags == [None] * 5


async def test_outside_an_attached_graph_nothing_changes(tmp_path: Path, url: str) -> None:
    server = ModelServer()
    model = model_of(server, url)
    graph = map_reduce(model).compile()

    @flow(deadline="60s")
    async def plain() -> None:
        await model.ainvoke("now")

    async with scripted_runtime(tmp_path) as runtime:
        await attach(graph, deadline="60s").ainvoke(TOPIC)
        server.bodies.clear()
        await graph.ainvoke(TOPIC)
        await model.ainvoke("now")
        model.invoke("now")
        await runtime.run(plain)
    assert server.tags == [None] * 8


async def test_a_client_of_openai_itself_in_a_node_is_left_alone(tmp_path: Path, url: str) -> None:
    server = ModelServer()
    model = model_of(server, url)
    client = openai.AsyncOpenAI(base_url=url, api_key="s", http_client=server.async_client())

    async def ask(state: Notes) -> dict[str, Any]:
        await model.ainvoke("now")
        await client.chat.completions.create(model="random", messages=[])
        return {"notes": []}

    builder = StateGraph(Notes).add_node("ask", ask).add_edge(START, "ask")
    async with scripted_runtime(tmp_path):
        await attach(builder.compile(), deadline="60s").ainvoke(TOPIC)
    assert [tags is not None for tags in server.tags] == [True, False]


async def test_at_the_deadline_its_requests_are_ended_and_wrap_up_gives_the_answer(
    tmp_path: Path, url: str
) -> None:
    server = ModelServer(stalls=True)
    graph = attach(
        map_reduce(model_of(server, url)).compile(),
        deadline="6s",
        tail="4s",
        on_deadline="wrap_up",
        wrap_up=lambda state: "in short",
    )
    async with scripted_runtime(tmp_path) as runtime:
        assert await graph.ainvoke(TOPIC) == "in short"
        assert server.num_cut == 1
        record = await the_run(runtime.store)
    assert [call.status for call in record.calls] == [Status.CANCELLED]
    assert record.still_running() == []


class BlockingServer(httpx2.BaseTransport):
    """Our server, which blocks the thread of a request for as long as that allows."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self.allowed_s: list[float] = []
        self.ended = threading.Event()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return self._server.answer(request)
        self.allowed_s.append(request.extensions["timeout"].get("read"))
        time.sleep(self.allowed_s[-1])
        self.ended.set()
        raise httpx2.ReadTimeout("silent", request=request)


@pytest.mark.parametrize("method", ["ainvoke", "invoke"])
async def test_a_blocking_request_waits_no_longer_than_the_deadline_and_is_not_retried(
    tmp_path: Path, url: str, method: str
) -> None:
    blocking = BlockingServer(ModelServer())
    model = ChatOpenAI(
        model="random",
        base_url=url,
        api_key="secret",
        http_client=httpx2.Client(transport=blocking),
    )
    graph = attach(sync_chain(model).compile(), deadline="1s")
    async with scripted_runtime(tmp_path) as runtime:
        running = (
            graph.ainvoke(TOPIC) if method == "ainvoke" else asyncio.to_thread(graph.invoke, TOPIC)
        )
        with pytest.raises(DeadlineExceeded):
            await running
        assert await asyncio.to_thread(blocking.ended.wait, 30)
        [record] = await all_runs(runtime.store)
    assert record.still_running() == []
    assert len(blocking.allowed_s) == 1
    assert 0 < blocking.allowed_s[0] <= 1


async def test_if_a_call_cannot_be_recorded_its_request_is_not_sent(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ModelServer()

    async def refuse(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(RunRecorder, "call_started", refuse)
    async with scripted_runtime(tmp_path):
        with pytest.raises(OSError, match="disk full"):
            await attach(map_reduce(model_of(server, url)).compile()).ainvoke(TOPIC)
    assert server.bodies == []


def test_the_wrapped_method_exists_in_this_version_of_openai() -> None:
    for client in (openai.OpenAI, openai.AsyncOpenAI):
        assert callable(getattr(client, "_send_request", None))
