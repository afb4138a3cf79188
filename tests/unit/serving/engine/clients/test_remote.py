"""RemoteEngine against a small fake of an OpenAI-compatible server, on loopback."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from serving.engine.clients.remote import RemoteEngine
from serving.engine.server.slo_middleware import POLICY_HEADER, SCHEDULER_HEADER
from serving.errors import (
    EngineClosed,
    InvalidEngineConfig,
    InvalidRequest,
    InvalidSlo,
    ModelNotServed,
    PromptTooLong,
    RemoteRefused,
    RemoteUnavailable,
    RequestDropped,
    RequestFailed,
    ServingError,
)
from serving.generation import Chunk, Completion, GenerationRequest, Message, Usage
from serving.slo import OnLate, Slo, SloKind

OURS = {SCHEDULER_HEADER: "SloScheduler", POLICY_HEADER: "edf"}
SOON = Slo(kind=SloKind.DEADLINE, deadline_s=5.0, on_late=OnLate.DROP)
CHAT = (Message("system", "be brief"), Message("user", "hello"))

Reply = Callable[[dict[str, Any]], Response]


class FakeServer:
    """Serves a list of models, and answers each generation as its test says."""

    def __init__(
        self,
        reply: Reply,
        *,
        models: tuple[str, ...] = ("tiny",),
        owner: str = "vllm",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.arrivals: asyncio.Queue[None] = asyncio.Queue()
        self.left = asyncio.Event()
        self._reply = reply
        self._headers = headers
        self._cards = [
            {"id": model, "object": "model", "created": 0, "owned_by": owner}
            | ({"max_model_len": 8192} if owner == "vllm" else {})
            for model in models
        ]
        app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._generate, methods=["POST"]),
                Route("/v1/completions", self._generate, methods=["POST"]),
            ]
        )
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_level="critical", lifespan="off", ws="none", http="h11")
        )

    async def __aenter__(self) -> FakeServer:
        self._serving = asyncio.create_task(self._server._serve(sockets=[self._socket]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        async with asyncio.timeout(10):
            await self._serving

    async def _models(self, request: Request) -> Response:
        self.keys.append(request.headers.get("authorization", ""))
        return JSONResponse({"object": "list", "data": self._cards}, headers=self._headers)

    async def _generate(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.asked.append(body)
        self.arrivals.put_nowait(None)
        response = self._reply(body)
        if isinstance(response, StreamingResponse):
            response.body_iterator = self._watched(response.body_iterator)
        return response

    async def _watched(self, parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
        try:
            async for part in parts:
                yield part
        finally:
            self.left.set()


def parts_of(body: dict[str, Any], *texts: str, finish: str | None = "stop", **last: Any) -> Any:
    """The stream of an OpenAI server: a part a text, then usage."""
    chat = "messages" in body

    def part(text: str, finish: str | None, **more: Any) -> dict[str, Any]:
        said = {"delta": {"content": text}} if chat else {"text": text}
        choice = {"index": 0, "finish_reason": finish, **said, **more}
        return {"id": "x", "created": 0, "model": "tiny", "object": "x", "choices": [choice]}

    yield from (part(text, None) for text in texts)
    if finish is not None:
        yield part("", finish, **last)
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    usage["prompt_tokens_details"] = {"cached_tokens": 4}  # type: ignore[assignment]
    yield part("", None) | {"choices": [], "usage": usage}


def events(*parts: dict[str, Any], done: bool = True) -> Response:
    async def sending() -> AsyncIterator[str]:
        for part in parts:
            yield f"data: {json.dumps(part)}\n\n"
        if done:
            yield "data: [DONE]\n\n"

    return StreamingResponse(sending(), media_type="text/event-stream")


def saying(*texts: str, **last: Any) -> Reply:
    return lambda body: events(*parts_of(body, *texts, **last))


def endless(body: dict[str, Any]) -> Response:
    async def sending() -> AsyncIterator[str]:
        part = next(iter(parts_of(body, "more")))
        while True:
            yield f"data: {json.dumps(part)}\n\n"
            await asyncio.sleep(0.01)

    return StreamingResponse(sending(), media_type="text/event-stream")


def cut(body: dict[str, Any]) -> Response:
    async def sending() -> AsyncIterator[str]:
        yield f"data: {json.dumps(next(iter(parts_of(body, 'half'))))}\n\n"
        raise ConnectionAbortedError("pulled the plug")

    return StreamingResponse(sending(), media_type="text/event-stream")


def refusing(status: int, **error: Any) -> Reply:
    return lambda _: JSONResponse({"error": {"code": status, **error}}, status_code=status)


def like_openai(body: dict[str, Any]) -> Response:
    """A server that refuses what OpenAI's API does not have."""
    unknown = {"vllm_xargs", "priority", "structured_outputs"} & body.keys()
    if unknown:
        return refusing(400, message=f"unknown fields: {unknown}")(body)
    return saying("fine")(body)


