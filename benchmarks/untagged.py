"""What the analyzer gains for clients without tags: goodput with and without it, real engine.

    python -m benchmarks.untagged [--json] [--load 1.5] [--rounds 4] [--seconds 20]

Starts two servers of the random model under calm, one with an analyzer, and sends both the same
programs of ordinary clients: each call names its program in a header, and says in `deadline` what
is left of the program's deadline. No call says how long its answer will be, or what follows. The
lengths are forced, which neither the scheduler nor the analyzer sees. First both servers work off
the same programs as fast as they can, from which the analyzer learns and the capacity follows. Then
the servers alternate, so that only one has work at a time. The clients of a program give up at its
deadline. A ratio is that of sums over all rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from benchmarks.command import exit_code, parser_of, positive, print_result, say
from benchmarks.gateway import MODEL, started, until_healthy
from cli.errors import CommandError

MAX_TOKENS = 400
"""The limit of every answer: it tells nothing about the length."""

SPREAD = 0.3
"""Standard deviation of the logarithm of a step's lengths."""

SLACK = (3.0, 12.0)
"""A program's deadline, in times of what it takes alone."""

END_TOKEN, END_BIAS = "1", 100.0
"""Ends an answer where `min_tokens` allows it; no logit of the random model comes near."""

CLIENTS = 48
"""Programs at once while the analyzer learns: they fill the engine, which shows its capacity."""

IDLE_S = 1.0
"""A program has ended after so long without a call."""

WARM_UP = 0.2
"""Share of a round after which arrivals count."""


class Step(NamedTuple):
    """Parallel calls with the same instructions, and the median length of their answers."""

    instructions: str
    calls: int
    tokens: int


KINDS: dict[str, tuple[Step, ...]] = {
    "question": (Step("Answer in one sentence.", 1, 30),),
    "essay": (Step("Write an essay.", 1, 250),),
    "research": (
        Step("Plan the research.", 1, 30),
        Step("Take notes of the source.", 3, 60),
        Step("Write the report.", 1, 200),
    ),
    "tree": (
        Step("Propose next steps.", 3, 50),
        Step("Judge the proposal.", 6, 6),
        Step("Propose next steps.", 3, 50),
        Step("Say the result.", 1, 20),
    ),
}


class Program(NamedTuple):
    """One program: when it arrives, its deadline, and the lengths of its answers by stage."""

    name: str
    kind: str
    arrival_s: float
    slack: float
    tokens: tuple[tuple[int, ...], ...]


class Outcome(NamedTuple):
    """What became of a program: whether it ended in time, and the tokens of its answers."""

    kind: str
    in_time: bool
    tokens: int
    seconds: float


class Goodput(NamedTuple):
    """Programs and tokens of programs in time, a second; the share in time."""

    programs_s: float
    tokens_s: float
    in_time: float


def programs_of(seed: int, *, rate_per_s: float, seconds: float) -> list[Program]:
    """The programs that arrive within some seconds, one kind as often as another."""
    chance = random.Random(seed)
    found: list[Program] = []
    arrival_s = chance.expovariate(rate_per_s)
    while arrival_s < seconds:
        kind = chance.choice(list(KINDS))
        tokens = tuple(
            tuple(_length(chance, step.tokens) for _ in range(step.calls)) for step in KINDS[kind]
        )
        name = f"{seed}-{len(found)}"
        found.append(Program(name, kind, arrival_s, chance.uniform(*SLACK), tokens))
        arrival_s += chance.expovariate(rate_per_s)
    return found


def _length(chance: random.Random, median: int) -> int:
    return min(max(round(median * chance.lognormvariate(0.0, SPREAD)), 2), MAX_TOKENS)


def body_of(program: Program, step: Step, tokens: int, left_s: float) -> dict[str, Any]:
    """A call as an ordinary client sends it, with an answer of exactly so many tokens."""
    return {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": step.instructions},
            {"role": "user", "content": f"{program.kind} {program.name}"},
        ],
        "deadline": left_s,
        "max_tokens": MAX_TOKENS,
        "min_tokens": tokens - 1,
        "logit_bias": {END_TOKEN: END_BIAS},
    }


async def run_program(
    client: aiohttp.ClientSession, url: str, program: Program, deadline_s: float
) -> Outcome:
    """Run a program, all calls of a stage at once, until it has ended or its deadline has passed.

    Args:
        deadline_s: seconds from now.
    """
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(deadline_s):
            for step, lengths in zip(KINDS[program.kind], program.tokens, strict=True):
                left_s = max(began_s + deadline_s - time.monotonic(), 0.001)
                async with asyncio.TaskGroup() as group:
                    for tokens in lengths:
                        body = body_of(program, step, tokens, left_s)
                        group.create_task(_call(client, url, program, body, tokens))
        in_time = True
    except TimeoutError:
        in_time = False
    tokens = sum(sum(lengths) for lengths in program.tokens)
    return Outcome(program.kind, in_time, tokens, time.monotonic() - began_s)


async def _call(
    client: aiohttp.ClientSession, url: str, program: Program, body: dict[str, Any], tokens: int
) -> None:
    headers = {"x-orchestrate-program": program.name}
    async with client.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
        document = await answer.json()
        if answer.status != 200:
            raise CommandError(f"status {answer.status}: {document}")
        written = document["usage"]["completion_tokens"]
        if written != tokens:
            raise CommandError(f"an answer has {written} tokens instead of {tokens}")


async def learn(client: aiohttp.ClientSession, url: str, count: int) -> float:
    """Work off so many programs with CLIENTS at once; returns programs a second."""
    waiting = iter(programs_of(0, rate_per_s=1.0, seconds=2.0 * count)[:count])

    async def work() -> None:
        for program in waiting:
            await run_program(client, url, program, 600.0)

    began_s = time.monotonic()
    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return count / (time.monotonic() - began_s)


