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
from serving.generation import Chunk, Completion, GenerationRequest, Message, Token, Usage
from serving.slo import OnLate, Slo, SloKind
from tests.spans import traceparent

OURS = {SCHEDULER_HEADER: "SloScheduler", POLICY_HEADER: "edf"}
DROPPABLE = Slo(kind=SloKind.DEADLINE, deadline_s=5.0, on_late=OnLate.DROP)
CHAT = (Message("system", "be brief"), Message("user", "hello"))

Reply = Callable[[dict[str, Any]], Response]


class FakeServer:
    """Serves a list of models, and answers each generation with the test's reply."""

    def __init__(
        self,
        reply: Reply,
        *,
        models: tuple[str, ...] = ("tiny",),
        owner: str = "vllm",
        headers: dict[str, str] | None = None,
        embed: Reply | None = None,
    ) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.arrivals: asyncio.Queue[None] = asyncio.Queue()
        self.disconnected = asyncio.Event()
        self._reply = reply
        self._embed_reply = embed
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
                *(
                    []
                    if embed is None
                    else [Route("/v1/embeddings", self._embed, methods=["POST"])]
                ),
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

    async def _embed(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        assert self._embed_reply is not None
        return self._embed_reply(body)

    async def _generate(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.headers.append(dict(request.headers))
        self.bodies.append(body)
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
            self.disconnected.set()


def parts_of(body: dict[str, Any], *texts: str, finish: str | None = "stop", **last: Any) -> Any:
    """The stream of an OpenAI server: one part for each text, then the usage."""
    chat = "messages" in body

    def part(text: str, finish: str | None, **more: Any) -> dict[str, Any]:
        content = {"delta": {"content": text}} if chat else {"text": text}
        choice = {"index": 0, "finish_reason": finish, **content, **more}
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


def answer_with(*texts: str, **last: Any) -> Reply:
    return lambda body: events(*parts_of(body, *texts, **last))


def endless(body: dict[str, Any]) -> Response:
    async def sending() -> AsyncIterator[str]:
        part = next(iter(parts_of(body, "more")))
        while True:
            yield f"data: {json.dumps(part)}\n\n"
            await asyncio.sleep(0.01)

    return StreamingResponse(sending(), media_type="text/event-stream")


def broken_off(body: dict[str, Any]) -> Response:
    async def sending() -> AsyncIterator[str]:
        yield f"data: {json.dumps(next(iter(parts_of(body, 'half'))))}\n\n"
        raise ConnectionAbortedError("the connection broke")

    return StreamingResponse(sending(), media_type="text/event-stream")


def refuse_with(status: int, **error: Any) -> Reply:
    return lambda _: JSONResponse({"error": {"code": status, **error}}, status_code=status)


def openai_only(body: dict[str, Any]) -> Response:
    """The reply of a server that refuses fields outside OpenAI's API."""
    own = {"vllm_xargs", "priority", "structured_outputs", "top_k", "min_p", "repetition_penalty"}
    unknown = own & body.keys()
    if unknown:
        return refuse_with(400, message=f"unknown fields: {unknown}")(body)
    return answer_with("fine")(body)


def request(**settings: Any) -> GenerationRequest:
    return GenerationRequest(**{"request_id": "r1", "prompt": CHAT, "max_tokens": 20} | settings)


async def completion_of(reply: Reply, request: GenerationRequest, **server: Any) -> Completion:
    async with FakeServer(reply, **server) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url)
        try:
            return await engine.generate(request)
        finally:
            await engine.close()


# Starting


async def test_a_server_that_does_not_listen_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    engine = RemoteEngine(f"http://127.0.0.1:{port}")
    with pytest.raises(RemoteUnavailable):
        await engine.start()
    await engine.close()


async def test_a_server_that_accepts_and_sends_nothing_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = RemoteEngine(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
        async with asyncio.timeout(10):
            with pytest.raises(RemoteUnavailable, match="silent"):
                await engine.start()
        await engine.close()


async def test_the_first_served_model_is_the_default() -> None:
    async with FakeServer(answer_with("hi"), models=("first", "second")) as fake:
        engine = RemoteEngine(fake.url, api_key="secret")
        await engine.start()
        await engine.start()
        assert (engine.info.model, engine.info.max_model_tokens) == ("first", 8192)
        assert fake.keys == ["Bearer secret"]
        await engine.close()


async def test_the_error_for_a_model_that_is_not_served_lists_the_served_ones() -> None:
    async with FakeServer(answer_with("hi"), models=("first", "second")) as fake:
        engine = RemoteEngine(fake.url, model="third")
        with pytest.raises(ModelNotServed, match="'third'; it serves first, second"):
            await engine.start()
        await engine.close()


async def test_a_server_without_a_list_of_models_is_refused() -> None:
    async with FakeServer(answer_with("hi")) as fake:
        engine = RemoteEngine(fake.url + "/elsewhere")
        with pytest.raises(RemoteRefused, match="404"):
            await engine.start()
        await engine.close()


async def test_a_model_named_demo_has_random_weights() -> None:
    async with FakeServer(answer_with("hi"), models=("random", "real")) as fake:
        for model, is_random in (("random", True), ("real", False)):
            engine = RemoteEngine(fake.url, model=model)
            await engine.start()
            assert engine.info.random_weights is is_random
            await engine.close()


async def test_a_proxy_from_the_environment_is_not_used_for_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await completion_of(answer_with("hi"), request())).text == "hi"


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host/v1", "http://", "http://[x"])
def test_a_url_that_is_not_http_is_an_invalid_setting(url: str) -> None:
    with pytest.raises(InvalidEngineConfig):
        RemoteEngine(url)


def test_v1_is_added_only_if_the_url_has_no_path() -> None:
    assert RemoteEngine("http://host:1/").base_url == "http://host:1/v1"
    assert RemoteEngine("http://host:1/api/v2/").base_url == "http://host:1/api/v2"


# Requests


async def test_a_chat_streams_its_text_and_ends_in_a_completion() -> None:
    async with FakeServer(answer_with("Hel", "lo")) as fake:
        engine = RemoteEngine(fake.url)
        chunks = [chunk async for chunk in engine.stream(request(seed=3, stop=("x",)))]
        await engine.close()
    assert [chunk.text for chunk in chunks] == ["Hel", "lo", ""]
    completion = chunks[-1].completion
    assert completion is not None
    assert (completion.text, completion.finish_reason) == ("Hello", "stop")
    assert completion.usage == Usage(prompt_tokens=7, output_tokens=3, cached_tokens=4)
    assert 0 < completion.ttft_s <= completion.e2el_s
    [body] = fake.bodies
    assert body["messages"][1] == {"role": "user", "content": "hello"}
    assert (body["seed"], body["stop"], body["max_tokens"]) == (3, ["x"], 20)
    assert body["stream_options"] == {"include_usage": True}


async def test_our_server_receives_the_tags_and_the_priority() -> None:
    async with FakeServer(answer_with("hi"), headers=OURS) as fake:
        engine = RemoteEngine(fake.url)
        await engine.generate(request(slo=DROPPABLE, priority=-2))
        await engine.close()
    assert (engine.info.scheduler, engine.info.policy) == ("SloScheduler", "edf")
    [body] = fake.bodies
    assert body["vllm_xargs"] == {
        "slo_kind": "deadline",
        "slo_deadline_s": 5.0,
        "slo_on_late": "drop",
    }
    assert body["priority"] == -2


async def test_a_server_is_told_of_which_span_a_request_is() -> None:
    headers = {"traceparent": traceparent("ab" * 16, "cd" * 8), "tracestate": "vendor=1"}
    async with FakeServer(answer_with("hi")) as fake:
        engine = RemoteEngine(fake.url)
        await engine.generate(request(trace_headers=headers))
        await engine.generate(request())
        await engine.close()
    assert headers.items() <= fake.headers[0].items()
    assert not headers.keys() & fake.headers[1].keys()


async def test_another_server_receives_only_fields_of_openai_s_api() -> None:
    async with FakeServer(openai_only, owner="openai") as fake:
        engine = RemoteEngine(fake.url)
        completion = await engine.generate(request(slo=DROPPABLE, priority=1))
        await engine.close()
    assert completion.text == "fine"
    assert engine.info.scheduler == ""


@pytest.mark.parametrize("prompt", [CHAT, "once upon"])
async def test_how_tokens_are_sampled_is_sent_beside_openai_s_fields(prompt: Any) -> None:
    """vLLM reads its own fields at the top of the body, as its clients' extra_body sends them."""
    own = {"top_k": 20, "min_p": 0.1, "repetition_penalty": 1.2}
    openai_s = {"frequency_penalty": -0.5, "presence_penalty": 0.25}
    async with FakeServer(answer_with("hi")) as fake:
        engine = RemoteEngine(fake.url)
        await engine.generate(request(prompt=prompt, **own, **openai_s))
        await engine.close()
    [body] = fake.bodies
    assert {name: body[name] for name in (own | openai_s)} == own | openai_s


async def test_a_server_that_does_not_know_a_field_says_so() -> None:
    with pytest.raises(InvalidRequest, match="top_k"):
        await completion_of(openai_only, request(top_k=5), owner="openai")


@pytest.mark.parametrize("prompt", [CHAT, "once upon"])
async def test_a_schema_is_sent_as_a_response_format(prompt: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with FakeServer(answer_with('{"a":1}')) as fake:
        engine = RemoteEngine(fake.url)
        completion = await engine.generate(request(prompt=prompt, schema=schema))
        await engine.close()
    assert completion.parsed() == {"a": 1}
    assert fake.bodies[0]["response_format"]["json_schema"]["schema"] == schema


@pytest.mark.parametrize(("max_tokens", "sent"), [(None, 8192), (9000, 8192), (5, 5)])
async def test_vllm_is_asked_for_no_more_tokens_than_its_context(
    max_tokens: int | None, sent: int
) -> None:
    async with FakeServer(answer_with("hi")) as fake:
        engine = RemoteEngine(fake.url)
        await engine.generate(request(prompt="once", max_tokens=max_tokens))
        await engine.close()
    assert fake.bodies[0]["max_tokens"] == sent
    assert fake.bodies[0]["prompt"] == "once"


# Log-probabilities


def chat_logprobs(token: str, logprob: float, **top: float) -> dict[str, Any]:
    """Of one token of a chat, with alternatives in the order given."""
    listed = [{"token": text, "logprob": value, "bytes": None} for text, value in top.items()]
    content = {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": listed}
    return {"content": [content], "refusal": None}


def plain_logprobs(token: str, logprob: float, **top: float) -> dict[str, Any]:
    """Of one token of the answer to a plain prompt."""
    return {
        "tokens": [token],
        "token_logprobs": [logprob],
        "top_logprobs": [top or None],
        "text_offset": [0],
    }


def scored(body: dict[str, Any]) -> Response:
    """The answer "So it", token by token, and an end token without text."""
    of = chat_logprobs if "messages" in body else plain_logprobs
    found = [
        ("So", of("So", -2.0, So=-2.0, No=-0.5, Yes=-1.5)),
        (" it", of(" it", -0.25, So=-9999.0, No=-0.5)),
        ("", of("<end>", -0.125)),
    ]
    parts = list(parts_of(body, *(text for text, _ in found)))
    for part, (_, logprobs) in zip(parts, found, strict=False):
        part["choices"][0]["logprobs"] = logprobs
    return events(*parts)


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [(CHAT, {"logprobs": True, "top_logprobs": 3}), ("once", {"logprobs": 2})],
)
async def test_each_token_has_its_log_probability_and_the_most_probable_alternatives(
    prompt: Any, sent: dict[str, Any]
) -> None:
    async with FakeServer(scored) as fake:
        engine = RemoteEngine(fake.url)
        completion = await engine.generate(request(prompt=prompt, logprobs=2))
        await engine.close()
    assert completion.text == "So it"
    assert completion.tokens == (
        Token("So", -2.0, (("No", -0.5), ("Yes", -1.5))),
        Token(" it", -0.25, (("No", -0.5),)),
        Token("<end>", -0.125),
    )
    [body] = fake.bodies
    assert {name: body.get(name) for name in sent} == sent


@pytest.mark.parametrize(("logprobs", "sent"), [(0, None), (1, 2), (19, 20), (20, 20)], ids=str)
async def test_a_chat_asks_for_one_more_because_vllm_lists_the_token_itself(
    logprobs: int, sent: int | None
) -> None:
    async with FakeServer(scored) as fake:
        engine = RemoteEngine(fake.url)
        await engine.generate(request(logprobs=logprobs))
        await engine.generate(request())
        await engine.close()
    asked, not_asked = fake.bodies
    assert (asked["logprobs"], asked.get("top_logprobs")) == (True, sent)
    assert not {"logprobs", "top_logprobs"} & not_asked.keys()


async def test_log_probabilities_that_were_not_asked_for_are_left_out() -> None:
    assert (await completion_of(scored, request())).tokens == ()


@pytest.mark.parametrize("prompt", [CHAT, "once"])
@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (None, "sent no log-probabilities"),
        ({}, "sent no log-probabilities"),
        ({"content": [{"token": "a", "logprob": None}], "tokens": ["a"]}, "unknown form"),
        ({"content": "words", "tokens": ["a"], "token_logprobs": [None]}, "unknown form"),
    ],
)
async def test_a_server_that_sends_no_usable_log_probabilities_fails_the_request(
    prompt: Any, sent: Any, reason: str
) -> None:
    def reply(body: dict[str, Any]) -> Response:
        parts = list(parts_of(body, "fine"))
        parts[0]["choices"][0]["logprobs"] = sent
        return events(*parts)

    with pytest.raises(RequestFailed, match=reason):
        await completion_of(reply, request(prompt=prompt, logprobs=1))