def request(**settings: Any) -> GenerationRequest:
    return GenerationRequest(**{"request_id": "r1", "prompt": CHAT, "max_tokens": 20} | settings)


async def answered(reply: Reply, asked: GenerationRequest, **server: Any) -> Completion:
    async with FakeServer(reply, **server) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url)
        try:
            return await engine.generate(asked)
        finally:
            await engine.close()


# Starting


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    engine = RemoteEngine(f"http://127.0.0.1:{port}")
    with pytest.raises(RemoteUnavailable):
        await engine.start()
    await engine.close()


async def test_a_server_that_accepts_and_says_nothing_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        engine = RemoteEngine(f"http://127.0.0.1:{mute.getsockname()[1]}", timeout_s=0.2)
        async with asyncio.timeout(10):
            with pytest.raises(RemoteUnavailable, match="silent"):
                await engine.start()
        await engine.close()


async def test_the_first_model_is_taken_when_none_is_named() -> None:
    async with FakeServer(saying("hi"), models=("first", "second")) as fake:
        engine = RemoteEngine(fake.url, api_key="secret")
        await engine.start()
        await engine.start()
        assert (engine.info.model, engine.info.max_model_tokens) == ("first", 8192)
        assert fake.keys == ["Bearer secret"]
        await engine.close()


async def test_a_model_that_is_not_served_is_named_with_those_that_are() -> None:
    async with FakeServer(saying("hi"), models=("first", "second")) as fake:
        engine = RemoteEngine(fake.url, model="third")
        with pytest.raises(ModelNotServed, match="'third'; it serves first, second"):
            await engine.start()
        await engine.close()


async def test_a_server_without_a_list_of_models_is_refused() -> None:
    async with FakeServer(saying("hi")) as fake:
        engine = RemoteEngine(fake.url + "/elsewhere")
        with pytest.raises(RemoteRefused, match="404"):
            await engine.start()
        await engine.close()


async def test_the_demo_model_is_known_by_its_name() -> None:
    async with FakeServer(saying("hi"), models=("demo", "real")) as fake:
        for model, is_random in (("demo", True), ("real", False)):
            engine = RemoteEngine(fake.url, model=model)
            await engine.start()
            assert engine.info.random_weights is is_random
            await engine.close()


async def test_a_proxy_of_the_environment_does_not_stand_before_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await answered(saying("hi"), request())).text == "hi"


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host/v1", "http://", "http://[x"])
def test_a_url_that_cannot_be_an_api_is_an_invalid_setting(url: str) -> None:
    with pytest.raises(InvalidEngineConfig):
        RemoteEngine(url)


def test_v1_is_added_only_where_the_url_has_no_path() -> None:
    assert RemoteEngine("http://host:1/").base_url == "http://host:1/v1"
    assert RemoteEngine("http://host:1/api/v2/").base_url == "http://host:1/api/v2"


# Asking


async def test_a_chat_streams_its_text_and_ends_in_a_completion() -> None:
    async with FakeServer(saying("Hel", "lo")) as fake:
        engine = RemoteEngine(fake.url)
        chunks = [chunk async for chunk in engine.stream(request(seed=3, stop=("x",)))]
        await engine.close()
    assert [chunk.text for chunk in chunks] == ["Hel", "lo", ""]
    completion = chunks[-1].completion
    assert completion is not None
    assert (completion.text, completion.finish_reason) == ("Hello", "stop")
    assert completion.usage == Usage(prompt_tokens=7, output_tokens=3, cached_tokens=4)
    assert 0 < completion.ttft_s <= completion.e2el_s
    [asked] = fake.asked
    assert asked["messages"][1] == {"role": "user", "content": "hello"}
    assert (asked["seed"], asked["stop"], asked["max_tokens"]) == (3, ["x"], 20)
    assert asked["stream_options"] == {"include_usage": True}


