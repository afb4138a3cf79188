"""A server and its engine, which is killed under load: time to recover, and each request's outcome.

    python -m benchmarks.healing [--json] [--kills 5] [--between 8] [--every 0.25] [--deadline 60]
        [--seed 0]

Starts `orchestrate serve random`. Requests arrive at random times, on average --every seconds
apart. A third are streams, the others calls. Each has a deadline; a quarter have a tenth of it, and
are to be dropped when they are late. The engine's process is killed (SIGKILL) --between seconds
after the server was healthy last. Reported are the seconds from each kill to a healthy server, and
the outcomes of the requests that a kill concerned: those that were open when the engine died, and
those that arrived before it ran again. A stream of which a part had arrived has begun; no call has.

Every request must have one outcome. The server's own counters must say the same as the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import aiohttp
import psutil

from benchmarks.command import exit_code, parser_of, positive, print_result, say
from benchmarks.gateway import started, until_healthy
from cli.errors import CommandError

CORE = "VLLM::EngineCore"
"""The name of the engine's process."""

TOKENS = (20, 400)
"""Least and most tokens of an answer."""

SHORT = 10.0
"""How much shorter the deadlines are after which a request is dropped."""

OUTCOMES = ("kept", "missed", "dropped", "lost", "failed")


class Ask(NamedTuple):
    """A request to be sent."""

    at_s: float
    is_stream: bool
    tokens: int
    deadline_s: float
    is_dropped_late: bool


class Ended(NamedTuple):
    """A request that has ended.

    Attributes:
        begun_s: when the first part of a stream arrived; None: none did, or it is no stream.
        outcome: one of OUTCOMES; lost: the rest of a stream, by the named error event.
    """

    ask: Ask
    sent_s: float
    begun_s: float | None
    ended_s: float
    outcome: str


class Outage(NamedTuple):
    """The time from a kill until the server was healthy again."""

    killed_s: float
    healthy_s: float


def asks(seed: int, *, every_s: float, deadline_s: float) -> list[Ask]:
    """An hour of requests, the same for the same seed."""
    draw = random.Random(seed)
    now_s, result = 0.0, []
    while now_s < 3600.0:
        now_s += draw.expovariate(1 / every_s)
        is_short = draw.random() < 0.25
        result.append(
            Ask(
                at_s=now_s,
                is_stream=draw.random() < 1 / 3,
                tokens=draw.randint(*TOKENS),
                deadline_s=deadline_s / SHORT if is_short else deadline_s,
                is_dropped_late=is_short,
            )
        )
    return result


def body(ask: Ask) -> dict[str, Any]:
    """The request's body."""
    tags = {"slo_kind": "deadline", "slo_deadline_s": ask.deadline_s}
    if ask.is_dropped_late:
        tags["slo_on_late"] = "drop"
    return {
        "model": "random",
        "prompt": "Why do deadlines matter?",
        "max_tokens": ask.tokens,
        "ignore_eos": True,
        "stream": ask.is_stream,
        "vllm_xargs": tags,
    }


async def send(client: aiohttp.ClientSession, url: str, ask: Ask) -> Ended:
    """Send a request and wait for its end."""
    sent_s, begun_s = time.monotonic(), None
    errors, num_ends = [], 0
    async with client.post(f"{url}/v1/completions", json=body(ask)) as answer:
        if ask.is_stream and answer.status == 200:
            async for line in answer.content:
                event = line.removeprefix(b"data: ").strip()
                if event == b"[DONE]":
                    num_ends += 1
                elif line.startswith(b"data: "):  # others show only that the server is alive
                    parsed = json.loads(event)
                    errors += [parsed["error"]] if "error" in parsed else []
                    begun_s = begun_s or (time.monotonic() if "choices" in parsed else None)
        else:
            document = await answer.json()
            errors += [document["error"]] if "error" in document else []
            num_ends = 1
    ended_s = time.monotonic()
    if num_ends != 1 or len(errors) > 1:
        raise CommandError(f"a request has {num_ends} ends and {len(errors)} errors: {ask}")
    outcome = "kept" if ended_s - sent_s <= ask.deadline_s else "missed"
    return Ended(ask, sent_s, begun_s, ended_s, outcome_of(errors[0]) if errors else outcome)


def outcome_of(error: dict[str, Any]) -> str:
    """What an error of the server says became of a request."""
    kinds = {"slo_dropped: ": "dropped", "answer_lost: ": "lost"}
    for prefix, outcome in kinds.items():
        if error["message"].startswith(prefix):
            return outcome
    say(f"an error: {error}")
    return "failed"


async def kill(client: aiohttp.ClientSession, url: str) -> Outage:
    """Kill the engine's process, and wait until the server is healthy again."""
    [core] = [each for each in psutil.Process().children(recursive=True) if each.name() == CORE]
    killed_s = time.monotonic()
    core.kill()
    is_down = False
    while True:
        async with client.get(f"{url}/health") as answer:
            if is_down and answer.status == 200:
                return Outage(killed_s, time.monotonic())
            is_down |= answer.status == 503
        await asyncio.sleep(0.02)