# Errors


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
        (401, {"message": "unknown key"}, RemoteRefused("URL", 401, "unknown key")),
        (500, {"message": "ouch"}, RemoteRefused("URL", 500, "ouch")),
        (503, {"message": "busy"}, RemoteRefused("URL", 503, "busy")),
    ],
)
async def test_an_error_response_becomes_a_named_error_and_is_not_retried(
    status: int, error: dict[str, Any], expected: ServingError
) -> None:
    async with FakeServer(refuse_with(status, **error), headers=OURS) as fake:
        engine = RemoteEngine(fake.url)
        with pytest.raises(ServingError) as raised:
            await engine.generate(request(slo=DROPPABLE))
        await engine.close()
    assert type(raised.value) is type(expected)
    given = tuple(engine.base_url if each == "URL" else each for each in expected.args)
    assert raised.value.args == given
    assert len(fake.bodies) == 1


@pytest.mark.parametrize("wrong", [{"seed": 2**64}, {"stop": (b"a",)}], ids=repr)
async def test_a_request_with_a_field_of_a_wrong_type_is_not_sent(
    wrong: dict[str, Any],
) -> None:
    async with FakeServer(answer_with("hi")) as fake:
        engine = RemoteEngine(fake.url)
        with pytest.raises(InvalidRequest, match=r"r1: (seed|stop) must be"):
            await engine.generate(request(**wrong))
        await engine.close()
    assert fake.bodies == []


