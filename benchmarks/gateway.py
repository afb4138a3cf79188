"""What a gateway costs: two replicas asked directly, through the gateway, and through Ray Serve.

    python -m benchmarks.gateway [--json] [--streams 40] [--rounds 6] [--calls 192]
        [--clients 48] [--tokens 64]

Starts two replicas of the random model and `orchestrate gateway` to them. The paths alternate:
streams one after another, each on the next path, and rounds of calls by clients that send the next
one when they have an answer. Directly, requests are spread evenly over the replicas. Medians are
printed: milliseconds to the first event with text, milliseconds from token to token, and calls a
second. Clients, gateway and replicas share the machine's cores, so what a call costs the gateway is
taken from the replicas; with a core of its own it would not be.

Ray Serve's own data path to the same replicas (`benchmarks.ray_data_path`) is measured if Ray is
installed: the extra `ray`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from typing import Any, NamedTuple

import aiohttp
import psutil

from benchmarks.command import exit_code, parser_of, positive, print_result, say
from cli.errors import CommandError

MODEL = "random"
START_S = 240.0
"""Limit on the start of the replicas, which import vLLM."""

MAX_ADDED_TTFT_MS, MAX_ADDED_MS_PER_TOKEN, MIN_THROUGHPUT = 5.0, 0.3, 0.8
"""What the gateway may cost."""


class Figures(NamedTuple):
    """Medians of one path."""

    ttft_ms: float
    ms_per_token: float
    req_s: float


class Samples:
    """What was measured on one path.

    Args:
        urls: the addresses that requests are spread over, in turn.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = cycle(urls)
        self.ttft_ms: list[float] = []
        self.ms_per_token: list[float] = []
        self.req_s: list[float] = []

    def next_url(self) -> str:
        """The address for the next request."""
        return f"{next(self._urls)}/v1/completions"

    def figures(self) -> Figures:
        """The medians."""
        columns = (self.ttft_ms, self.ms_per_token, self.req_s)
        return Figures(*map(statistics.median, columns))


def body(tokens: int, *, stream: bool) -> dict[str, Any]:
    """A request whose answer has exactly this many tokens."""
    return {
        "model": MODEL,
        "prompt": "Why do deadlines matter?",
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
        "vllm_xargs": {"slo_kind": "deadline", "slo_deadline_s": 60.0},
    }


async def stream(client: aiohttp.ClientSession, samples: Samples, tokens: int) -> None:
    """Measure one stream. Events may carry several tokens, so the mean pace counts."""
    began_s = time.perf_counter()
    first_s = last_s = None
    request = client.post(samples.next_url(), json=body(tokens, stream=True))
    async with request as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            last_s = time.perf_counter()
            first_s = first_s or last_s
    if first_s is None or last_s is None:
        raise CommandError(f"a stream of {tokens} tokens has no event")
    samples.ttft_ms.append(1e3 * (first_s - began_s))
    samples.ms_per_token.append(1e3 * (last_s - first_s) / (tokens - 1))


class Load(NamedTuple):
    """How much is measured on each path: streams one by one, then rounds of calls by clients."""

    streams: int
    rounds: int
    calls: int
    clients: int
    tokens: int


async def calls(client: aiohttp.ClientSession, samples: Samples, load: Load) -> None:
    """Measure a round of calls."""
    left = iter(range(load.calls))

    async def ask() -> None:
        for _ in left:
            content = body(load.tokens, stream=False)
            async with client.post(samples.next_url(), json=content) as answer:
                answer.raise_for_status()
                await answer.read()

    began_s = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(load.clients)))
    samples.req_s.append(load.calls / (time.perf_counter() - began_s))


async def measure(paths: dict[str, Sequence[str]], load: Load) -> dict[str, Figures]:
    """The figures of each path, which alternate; the first round of each is not counted."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    async with aiohttp.ClientSession(connector=connector) as client:
        warm_up = {name: Samples(urls) for name, urls in paths.items()}
        for each in warm_up.values():
            for _ in range(4):
                await stream(client, each, load.tokens)
            await calls(client, each, load)
        measured = {name: Samples(urls) for name, urls in paths.items()}
        for number in range(load.streams):
            for each in _rotated(list(measured.values()), number):
                await stream(client, each, load.tokens)
        for number in range(load.rounds):
            for each in _rotated(list(measured.values()), number):
                await calls(client, each, load)
            say(f"round {number + 1} of {load.rounds}")
    return {name: each.figures() for name, each in measured.items()}


def _rotated(samples: list[Samples], number: int) -> list[Samples]:
    """The paths, beginning with another one each time."""
    turn = number % len(samples)
    return samples[turn:] + samples[:turn]


@contextlib.contextmanager
def started(module: str, *arguments: str) -> Iterator[str]:
    """The address of a module that serves on a free port; its processes end with the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert importlib.util.find_spec(module), f"there is no module {module}"
    argv = [sys.executable, "-m", module, *arguments, "--port", str(port)]
    # A run must not depend on what the engine of the one before has learned.
    environment = os.environ | {"ORCHESTRATE_KEEP_SCHEDULER_STATE": "0"}
    process = subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        ours = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        process.terminate()
        _, alive = psutil.wait_procs(ours, timeout=20)
        for each in alive:
            each.kill()


