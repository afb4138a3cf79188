"""Schemas that would take a server's memory or time, beside other requests.

    python -m benchmarks.hostile_schemas [--memory-gb 4] [--json]

Starts `orchestrate serve --model random`. Each hostile schema is sent together with ten other
requests: plain, streamed and with ordinary schemas. Reported for each: the status and milliseconds
of the hostile request, and of the slowest other one; without a hostile schema first. The memory is
the largest sum over all processes of the server, read every 20 ms (shared pages count in each);
beyond the limit the server is killed. The exit code is 1 then, or if a hostile schema is not
answered 400, or another request fails.
"""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import httpx
import psutil

from benchmarks.command import parser_of, print_result

START_S = 180
SMALL = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 20}, "score": {"type": "integer"}},
    "required": ["title", "score"],
}
HOSTILE: dict[str, Any] = {
    "100 million items": {
        "type": "array",
        "items": {"type": "integer"},
        "minItems": 100_000_000,
    },
    "100,000 enum values": {"enum": [f"value {number}" for number in range(100_000)]},
    "a large multipleOf": {"type": "integer", "multipleOf": 99_999_989},
    "a slow multipleOf": {"type": "integer", "multipleOf": 400_009},
    "40 patterns at once": {
        "type": "string",
        "allOf": [{"pattern": f"^.*[a-m]{number}.{{5,900}}$"} for number in range(40)],
    },
}


class Row(NamedTuple):
    """One hostile schema beside ten requests; None: no hostile schema was sent."""

    schema: str
    status: int | None
    hostile_ms: float | None
    slowest_other_ms: float
    num_failed: int


def started(port: int) -> subprocess.Popen[bytes]:
    """A server that loads the random model."""
    return subprocess.Popen(
        [sys.executable, "-m", "cli", "serve", "--model", "random", "--port", str(port)]
    )


@asynccontextmanager
async def server() -> AsyncIterator[tuple[str, psutil.Process]]:
    """The URL and process of a server, once it is ready."""
    port = _free_port()
    process = started(port)
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(START_S), httpx.AsyncClient(trust_env=False) as client:
            while process.poll() is None:
                with suppress(httpx.TransportError):
                    if (await client.get(f"{url}/health")).status_code == 200:
                        break
                await asyncio.sleep(0.2)
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


def _free_port() -> int:
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


async def watch_memory(process: psutil.Process, limit_bytes: float, seen: list[int]) -> None:
    """Note the memory of a process and all below it every 20 ms; kill them beyond the limit."""
    while True:
        processes = [process, *process.children(recursive=True)]
        total = 0
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                total += each.memory_info().rss
        seen.append(max(seen.pop(), total))
        if total > limit_bytes:
            for each in processes:
                each.kill()
            return
        await asyncio.sleep(0.02)


async def timed(client: httpx.AsyncClient, **body: Any) -> tuple[int, float]:
    """Status of a chat completion, 0 if the server has ended, and its milliseconds."""
    began_s = time.perf_counter()
    messages = [{"role": "user", "content": "Name a book."}]
    status = 0
    with suppress(httpx.TransportError):
        answer = await client.post(
            "/v1/chat/completions",
            json={"model": "random", "messages": messages, "max_tokens": 24, **body},
        )
        status = answer.status_code
    return status, (time.perf_counter() - began_s) * 1e3


def response_format(schema: Any) -> dict[str, Any]:
    """The field that asks for a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


async def beside(client: httpx.AsyncClient, name: str, schema: Any) -> Row:
    """Send a hostile schema and ten other requests at once."""
    formats = [{}] * 6 + [{"response_format": response_format(SMALL)}] * 4
    others = [timed(client, **each, stream=number % 2 == 0) for number, each in enumerate(formats)]
    if schema is None:
        answers = await asyncio.gather(*others)
        hostile = None, None
    else:
        asked = timed(client, response_format=response_format(schema))
        hostile, *answers = await asyncio.gather(asked, *others)
    return Row(
        name,
        *hostile,
        slowest_other_ms=max(milliseconds for _, milliseconds in answers),
        num_failed=sum(status != 200 for status, _ in answers),
    )


async def measure(limit_bytes: float) -> tuple[list[Row], int]:
    """All rows, and the largest memory in bytes."""
    seen: list[int] = [0]
    async with (
        server() as (url, process),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=120) as client,
    ):
        watching = asyncio.create_task(watch_memory(process, limit_bytes, seen))
        await beside(client, "first requests", None)
        rows = [await beside(client, "none", None)]
        rows += [await beside(client, name, schema) for name, schema in HOSTILE.items()]
        watching.cancel()
    return rows, seen[0]


def main() -> None:
    """Measure and print; the exit code is 1 if a limit is exceeded."""
    parser = parser_of(__doc__)
    parser.add_argument("--memory-gb", type=float, default=4.0)
    arguments = parser.parse_args()
    rows, memory_bytes = asyncio.run(measure(arguments.memory_gb * 1e9))
    lines = ["hostile schema          status       ms   slowest other, ms   failed"]
    for row in rows:
        milliseconds = "-" if row.hostile_ms is None else f"{row.hostile_ms:.0f}"
        lines.append(
            f"{row.schema:22} {'-' if row.status is None else row.status:>7} {milliseconds:>8} "
            f"{row.slowest_other_ms:19.0f} {row.num_failed:8}"
        )
    lines.append(f"memory of all processes: {memory_bytes / 1e9:.2f} GB at most")
    figures = {"rows": [row._asdict() for row in rows], "memory_bytes": memory_bytes}
    print_result(figures, "\n".join(lines), as_json=arguments.json)
    is_ok = memory_bytes <= arguments.memory_gb * 1e9 and all(
        row.status in (None, 400) and row.num_failed == 0 for row in rows
    )
    sys.exit(not is_ok)


if __name__ == "__main__":
    main()