async def test_a_response_that_is_not_json_is_refused() -> None:
    with pytest.raises(RemoteRefused, match="Bad Gateway"):
        await completion_of(lambda _: Response("Bad Gateway", status_code=502), request())
    with pytest.raises(RemoteRefused):
        await completion_of(
            lambda _: Response("data: {oh\n\n", media_type="text/event-stream"), request()
        )


async def test_a_drop_in_the_middle_of_a_stream_is_request_dropped() -> None:
    def reply(body: dict[str, Any]) -> Response:
        error = {"message": "slo_dropped: its deadline passed", "type": "x", "code": 504}
        return events(next(iter(parts_of(body, "half"))), {"error": error})

    with pytest.raises(RequestDropped, match="its deadline passed"):
        await completion_of(reply, request())


@pytest.mark.parametrize("prompt", [CHAT, "once upon"])
async def test_the_error_of_an_aborted_answer_depends_on_its_stop_reason(prompt: Any) -> None:
    dropped = answer_with("half", finish="abort", stop_reason="slo_dropped: waited")
    with pytest.raises(RequestDropped, match="waited"):
        await completion_of(dropped, request(prompt=prompt))
    with pytest.raises(RequestFailed, match="abort"):
        await completion_of(answer_with("half", finish="abort"), request(prompt=prompt))
    with pytest.raises(RequestFailed, match="content_filter"):
        await completion_of(answer_with("half", finish="content_filter"), request(prompt=prompt))