async def load(
    client: aiohttp.ClientSession, url: str, requests: Sequence[Ask], done: asyncio.Event
) -> list[Ended]:
    """Send requests at their times until `done`; waits for the end of all of them."""
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for each in requests:
            await asyncio.sleep(max(began_s + each.at_s - time.monotonic(), 0.0))
            if done.is_set():
                break
            tasks.append(group.create_task(send(client, url, each)))
    return [task.result() for task in tasks]


async def measure(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run the load and the kills; returns the document."""
    await until_healthy(url)
    requests = asks(options.seed, every_s=options.every, deadline_s=options.deadline)
    done = asyncio.Event()
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
        loading = asyncio.create_task(load(client, url, requests, done))
        outages = []
        for number in range(options.kills):
            await asyncio.sleep(options.between)
            outages.append(await kill(client, url))
            recovery_s = outages[-1].healthy_s - outages[-1].killed_s
            say(f"kill {number + 1} of {options.kills}: healthy again after {recovery_s:.1f} s")
        await asyncio.sleep(options.between)
        done.set()
        ended = await loading
        async with client.get(f"{url}/metrics") as answer:
            counted = counters(await answer.text())
    return document_of(ended, outages, counted)


def counters(text: str) -> dict[str, int]:
    """The server's counters of promises: made, and by outcome; and of the engine's deaths."""
    found: Counter[str] = Counter()
    pattern = r"^orchestrate_(promises_made|promises|engine_deaths)_total(\{.*\})? (\S+)$"
    for name, labels, value in re.findall(pattern, text, re.MULTILINE):
        outcome = re.search(r'outcome="(\w+)"', labels)
        found[outcome[1] if outcome else name] += int(float(value))
    return dict(found)


def group_of(each: Ended, outages: Sequence[Outage]) -> str:
    """Whether a request met an outage, and whether a stream had begun at a kill."""
    met = [one for one in outages if each.sent_s < one.healthy_s and each.ended_s > one.killed_s]
    if not met:
        return "untouched"
    begun_s = each.begun_s
    has_begun = begun_s is not None and any(begun_s < one.killed_s for one in met)
    return "begun" if has_begun else "not_begun"


def document_of(
    ended: Sequence[Ended], outages: Sequence[Outage], counted: dict[str, int]
) -> dict[str, Any]:
    """The result as JSON.

    Raises:
        CommandError: the server counted other outcomes than the clients saw.
    """
    groups = {name: Counter[str]() for name in ("not_begun", "begun", "untouched")}
    for each in ended:
        groups[group_of(each, outages)][each.outcome] += 1
    total = Counter(each.outcome for each in ended)
    num_failed = total["failed"] + total["lost"]
    expected = {"promises_made": len(ended), "dropped": total["dropped"], "failed": num_failed}
    wrong = {key: counted.get(key, 0) for key in expected if counted.get(key, 0) != expected[key]}
    if wrong or counted.get("cancelled", 0) or counted["engine_deaths"] != len(outages):
        raise CommandError(f"the clients saw {expected}, the server counted {counted}")
    return {
        "recovery_s": [round(each.healthy_s - each.killed_s, 2) for each in outages],
        "requests": len(ended),
        "by_outcome": {name: total[name] for name in OUTCOMES},
        **{key: {name: group[name] for name in OUTCOMES} for key, group in groups.items()},
        "is_ok": not total["failed"] and total["lost"] == groups["begun"]["lost"],
    }


def table_of(document: dict[str, Any]) -> str:
    """The result as a text table."""
    recoveries = ", ".join(f"{each:.1f}" for each in document["recovery_s"])
    lines = [f"seconds to recover: {recoveries}", ""]
    lines.append(f"{'':12}" + "".join(f"{name:>9}" for name in OUTCOMES))
    for name in ("not_begun", "begun", "untouched", "by_outcome"):
        label = {"by_outcome": "all"}.get(name, name.replace("_", " "))
        lines.append(f"{label:12}" + "".join(f"{document[name][each]:9}" for each in OUTCOMES))
    verdict = "ok" if document["is_ok"] else "NOT ok"
    lines.append(f"{document['requests']} requests, each with one outcome: {verdict}")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> None:
    """Start the server, measure and print."""
    os.environ["ORCHESTRATE_RESTARTS"] = str(options.kills + 1)
    with started("cli", "serve", "--no-analyzer", "--model", "random") as url:
        document = asyncio.run(measure(url, options))
    print_result(document, table_of(document), as_json=options.json)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--kills", type=positive, default=5)
    parser.add_argument("--between", type=float, default=8.0, help="seconds before each kill")
    parser.add_argument("--every", type=float, default=0.25, help="seconds between two requests")
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    return exit_code(partial(run, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
