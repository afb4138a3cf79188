"""Game of 24 by Tree of Thoughts: solved, calls, tokens and seconds; beside it greedy and no model.

    python -m benchmarks.game24 [--json] [--puzzles 100] [--seed 0] [--deadline 60]

Puzzles are drawn from all sets of four numbers from 1 to 13 that have a solution. Three ways: the
search with the default model as guide; greedy, the model's first choice in each step and no way
back; and the search with the random model, whose choices mean nothing. Arithmetic checks each step,
so what the search solves is right; the model decides how soon.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement, islice
from pathlib import Path

from agents.tree_of_thoughts.pipeline import tree_of_thoughts
from agents.tree_of_thoughts.search import Order, Search
from agents.tree_of_thoughts.tasks.game24 import GameOf24
from benchmarks.command import parser_of, print_result, say
from orchestrator import Runtime, Settings, open_runtime
from serving.engine.setup.config import RANDOM_MODEL, default_model

SAY_EVERY = 10  # puzzles


@dataclass(frozen=True, slots=True)
class Figures:
    """One way over all puzzles; of calls, tokens and seconds the means per puzzle.

    Attributes:
        slowest_s: of the slowest puzzle.
    """

    way: str
    model: str
    puzzles: int
    solved: int
    calls: float
    prompt_tokens: float
    output_tokens: float
    seconds: float
    slowest_s: float


def main() -> int:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--puzzles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        model, *ways = options.one.split(",")
        puzzles = drawn(options.puzzles, options.seed)
        rows = asyncio.run(measured(model, ways, puzzles, options.deadline))
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    # One process for each model: an embedded engine has the process to itself.
    rows = [
        *_in_process(options, default_model(), "search", "greedy"),
        *_in_process(options, RANDOM_MODEL, "search"),
    ]
    print_result([asdict(row) for row in rows], table(rows), as_json=options.json)
    return 0


def drawn(count: int, seed: int) -> list[str]:
    """Puzzles that have a solution, without repetition."""
    sets = list(combinations_with_replacement(range(1, 14), 4))
    random.Random(seed).shuffle(sets)
    return [" ".join(map(str, numbers)) for numbers in islice(solvable(sets), count)]


def solvable(sets: list[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Those sets of numbers from which 24 can be made."""
    for numbers in sets:
        task = GameOf24(numbers)
        search = Search(task.start, beam=100, max_depth=task.max_depth)
        while thoughts := search.ask():
            for thought in thoughts:
                for new in search.expand(thought, task.moves(thought.step.state)):
                    search.tell(new, 0.5)
        if search.solution is not None:
            yield numbers


async def measured(
    model: str, ways: list[str], puzzles: list[str], deadline_s: float
) -> list[Figures]:
    """All puzzles, one after another, in each way, with one model."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'runs.db'}"
        async with open_runtime(Settings(store=url, model=model, fit_every=0)) as runtime:
            await runtime.engine.start()
            return [await one_way(runtime, way, puzzles, deadline_s) for way in ways]


async def one_way(runtime: Runtime, way: str, puzzles: list[str], deadline_s: float) -> Figures:
    """All puzzles in one way."""
    beam, order = (1, Order.BREADTH) if way == "greedy" else (5, Order.BEST)
    flow = tree_of_thoughts.options(deadline=deadline_s)
    solved, seconds, calls = 0, list[float](), list[tuple[int, int, int]]()
    for number, puzzle in enumerate(puzzles, 1):
        result = await runtime.run(flow, puzzle, beam=beam, order=order)
        solved += result.value.solved
        seconds.append(result.elapsed_s)
        async with runtime.store.reading() as tx:
            made = await tx.calls.of_run(result.run_id)
        tokens = [(call.prompt_tokens or 0, call.output_tokens or 0) for call in made]
        calls.append((len(made), sum(t[0] for t in tokens), sum(t[1] for t in tokens)))
        if number % SAY_EVERY == 0:
            say(f"{runtime.engine.info.model}, {way}: {solved} of {number} solved")
    num_calls, prompt_tokens, output_tokens = (
        statistics.mean(each) for each in zip(*calls, strict=True)
    )
    return Figures(
        way=way,
        model=runtime.engine.info.model,
        puzzles=len(puzzles),
        solved=solved,
        calls=num_calls,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        seconds=statistics.mean(seconds),
        slowest_s=max(seconds),
    )


def table(rows: list[Figures]) -> str:
    """The figures as a text table."""
    lines = [
        f"{'way':<8}{'model':<10}{'solved':>12}{'calls':>8}{'prompt':>9}{'output':>8}{'s':>8}"
        f"{'slowest s':>11}"
    ]
    lines += [
        f"{row.way:<8}{row.model:<10}{f'{row.solved} of {row.puzzles}':>12}{row.calls:>8.1f}"
        f"{row.prompt_tokens:>9.0f}{row.output_tokens:>8.0f}{row.seconds:>8.2f}{row.slowest_s:>11.2f}"
        for row in rows
    ]
    return "\n".join([*lines, "calls, tokens and seconds: means per puzzle"])


def _in_process(options: argparse.Namespace, model: str, *ways: str) -> list[Figures]:
    command = [sys.executable, "-m", "benchmarks.game24", "--one", ",".join([model, *ways])]
    for name in ("puzzles", "seed", "deadline"):
        command += [f"--{name}", str(getattr(options, name))]
    completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [Figures(**row) for row in json.loads(completed.stdout.splitlines()[-1])]


if __name__ == "__main__":
    sys.exit(main())