async def alone_s(client: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Seconds of a program of each kind that runs alone, with answers of median length."""
    seconds = {}
    for kind, steps in KINDS.items():
        lengths = tuple((step.tokens,) * step.calls for step in steps)
        taken = [
            await run_program(client, url, Program(f"alone-{n}", kind, 0.0, 1.0, lengths), 600.0)
            for n in range(3)
        ]
        seconds[kind] = sorted(each.seconds for each in taken)[1]
    return seconds


async def replay(
    client: aiohttp.ClientSession, url: str, programs: Sequence[Program], alone: dict[str, float]
) -> list[Outcome]:
    """Run programs as they arrive."""
    began_s = time.monotonic()

    async def run(program: Program) -> Outcome:
        await asyncio.sleep(max(began_s + program.arrival_s - time.monotonic(), 0.0))
        return await run_program(client, url, program, program.slack * alone[program.kind])

    return await asyncio.gather(*map(run, programs))


def goodput(outcomes: Sequence[Outcome], seconds: float) -> Goodput:
    """The goodput of programs that arrived within some seconds."""
    kept = [each for each in outcomes if each.in_time]
    share = len(kept) / len(outcomes) if outcomes else 0.0
    return Goodput(len(kept) / seconds, sum(each.tokens for each in kept) / seconds, share)


async def measure(urls: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Teach both servers, then measure them in turns."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
        rates = []
        for name, url in urls.items():
            say(f"{options.programs} programs, to learn from: {name}")
            rates.append(await learn(client, url, options.programs))
        alone = await alone_s(client, urls["without"])
        await asyncio.sleep(4 * IDLE_S)  # the last ones are recorded, and taken up
        capacity = sum(rates) / len(rates)
        say(f"capacity {capacity:.2f} programs/s; alone {_rounded(alone)}")
        outcomes: dict[str, list[Outcome]] = {name: [] for name in urls}
        for number in range(options.rounds):
            programs = programs_of(
                number + 1, rate_per_s=options.load * capacity, seconds=options.seconds
            )
            names = list(urls)
            for name in names[number % 2 :] + names[: number % 2]:
                ended = await replay(client, urls[name], programs, alone)
                counted = [
                    outcome
                    for program, outcome in zip(programs, ended, strict=True)
                    if program.arrival_s >= WARM_UP * options.seconds
                ]
                outcomes[name] += counted
                one = goodput(counted, (1 - WARM_UP) * options.seconds)
                say(f"round {number + 1}, {name}: {one.programs_s:.2f} programs/s in time")
    return document_of(outcomes, capacity, alone, options)


def _rounded(seconds: dict[str, float]) -> str:
    return ", ".join(f"{kind} {value:.2f} s" for kind, value in seconds.items())


def document_of(
    outcomes: dict[str, list[Outcome]],
    capacity: float,
    alone: dict[str, float],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """The result as JSON."""
    seconds = options.rounds * (1 - WARM_UP) * options.seconds
    total = {name: goodput(each, seconds) for name, each in outcomes.items()}
    with_it, without = total["with"], total["without"]
    return {
        "load": options.load,
        "capacity_programs_s": capacity,
        "alone_s": alone,
        "programs": len(outcomes["with"]),
        **{name: each._asdict() for name, each in total.items()},
        "in_time_by_kind": {
            kind: {
                name: goodput([one for one in each if one.kind == kind], seconds).in_time
                for name, each in outcomes.items()
            }
            for kind in KINDS
        },
        "programs_ratio": with_it.programs_s / without.programs_s if without.programs_s else None,
        "tokens_ratio": with_it.tokens_s / without.tokens_s if without.tokens_s else None,
    }


def table_of(document: dict[str, Any]) -> str:
    """The result as a text table."""
    lines = [f"{'':20}{'with':>10}{'without':>10}{'ratio':>8}"]
    for name, title in (("programs", "programs/s in time"), ("tokens", "tokens/s in time")):
        values = [document[each][f"{name}_s"] for each in ("with", "without")]
        ratio = document[f"{name}_ratio"]
        shown = "-" if ratio is None else f"{ratio:.2f}"
        lines.append(f"{title:20}{values[0]:10.2f}{values[1]:10.2f}{shown:>8}")
    for kind, shares in document["in_time_by_kind"].items():
        lines.append(f"{kind + ' in time':20}{shares['with']:10.0%}{shares['without']:10.0%}")
    lines.append(
        f"{document['programs']} programs at {document['load']:g} times"
        f" {document['capacity_programs_s']:.2f} a second; random model"
    )
    return "\n".join(lines)


def run(options: argparse.Namespace) -> None:
    """Start the servers, measure and print."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ |= {
            "ORCHESTRATE_ANALYZER_STORE": f"sqlite:///{folder / 'served.db'}",
            "ORCHESTRATE_PROGRAM_IDLE_S": str(IDLE_S),
        }
        serve = ("cli", "serve", MODEL, "--policy", options.policy)
        urls = {
            name: stack.enter_context(started(*serve, flag))
            for name, flag in (("with", "--analyzer"), ("without", "--no-analyzer"))
        }
        for each in urls.values():
            asyncio.run(until_healthy(each))
        document = asyncio.run(measure(urls, options))
    print_result(document, table_of(document), as_json=options.json)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--policy", default="calm")
    parser.add_argument("--load", type=float, default=1.5, help="in capacities")
    parser.add_argument("--programs", type=positive, default=200, help="to learn from")
    parser.add_argument("--rounds", type=positive, default=4)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a round")
    return exit_code(partial(run, parser.parse_args(given)))


if __name__ == "__main__":
    sys.exit(main())