async def test_our_server_gets_the_tags_and_the_priority() -> None:
    async with FakeServer(saying("hi"), headers=OURS) as fake:
        engine = RemoteEngine(fake.url)
        await engine.generate(request(slo=SOON, priority=-2))
        await engine.close()
    assert (engine.info.scheduler, engine.info.policy) == ("SloScheduler", "edf")
    [asked] = fake.asked
    assert asked["vllm_xargs"] == {
        "slo_kind": "deadline",
        "slo_deadline_s": 5.0,
        "slo_on_late": "drop",
    }
    assert asked["priority"] == -2


async def test_another_server_gets_nothing_that_it_would_refuse() -> None:
    async with FakeServer(like_openai, owner="openai") as fake:
        engine = RemoteEngine(fake.url)
        completion = await engine.generate(request(slo=SOON, priority=1))
        await engine.close()
    assert completion.text == "fine"
    assert engine.info.scheduler == ""


@pytest.mark.parametrize("prompt", [CHAT, "once upon"])
async def test_a_schema_travels_as_a_response_format(prompt: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with FakeServer(saying('{"a":1}')) as fake:
        engine = RemoteEngine(fake.url)
        completion = await engine.generate(request(prompt=prompt, schema=schema))
        await engine.close()
    assert completion.parsed() == {"a": 1}
    assert fake.asked[0]["response_format"]["json_schema"]["schema"] == schema


@pytest.mark.parametrize(("wanted", "sent"), [(None, 8192), (9000, 8192), (5, 5)])
async def test_vllm_is_asked_for_no_more_than_its_context(wanted: int | None, sent: int) -> None:
    async with FakeServer(saying("hi")) as fake:
        engine = RemoteEngine(fake.url)
        await engine.generate(request(prompt="once", max_tokens=wanted))
        await engine.close()
    assert fake.asked[0]["max_tokens"] == sent
    assert fake.asked[0]["prompt"] == "once"


# Ends


VLLM_TOO_LONG = (
    "This model's maximum context length is 8192 tokens. However, your prompt contains at least "
    "8193 input tokens, which exceeds this limit even without any output tokens."
)


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (400, {"message": "no such field"}, InvalidRequest("r1", "no such field")),
        (422, {"message": "not a number"}, InvalidRequest("r1", "not a number")),
        (400, {"message": VLLM_TOO_LONG}, PromptTooLong("r1", 8193, 8191)),
        (
            400,
            {"message": "max_tokens must be at least 1, got 0."},
            PromptTooLong("r1", 8192, 8191),
        ),
        (
            400,
            {
                "message": "slo_deadline_s=5.0: too far",
                "type": "invalid_slo",
                "param": "slo_deadline_s",
            },
            InvalidSlo("slo_deadline_s", 5.0, "too far"),
        ),
        (504, {"message": "slo_dropped: too late"}, RequestDropped("r1", "too late")),
        (401, {"message": "who are you"}, RemoteRefused("URL", 401, "who are you")),
        (500, {"message": "ouch"}, RemoteRefused("URL", 500, "ouch")),
        (503, {"message": "busy"}, RemoteRefused("URL", 503, "busy")),
    ],
)
async def test_a_refusal_is_named_and_not_repeated(
    status: int, error: dict[str, Any], expected: ServingError
) -> None:
    async with FakeServer(refusing(status, **error), headers=OURS) as fake:
        engine = RemoteEngine(fake.url)
        with pytest.raises(ServingError) as raised:
            await engine.generate(request(slo=SOON))
        await engine.close()
    assert type(raised.value) is type(expected)
    given = tuple(engine.base_url if each == "URL" else each for each in expected.args)
    assert raised.value.args == given
    assert len(fake.asked) == 1


@pytest.mark.parametrize("wrong", [{"seed": 2**64}, {"stop": (b"a",)}], ids=repr)
async def test_a_request_of_wrong_types_is_refused_before_it_is_sent(
    wrong: dict[str, Any],
) -> None:
    async with FakeServer(saying("hi")) as fake:
        engine = RemoteEngine(fake.url)
        with pytest.raises(InvalidRequest, match=r"r1: (seed|stop) must be"):
            await engine.generate(request(**wrong))
        await engine.close()
    assert fake.asked == []


