"""The middleware in front of vLLM's HTTP application, called as an ASGI server calls it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from serving.engine.server.responses import Message, Receive, Scope, Send
from serving.engine.server.slo_middleware import (
    POLICY_HEADER,
    SCHEDULER_HEADER,
    TAGGED_PATHS,
    Refusal,
    SloMiddleware,
    record_admission,
    record_error,
    record_refusal,
    surrogate_field,
    tags_error,
)

GOOD = json.dumps({"vllm_xargs": {"slo_kind": "deadline", "slo_deadline_s": 3}}).encode()
BAD = json.dumps({"vllm_xargs": {"slo_kind": "sometimes"}}).encode()


class Application:
    """Stands for vLLM: reads its request, then streams two parts."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.body: bytes | None = None
        self.after_body: Message | None = None
        self.may_continue = asyncio.Event()
        self.may_continue.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.body = b""
            while True:
                message = await receive()
                self.body += message["body"]
                if not message["more_body"]:
                    break
            await send({"type": "http.response.start", "status": self.status, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
            await self.may_continue.wait()
            await send({"type": "http.response.body", "body": b"two", "more_body": False})
            self.after_body = await receive()


class Client:
    """Sends a body in pieces, then disconnects; keeps the messages that it receives."""

    def __init__(self, *pieces: bytes) -> None:
        self.received: list[Message] = []
        self.has_part = asyncio.Event()
        self._pieces = list(pieces)

    async def receive(self) -> Message:
        if not self._pieces:
            return {"type": "http.disconnect"}
        piece = self._pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}

    async def send(self, message: Message) -> None:
        self.received.append(message)
        if message.get("body"):
            self.has_part.set()

    @property
    def status(self) -> int:
        return int(self.received[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.received[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.received[1:])


def scope(path: str = "/v1/completions", *, method: str = "POST", **more: Any) -> Scope:
    arguments = SimpleNamespace(
        scheduler_cls="serving.engine.scheduler.scheduler.SloScheduler",
        additional_config={"orchestrate": {"policy": {"name": "edf"}}},
    )
    app = SimpleNamespace(state=SimpleNamespace(args=arguments))
    basic = {"type": "http", "method": method, "path": path, "headers": [], "app": app}
    return basic | more


@pytest.mark.parametrize("path", sorted(TAGGED_PATHS))
async def test_malformed_tags_are_answered_400_and_do_not_reach_the_application(path: str) -> None:
    application, client = Application(), Client(BAD[:9], BAD[9:])
    await SloMiddleware(application)(scope(path), client.receive, client.send)
    assert application.body is None
    assert client.status == 400
    error = json.loads(client.body)["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_slo", "slo_kind", 400)
    assert "'sometimes'" in error["message"]
    assert client.headers["content-length"] == str(len(client.body))


async def test_the_application_receives_a_valid_body_and_the_disconnect() -> None:
    application, client = Application(), Client(GOOD[:5], GOOD[5:20], GOOD[20:])
    await SloMiddleware(application)(scope(), client.receive, client.send)
    assert application.body == GOOD
    assert application.after_body == {"type": "http.disconnect"}
    assert (client.status, client.body) == (200, b"onetwo")


async def test_a_response_is_streamed_and_not_buffered() -> None:
    application, client = Application(), Client(GOOD)
    application.may_continue.clear()
    serving = asyncio.create_task(
        SloMiddleware(application)(scope(), client.receive, client.send)  # type: ignore[arg-type]
    )
    async with asyncio.timeout(5):
        await client.has_part.wait()
        assert client.body == b"one"
        application.may_continue.set()
        await serving


async def test_every_response_names_the_scheduler_and_its_policy() -> None:
    for path, method in (("/v1/models", "GET"), ("/v1/completions", "POST")):
        client = Client(GOOD)
        await SloMiddleware(Application())(scope(path, method=method), client.receive, client.send)
        assert client.headers[SCHEDULER_HEADER] == "SloScheduler"
        assert client.headers[POLICY_HEADER] == "edf"


async def test_clients_are_asked_not_to_retry_a_dropped_request() -> None:
    for status, hint in ((504, "false"), (200, None)):
        client = Client(GOOD)
        await SloMiddleware(Application(status))(scope(), client.receive, client.send)
        assert client.headers.get("x-should-retry") == hint


async def test_a_client_that_disconnects_early_does_not_reach_the_application() -> None:
    application, client = Application(), Client()
    await SloMiddleware(application)(scope(), client.receive, client.send)
    assert (application.body, client.received) == (None, [])


async def test_bodies_on_other_paths_are_not_checked() -> None:
    application, client = Application(), Client(BAD)
    await SloMiddleware(application)(scope("/v1/embeddings"), client.receive, client.send)
    assert application.body == BAD


async def test_messages_other_than_http_are_passed_on() -> None:
    client = Client()
    await SloMiddleware(Application())({"type": "lifespan"}, client.receive, client.send)
    assert client.received == []


@pytest.mark.parametrize("dropped", [True, False])
async def test_an_aborted_stream_ends_with_an_error_event_only_if_it_was_dropped(
    dropped: bool,
) -> None:
    async def failing(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        if dropped:
            await asyncio.create_task(recording())
        raise RuntimeError("vLLM aborts the stream")

    async def recording() -> None:  # vLLM streams in a task of its own
        record_error(504, "slo_dropped: too late")

    client = Client(GOOD)
    serving = SloMiddleware(failing)(scope(), client.receive, client.send)
    if not dropped:
        with pytest.raises(RuntimeError):
            await serving
        return
    await serving
    assert client.received[-1].get("more_body", False) is False
    event = json.loads(client.received[-1]["body"].partition(b"data: ")[2])
    assert (event["type"], event["message"]) == ("error", "slo_dropped: too late")


STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]


@pytest.mark.parametrize("aborts", [True, False])
@pytest.mark.parametrize("status", [400, 403])
async def test_a_request_refused_after_its_stream_has_begun_has_the_status_of_the_refusal(
    aborts: bool, status: int
) -> None:
    """vLLM begins a stream before the engine sees the request."""

    async def refusing(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        await send({"type": "http.response.body", "body": b"created", "more_body": True})
        record_refusal(Refusal(status, "minItems", "field"))
        if aborts:
            raise RuntimeError("vLLM aborts the stream")
        await send({"type": "http.response.body", "body": b"error", "more_body": True})
        await send({"type": "http.response.body", "body": b"done", "more_body": False})

    client = Client(GOOD)
    await SloMiddleware(refusing)(scope(), client.receive, client.send)
    assert client.status == status
    error = json.loads(client.body)["error"]
    assert (error["message"], error["param"]) == ("minItems", "field")


async def test_a_stream_begins_once_the_engine_has_the_request() -> None:
    async def admitting(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        await send({"type": "http.response.body", "body": b"created ", "more_body": True})
        assert client.received == []
        await asyncio.create_task(admitted())
        await send({"type": "http.response.body", "body": b"token ", "more_body": True})
        assert client.body == b"created token "
        record_refusal(Refusal(400, "of a second prompt", "field"))
        await send({"type": "http.response.body", "body": b"done", "more_body": False})

    async def admitted() -> None:
        record_admission()

    client = Client(GOOD)
    await SloMiddleware(admitting)(scope(), client.receive, client.send)
    assert (client.status, client.body) == (200, b"created token done")


async def test_a_stream_that_ends_before_the_engine_has_the_request_is_passed_on() -> None:
    async def failing(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        await send({"type": "http.response.body", "body": b"error ", "more_body": True})
        await send({"type": "http.response.body", "body": b"done", "more_body": False})

    client = Client(GOOD)
    await SloMiddleware(failing)(scope(), client.receive, client.send)
    assert (client.status, client.body) == (200, b"error done")


def test_a_drop_outside_a_request_is_ignored() -> None:
    record_error(504, "slo_dropped: no request")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"slo_ but no json",
        b'["slo_kind"]',
        b'{"vllm_xargs": "slo_kind"}',
        b'{"vllm_xargs": null, "prompt": "slo_kind"}',
        b'{"vllm_xargs": {"others": {"nested": 1}}, "prompt": "slo_kind"}',
        b'{"vllm_xargs": {"slo_weight": ' + b"[" * 100_000,
        b'{"vllm_xargs": {"others": 1}, "prompt": "slo_kind", "use_beam_search": true}',
        GOOD,
    ],
)
def test_bodies_without_malformed_tags_have_no_error(body: bytes) -> None:
    assert tags_error(body) is None


def test_beam_search_with_tags_is_an_error() -> None:
    error = tags_error(b'{"vllm_xargs": {"slo_weight": 2.0}, "use_beam_search": true}')
    assert error is not None
    assert error.args[0] == "use_beam_search"
    assert tags_error(b'{"vllm_xargs": {"slo_weight": 2}, "use_beam_search": false}') is None


def test_a_nested_tag_is_malformed() -> None:
    error = tags_error(b'{"vllm_xargs": {"slo_deadline_s": {"nested": 1}}}')
    assert error is not None
    assert error.args[0] == "slo_deadline_s"


SURROGATES = {
    "model": b'{"model": "\\ud800"}',
    "prompt": b'{"prompt": ["fine", "\\uDFFF"]}',
    "messages": b'{"messages": [{"content": "\\ude00\\ud83d"}]}',
    "vllm_xargs": b'{"vllm_xargs": {"\\ud800": 1}}',
    "a\ud800": b'{"a\\ud800": 1}',
    "user": b'{"user": "\xed\xa0\x80"}',
    "stop": '{"stop": "\ud800"}'.encode("utf-16", "surrogatepass"),
    "": b'["\\ud800"]',
}
"""The field with the lone surrogate -> a body, as an escape, as bytes and in UTF-16."""


@pytest.mark.parametrize(("field", "body"), SURROGATES.items(), ids=ascii)
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/v1/embeddings"])
async def test_text_that_utf8_cannot_encode_is_answered_400_on_every_path(
    path: str, field: str, body: bytes
) -> None:
    application, client = Application(), Client(body[:5], body[5:])
    await SloMiddleware(application)(scope(path), client.receive, client.send)
    assert application.body is None
    assert client.status == 400
    error = json.loads(client.body)["error"]
    assert (error["type"], error["param"]) == ("invalid_text", field)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "\\ud83d\\ude00"}',  # an emoji, as many clients escape it
        '{"prompt": "\U0001f600 \ud7ff"}'.encode(),
        b'{"prompt": "\\\\ud800"}',  # a backslash, then ordinary text
        b"\xed\xa0\x80",  # not JSON: left for vLLM
        b'{"prompt": "\\ud800"',
        b'{"prompt": "\\ud83d\\ude00", "a": ' + b"[" * 100_000,
    ],
)
async def test_other_bodies_reach_the_application_unchanged(body: bytes) -> None:
    assert surrogate_field(body) is None
    application, client = Application(), Client(body)
    await SloMiddleware(application)(scope("/tokenize"), client.receive, client.send)
    assert (client.status, application.body) == (200, body)


async def test_a_body_that_is_not_json_is_not_read_ahead() -> None:
    """An upload is passed on as it arrives, for its own parser to limit."""
    headers = [(b"content-type", b"multipart/form-data; boundary=x")]
    application, client = Application(), Client(SURROGATES["model"])
    request = scope("/v1/audio/transcriptions", headers=headers)
    await SloMiddleware(application)(request, client.receive, client.send)
    assert (client.status, application.body) == (200, SURROGATES["model"])
