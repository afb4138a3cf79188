"""`orchestrate serve` with its analyzer: calls without tags, while it is killed and hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.engine.metrics_pages import Page, read_page
from tests.engine.test_server import CALL_S, free_port, kill_if_running, wait_until_healthy
from tests.places import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("imported_vllm")]

LENGTHS = (20, 60, 10)
"""Tokens of the answers of a program, one after the other."""

LIMIT_S = 60.0


class Server(NamedTuple):
    """A server; programs end after a second without a call."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @property
    def analyzer(self) -> int | None:
        """The id of its analyzer's process; None while there is none."""
        children = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(self.process.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line.split(maxsplit=1) for line in children.stdout.splitlines()]
        return next((int(pid) for pid, args in lines if "orchestrator.analyzer" in args), None)

    def count(self, name: str, **labels: str) -> float:
        return sum(read_page(self.url).by(f"orchestrate_{name}", **labels).values())

    def until(self, holds: Callable[[], bool]) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < end_s
            time.sleep(0.2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("analyzer")
    port = free_port()
    variables = {
        "ORCHESTRATE_ANALYZER_STORE": f"sqlite:///{folder / 'served.db'}",
        "ORCHESTRATE_PROGRAM_IDLE_S": "1",
    }
    command = [sys.executable, "-m", "cli", "serve", "random", "--analyzer", "--port", str(port)]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | variables, stdout=output, stderr=output
        )
    try:
        wait_until_healthy(process, f"http://127.0.0.1:{port}")
        server = Server(process, f"http://127.0.0.1:{port}", log)
        server.until(lambda: server.count("analyzer_up") == 1)
        yield server
    finally:
        kill_if_running(process)


def program(server: Server, deadline_s: float = 30) -> list[int]:
    """A program of an ordinary client, which repeats its conversation; the statuses it saw."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"question {time.time()}"}]
    statuses = []
    headers = {"x-orchestrate-program-deadline": str(deadline_s)}
    with httpx.Client(trust_env=False, timeout=CALL_S, headers=headers) as client:
        for tokens in LENGTHS:
            body = {"messages": messages, "max_tokens": tokens, "min_tokens": tokens}
            response = client.post(
                f"{server.url}/v1/chat/completions",
                json={"model": "random", "temperature": 0.0, **body},
            )
            statuses.append(response.status_code)
            answer = response.json()["choices"][0]["message"]
            messages += [answer, {"role": "user", "content": "go on"}]
    return statuses


def predicted(before: Page, after: Page) -> float:
    """Calls of programs that had a predicted length."""
    name = "orchestrate_predicted_length_ratio_count"
    return sum(after.since(before).by(name, kind="compound").values())


def advised(server: Server) -> float:
    """Calls with predicted lengths among those of a program."""
    before = read_page(server.url)
    assert program(server) == [200] * len(LENGTHS)
    return predicted(before, read_page(server.url))


def test_calls_of_an_ordinary_client_have_a_deadline_and_predicted_lengths(server: Server) -> None:
    for _ in range(6):
        assert program(server) == [200] * len(LENGTHS)
    assert server.count("promises_total", kind="compound", outcome="kept") == 18
    server.until(lambda: advised(server) == len(LENGTHS))


def test_while_the_analyzer_is_dead_or_hangs_nothing_waits_for_it(server: Server) -> None:
    first = server.analyzer
    assert first is not None
    os.kill(first, signal.SIGKILL)
    for _ in range(3):
        assert program(server) == [200] * len(LENGTHS)
    server.until(lambda: server.count("analyzer_up") == 1)
    server.until(lambda: advised(server) == len(LENGTHS))  # as before it died
    second = server.analyzer
    assert second not in (None, first)
    assert second is not None
    os.kill(second, signal.SIGSTOP)
    late = server.count("advice_total", outcome="late")
    for _ in range(3):
        assert program(server) == [200] * len(LENGTHS)
    assert server.count("advice_total", outcome="late") - late == 9
    # It has not answered for ten seconds: another one is started.
    server.until(lambda: advised(server) == len(LENGTHS))
    assert server.count("analyzer_deaths_total") == 2
    assert server.count("promises_total", kind="compound", outcome="missed") == 0
    assert "the analyzer ended (signal 9)" in server.log.read_text()


def test_a_malformed_header_is_refused(server: Server) -> None:
    response = httpx.post(
        f"{server.url}/v1/completions",
        json={"model": "random", "prompt": "x"},
        headers={"x-orchestrate-program-deadline": "soon"},
        trust_env=False,
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-orchestrate-program-deadline"


def test_it_ends_with_its_server(server: Server) -> None:
    analyzer = server.analyzer
    assert analyzer is not None
    server.process.terminate()
    server.process.wait(LIMIT_S)
    with pytest.raises(ProcessLookupError):
        os.kill(analyzer, 0)