async def test_a_server_that_answers_no_json_is_refused() -> None:
    with pytest.raises(RemoteRefused, match="Bad Gateway"):
        await answered(lambda _: Response("Bad Gateway", status_code=502), request())
    with pytest.raises(RemoteRefused):
        await answered(
            lambda _: Response("data: {oh\n\n", media_type="text/event-stream"), request()
        )


async def test_a_drop_in_the_middle_of_a_stream_is_a_drop() -> None:
    def reply(body: dict[str, Any]) -> Response:
        error = {"message": "slo_dropped: its deadline passed", "type": "x", "code": 504}
        return events(next(iter(parts_of(body, "half"))), {"error": error})

    with pytest.raises(RequestDropped, match="its deadline passed"):
        await answered(reply, request())


@pytest.mark.parametrize("prompt", [CHAT, "once upon"])
async def test_an_aborted_answer_is_named_by_its_stop_reason(prompt: Any) -> None:
    dropped = saying("half", finish="abort", stop_reason="slo_dropped: waited")
    with pytest.raises(RequestDropped, match="waited"):
        await answered(dropped, request(prompt=prompt))
    with pytest.raises(RequestFailed, match="abort"):
        await answered(saying("half", finish="abort"), request(prompt=prompt))
    with pytest.raises(RequestFailed, match="content_filter"):
        await answered(saying("half", finish="content_filter"), request(prompt=prompt))


async def test_a_stop_string_that_reads_like_a_drop_is_an_ordinary_end() -> None:
    reply = saying("all", finish="stop", stop_reason="slo_dropped: ")
    assert (await answered(reply, request())).text == "all"


async def test_a_stream_that_is_cut_is_unavailable() -> None:
    with pytest.raises(RemoteUnavailable):
        await answered(cut, request())


@pytest.mark.parametrize("done", [True, False])
async def test_a_stream_that_ends_without_an_end_is_unavailable(done: bool) -> None:
    def reply(body: dict[str, Any]) -> Response:
        return events(*parts_of(body, "half", finish=None), done=done)

    with pytest.raises(RemoteUnavailable, match="before the answer did"):
        await answered(reply, request())


async def test_parts_of_no_known_shape_add_no_text() -> None:
    def reply(body: dict[str, Any]) -> Response:
        return events({"choices": None}, {"choices": [{"delta": None}]}, *parts_of(body, "ok"))

    assert (await answered(reply, request())).text == "ok"


async def test_a_server_that_falls_silent_is_unavailable() -> None:
    def reply(body: dict[str, Any]) -> Response:
        async def sending() -> AsyncIterator[str]:
            yield f"data: {json.dumps(next(iter(parts_of(body, 'half'))))}\n\n"
            await asyncio.sleep(30)

        return StreamingResponse(sending(), media_type="text/event-stream")

    async with FakeServer(reply) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url, timeout_s=0.3)
        with pytest.raises(RemoteUnavailable, match="silent"):
            await engine.generate(request())
        await engine.close()


# Leaving


async def test_cancelling_a_call_closes_its_connection() -> None:
    async with FakeServer(endless) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url)
        call = asyncio.create_task(engine.generate(request()))
        await fake.arrivals.get()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await fake.left.wait()
        await engine.close()


async def test_leaving_a_stream_closes_its_connection() -> None:
    async with FakeServer(endless) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url)
        async with aclosing(engine.stream(request())) as chunks:
            async for chunk in chunks:
                assert chunk == Chunk("more")
                break
        await fake.left.wait()
        await engine.close()


async def test_closing_the_engine_ends_every_call_and_takes_no_more() -> None:
    async with FakeServer(endless) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url)
        calls = [asyncio.create_task(engine.generate(request(request_id=i))) for i in "abc"]
        for _ in calls:
            await fake.arrivals.get()
        await engine.close()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(end) for end in ends] == [EngineClosed] * 3
        with pytest.raises(EngineClosed):
            await engine.generate(request())
        await engine.close()


def test_the_error_of_a_missing_model_survives_pickling() -> None:
    error = ModelNotServed("http://host/v1", "big", ())
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args) == (ModelNotServed, error.args)
    assert "it serves no model" in str(again)