async def test_a_stop_string_that_looks_like_a_drop_is_an_ordinary_end() -> None:
    reply = answer_with("all", finish="stop", stop_reason="slo_dropped: ")
    assert (await completion_of(reply, request())).text == "all"


async def test_a_stream_that_breaks_off_raises_remote_unavailable() -> None:
    with pytest.raises(RemoteUnavailable):
        await completion_of(broken_off, request())


@pytest.mark.parametrize("done", [True, False])
async def test_a_stream_without_a_finish_reason_raises_remote_unavailable(done: bool) -> None:
    def reply(body: dict[str, Any]) -> Response:
        return events(*parts_of(body, "half", finish=None), done=done)

    with pytest.raises(RemoteUnavailable, match="before the answer did"):
        await completion_of(reply, request())


async def test_parts_of_an_unknown_shape_add_no_text() -> None:
    def reply(body: dict[str, Any]) -> Response:
        return events({"choices": None}, {"choices": [{"delta": None}]}, *parts_of(body, "ok"))

    assert (await completion_of(reply, request())).text == "ok"


async def test_a_server_that_becomes_silent_is_unavailable() -> None:
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


# Cancelling and closing


async def test_cancelling_a_call_closes_its_connection() -> None:
    async with FakeServer(endless) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url)
        call = asyncio.create_task(engine.generate(request()))
        await fake.arrivals.get()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await fake.disconnected.wait()
        await engine.close()


async def test_closing_a_stream_closes_its_connection() -> None:
    async with FakeServer(endless) as fake, asyncio.timeout(20):
        engine = RemoteEngine(fake.url)
        async with aclosing(engine.stream(request())) as chunks:
            async for chunk in chunks:
                assert chunk == Chunk("more")
                break
        await fake.disconnected.wait()
        await engine.close()


async def test_closing_the_engine_ends_every_call_and_refuses_new_ones() -> None:
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
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args) == (ModelNotServed, error.args)
    assert "it serves no model" in str(copy)
