"""`orchestrate serve --api-keys` with the demo model, in a process of its own."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from serving.engine.server.access import CLOSED_PATHS, OPEN_PATHS
from serving.engine.server.server import parse_arguments, server_arguments
from serving.engine.setup.config import EngineConfig
from serving.engine.setup.random_model import ensure_random_model
from tests.engine.test_server import (
    CALL_S,
    CHAT,
    free_port,
    kill_if_running,
    wait_until_healthy,
)
from tests.places import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("imported_vllm")]

KEYS = """
[[keys]]
user = "alice"
key = "key-of-alice"

[[keys]]
user = "bob"
key = "key-of-bob"
requests_per_minute = 1
"""
OF_ALICE = {"authorization": "Bearer key-of-alice"}
OF_BOB = {"authorization": "Bearer key-of-bob"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(KEYS)
    file.chmod(0o600)
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", "serve", "--port", str(port), "--api-keys", str(file)],
        cwd=ROOT,
    )
    try:
        wait_until_healthy(process, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        kill_if_running(process)


def post(url: str, path: str, headers: dict[str, str], **body: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=CALL_S) as client:
        return client.post(f"{url}{path}", headers=headers, json={"model": "random", **body})


def routes() -> list[tuple[str, str]]:
    """Method and path of each route of vLLM's application, as our arguments build it."""
    level = logging.root.level  # which vLLM sets
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.entrypoints.launchers.app import build_app

        model = str(ensure_random_model())
        arguments = server_arguments(
            EngineConfig(), model, "cpu", served_model="random", host="127.0.0.1", port=1
        )
        application = build_app(parse_arguments(arguments), ("generate",))
    logging.root.setLevel(level)
    return [
        (method, route.path)
        for route in application.routes
        for method in (getattr(route, "methods", None) or ["GET"])
    ]


def test_every_route_but_the_probes_needs_a_key_and_the_closed_ones_do_not_exist(url: str) -> None:
    found = routes()
    paths = {path for _, path in found}
    assert {"/v1/chat/completions", "/metrics", "/version"} | OPEN_PATHS | CLOSED_PATHS <= paths
    with httpx.Client(base_url=url, trust_env=False, timeout=CALL_S) as client:
        for method, path in [*found, ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/none")]:
            is_probe = path in OPEN_PATHS and method in ("GET", "HEAD")
            expected = 200 if is_probe else 404 if path in CLOSED_PATHS else 401
            assert client.request(method, path).status_code == expected, (method, path)
        for method, path in [*(("POST", path) for path in CLOSED_PATHS), ("GET", "/docs")]:
            assert client.request(method, path, headers=OF_ALICE).status_code == 404


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | {"max_tokens": 2}),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 2}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 2}),
        ("/invocations", {"prompt": "hi", "max_tokens": 2}),
    ],
)
def test_a_key_s_requests_belong_to_its_user(
    url: str, path: str, body: dict[str, Any], stream: bool
) -> None:
    body = body | {"stream": stream}
    refused = post(url, path, OF_ALICE, **body, vllm_xargs={"slo_user": "bob"})
    assert refused.status_code == 403
    assert refused.json()["error"]["param"] == "slo_user"
    assert post(url, path, OF_ALICE, **body, vllm_xargs={"slo_user": "alice"}).status_code == 200
    assert post(url, path, OF_ALICE, **body).status_code == 200


def test_the_requests_of_a_batch_cannot_name_another_user_either(url: str) -> None:
    """Tags on this path are not checked by the middleware."""
    body = {"messages": [CHAT["messages"]] * 2, "max_tokens": 2}
    path = "/v1/chat/completions/batch"
    assert post(url, path, OF_ALICE, **body).status_code == 200
    refused = post(url, path, OF_ALICE, **body, vllm_xargs={"slo_user": "bob"})
    assert refused.status_code == 403
    assert "alice" in refused.text


def test_requests_beyond_the_rate_of_a_key_are_answered_429(url: str) -> None:
    body = CHAT | {"max_tokens": 2}
    assert post(url, "/v1/chat/completions", OF_BOB, **body).status_code == 200
    refused = post(url, "/v1/chat/completions", OF_BOB, **body)
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert post(url, "/v1/chat/completions", OF_ALICE, **body).status_code == 200


def test_headers_that_never_end_are_refused(url: str) -> None:
    address = url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=CALL_S) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nx: " + b"y" * 100_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")
