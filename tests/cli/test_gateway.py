from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.cli_samples import exit_code
from tests.places import ROOT

REPLICA = "http://127.0.0.1:9"


class Replica(BaseHTTPRequestHandler):
    """Lists a model; answers a chat with the key that it was sent."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        is_list = self.path == "/v1/models"
        self.answer(200 if is_list else 404, {"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, {"key": self.headers["Authorization"]})

    def answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def replica() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Replica)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["localhost:8000"], "http://127.0.0.1:8001"),
        ([REPLICA, REPLICA + "/v1"], "twice"),
        ([REPLICA, "--router", "nonsense"], "power_of_k"),
        ([REPLICA, "--router-param", "k=-1"], "k must be at least 0"),
        ([REPLICA, "--router-param", "k"], "KEY=VALUE"),
        ([REPLICA, "--router-param", "k=[1]"], "a value is a number"),
        ([REPLICA, "--router", "slos_serve", "--router-param", "k=1"], "known: limit, share"),
        ([REPLICA, "--host", "0.0.0.0"], "--insecure"),
        ([REPLICA, "--host", "192.0.2.1"], "cannot listen there"),
    ],
)
def test_bad_input_is_refused_before_the_gateway_starts(
    capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    host = [] if "--host" not in arguments or "0.0.0.0" in arguments else ["--insecure"]
    assert exit_code("gateway", *arguments, *host) == 2
    assert named in " ".join(capsys.readouterr().err.split())


def test_a_taken_port_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert exit_code("gateway", REPLICA, "--port", port) == 2
    assert "cannot listen there" in capsys.readouterr().err


def test_an_invalid_file_of_keys_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "keys.toml").write_text("[[keys]]\n")
    (tmp_path / "keys.toml").chmod(0o600)
    assert exit_code("gateway", REPLICA, "--api-keys", str(tmp_path / "keys.toml")) == 2
    assert "key 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("subprocesses")
def test_the_command_says_when_it_is_ready_and_ends_at_sigterm() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with replica() as url:
        command = [sys.executable, "-m", "cli", "gateway", url, REPLICA, "--port", port]
        environment = os.environ | {"ORCHESTRATE_API_KEY": "secret"}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        said = ""
        while "is ready" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert "1 of 2 replicas answer" in said
        assert f"replica {REPLICA} does not answer" in said
        address = re.search(r"http://127.0.0.1:\d+/v1 is ready", said)
        assert address is not None
        root = address[0].partition(" ")[0]
        request = urllib.request.Request(
            f"{root}/chat/completions", b'{"model": "m"}', {"Authorization": "Bearer secret"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer) == {"key": "Bearer secret"}
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{root}/models", timeout=60)
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        process.stderr.close()
        assert process.wait(timeout=60) == 0
        assert "has stopped" in rest