async def until_healthy(url: str) -> None:
    """Wait until a server answers.

    Raises:
        CommandError: it does not.
    """
    deadline_s = time.monotonic() + START_S
    async with aiohttp.ClientSession() as client:
        while time.monotonic() < deadline_s:
            with contextlib.suppress(aiohttp.ClientError):
                async with client.get(f"{url}/health") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.2)
    raise CommandError(f"{url} was not ready within {START_S:.0f} s")


def document_of(figures: dict[str, Figures]) -> dict[str, Any]:
    """The figures as JSON, with what the gateway adds; a path that was not measured is null."""
    direct, gateway = figures["direct"], figures["gateway"]
    ray = figures.get("ray")
    added_ttft_ms = gateway.ttft_ms - direct.ttft_ms
    added_ms_per_token = gateway.ms_per_token - direct.ms_per_token
    throughput = gateway.req_s / direct.req_s
    return {
        "direct": direct._asdict(),
        "gateway": gateway._asdict(),
        "ray": None if ray is None else ray._asdict(),
        "added_ttft_ms": added_ttft_ms,
        "added_ms_per_token": added_ms_per_token,
        "throughput_ratio": throughput,
        "is_ok": (
            added_ttft_ms <= MAX_ADDED_TTFT_MS
            and added_ms_per_token <= MAX_ADDED_MS_PER_TOKEN
            and throughput >= MIN_THROUGHPUT
        ),
    }


def table_of(document: dict[str, Any]) -> str:
    """The figures as a text table."""
    lines = [f"{'':10}{'first token, ms':>18}{'a token, ms':>14}{'calls a second':>16}"]
    for name in ("direct", "gateway", "ray"):
        if document[name] is None:
            lines.append(f"{name:10}  not measured: Ray is not installed")
            continue
        ttft_ms, ms_per_token, req_s = document[name].values()
        lines.append(f"{name:10}{ttft_ms:18.2f}{ms_per_token:14.3f}{req_s:16.1f}")
    lines.append(
        f"the gateway adds {document['added_ttft_ms']:.2f} ms (at most {MAX_ADDED_TTFT_MS:g}) and "
        f"{document['added_ms_per_token']:.3f} ms a token (at most {MAX_ADDED_MS_PER_TOKEN:g}), "
        f"and keeps {document['throughput_ratio']:.2f} of the calls (at least {MIN_THROUGHPUT:g}): "
        f"{'ok' if document['is_ok'] else 'NOT ok'}"
    )
    return "\n".join(lines)


def run(options: argparse.Namespace) -> None:
    """Start the servers, measure and print."""
    with contextlib.ExitStack() as stack:
        replicas = [
            stack.enter_context(started("cli", "serve", "--no-analyzer", "--model", MODEL))
            for _ in range(options.replicas)
        ]
        for each in replicas:
            asyncio.run(until_healthy(each))
        gateway = stack.enter_context(started("cli", "gateway", *replicas))
        asyncio.run(until_healthy(gateway))
        paths: dict[str, Sequence[str]] = {"direct": replicas, "gateway": [gateway]}
        if find_spec("ray") is not None:
            ray = stack.enter_context(started("benchmarks.ray_data_path", *replicas))
            asyncio.run(until_healthy(ray))
            paths["ray"] = [ray]
        load = Load(*(getattr(options, name) for name in Load._fields))
        figures = asyncio.run(measure(paths, load))
    document = document_of(figures)
    print_result(document, table_of(document), as_json=options.json)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--replicas", type=positive, default=2)
    parser.add_argument("--streams", type=positive, default=40, help="of each path")
    parser.add_argument("--rounds", type=positive, default=6, help="of calls, of each path")
    parser.add_argument("--calls", type=positive, default=192, help="calls of a round")
    parser.add_argument("--clients", type=positive, default=48, help="calls that are open at once")
    parser.add_argument("--tokens", type=_several, default=64, help="tokens of an answer")
    return exit_code(partial(run, parser.parse_args(given)))


def _several(text: str) -> int:
    if (count := int(text)) < 2:
        raise argparse.ArgumentTypeError("must be at least 2")
    return count


if __name__ == "__main__":
    sys.exit(main())
