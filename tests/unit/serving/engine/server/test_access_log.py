"""The access log: a line of JSON for each request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.engine.server.access import USER_IN_SCOPE
from serving.engine.server.access_log import AccessLog, AccessLogMiddleware
from serving.engine.server.responses import Message, Receive, Scope, Send
from serving.errors import InvalidEngineConfig


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers as the path says, and knows the user."""
    scope[USER_IN_SCOPE] = "ann"
    if scope["path"] == "/leave":
        raise asyncio.CancelledError
    status = 404 if scope["path"] == "/missing" else 200
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    await send({"type": "http.response.body", "body": b"two"})


async def request(log: AccessLog | None, path: str, kind: str = "http") -> list[Message]:
    sent: list[Message] = []
    arguments = SimpleNamespace(access_log=log)
    scope = {
        "type": kind,
        "method": "POST",
        "path": path,
        "client": ("10.0.0.1", 5),
        "query_string": b"secret=1",
        "app": SimpleNamespace(state=SimpleNamespace(args=arguments)),
    }

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await AccessLogMiddleware(application)(scope, receive, send)
    return sent


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


@pytest.fixture
def log(file: Path) -> Iterator[AccessLog]:
    log = AccessLog(str(file))
    yield log
    log.close()


async def test_a_request_is_one_line_without_query_or_body(file: Path, log: AccessLog) -> None:
    assert len(await request(log, "/v1/chat/completions")) == 3
    [line] = lines(file)
    assert line["seconds"] >= line["first_byte_s"] >= 0
    assert {
        name: line[name] for name in ("client", "user", "method", "path", "status", "bytes")
    } == {
        "client": "10.0.0.1",
        "user": "ann",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "bytes": 6,
    }
    assert "secret" not in json.dumps(line)


async def test_probes_are_logged_only_if_they_fail(file: Path, log: AccessLog) -> None:
    for path in ("/health", "/metrics", "/orchestrate/snapshot", "/missing"):
        await request(log, path)
    assert [line["path"] for line in lines(file)] == ["/missing"]


async def test_a_client_that_leaves_before_an_answer_has_no_status(
    file: Path, log: AccessLog
) -> None:
    with pytest.raises(asyncio.CancelledError):
        await request(log, "/leave")
    assert lines(file)[0]["status"] is None


def test_a_moved_log_goes_on_in_a_new_file(file: Path, log: AccessLog) -> None:
    asyncio.run(request(log, "/one"))
    file.rename(file.with_suffix(".1"))
    log.reopen()
    asyncio.run(request(log, "/two"))
    assert [line["path"] for line in lines(file)] == ["/two"]
    assert [line["path"] for line in lines(file.with_suffix(".1"))] == ["/one"]


async def test_a_full_disk_costs_the_line_and_not_the_request() -> None:
    full = AccessLog("/dev/full")
    assert len(await request(full, "/one")) == 3
    full.close()


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidEngineConfig, match="access_log"):
        AccessLog(str(tmp_path))


async def test_without_a_log_requests_pass() -> None:
    assert len(await request(None, "/one")) == 3
