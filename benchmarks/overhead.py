"""The cost of durability: a recorded step of ours, of LangGraph and of DBOS.

    pip install --no-deps -r requirements/rivals.txt
    python -m benchmarks.overhead [--json] [--steps 1000] [--branches 100] [--repeats 5]

Flows of empty steps, recorded in a SQLite file as each framework does by default: steps one after
another, and in parallel. Then a conversation that grows by 2.2 kB of text per turn for 100 turns:
the size of the files afterwards, with the write-ahead log checkpointed. The frameworks alternate,
each repeat in its own process; the medians are printed.

LangGraph runs with its AsyncSqliteSaver and its default durability ("async": a checkpoint is
written while the next step runs) and, for comparison, with "sync", which waits as ours does.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.command import parser_of, print_result, say
from benchmarks.conversation import TURNS, turns

Flow = Callable[[Path, int], Awaitable[float]]
"""Runs a flow with a number of steps, recorded in a file; returns the seconds that it took."""

FRAMEWORKS = ("ours", "langgraph", "langgraph_sync", "langgraph_none", "dbos")
WITH_CONVERSATION = ("ours", "langgraph")


def main() -> int:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--branches", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        framework, kind, count = options.one.split(",")
        print(json.dumps(measure(framework, kind, int(count))))
        return 0
    figures = compare(options.steps, options.branches, options.repeats)
    print_result(figures, table(figures), as_json=options.json)
    return 0


def compare(steps: int, branches: int, repeats: int) -> dict[str, float]:
    """The medians of all frameworks and flows; the frameworks alternate in each repeat."""
    runs = [(each, "chain", steps) for each in FRAMEWORKS]
    runs += [(each, "branches", branches) for each in FRAMEWORKS]
    runs += [("ours", "effects", branches)]
    runs += [(each, "conversation", TURNS) for each in WITH_CONVERSATION]
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    for repeat in range(repeats):
        for framework, kind, count in runs:
            say(f"{repeat + 1} of {repeats}: {framework}, {kind}")
            result = _measure_in_process(framework, kind, count)
            results.setdefault((framework, kind), []).append(result)

    def median(framework: str, kind: str, figure: str) -> float:
        return statistics.median(result[figure] for result in results[framework, kind])

    figures = {"steps": steps, "branches": branches, "repeats": repeats}
    for framework in FRAMEWORKS:
        figures[f"{framework}_ms_per_step"] = median(framework, "chain", "ms_per_step")
        figures[f"{framework}_ms_per_branch"] = median(framework, "branches", "ms_per_step")
        figures[f"{framework}_bytes_per_step"] = median(framework, "chain", "bytes") / steps
    figures["ours_ms_per_effect"] = median("ours", "effects", "ms_per_step")
    for framework in WITH_CONVERSATION:
        figures[f"{framework}_conversation_bytes"] = median(framework, "conversation", "bytes")
    figures["conversation_text_bytes"] = sum(len(turn.encode()) for turn in turns())
    return figures


def measure(framework: str, kind: str, count: int) -> dict[str, float]:
    """Measure one flow of one framework in a temporary folder.

    Args:
        kind: "chain", "branches", "effects" or "conversation".
        count: number of steps, branches, effects or turns.
    """
    name, _, variant = framework.partition("_")
    flow: Flow = importlib.import_module(f"benchmarks.overhead_{name}").flows(variant)[kind]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "store.db"
        seconds = asyncio.run(flow(file, count))
        return {"ms_per_step": 1e3 * seconds / count, "bytes": size_of(file)}


def size_of(file: Path) -> int:
    """Bytes of a SQLite file after a checkpoint of its write-ahead log; 0 if it does not exist."""
    if not file.exists():
        return 0
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file.stat().st_size


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    """Seconds that work takes."""
    began_s = time.perf_counter()
    await work()
    return time.perf_counter() - began_s


def _measure_in_process(framework: str, kind: str, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.overhead", "--one", f"{framework},{kind},{count}"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise SystemExit(f"{framework}, {kind}: {completed.stderr.strip().splitlines()[-1]}")
    result: dict[str, float] = json.loads(completed.stdout.splitlines()[-1])
    return result


def table(figures: dict[str, float]) -> str:
    """The figures as a text table."""
    lines = [f"{'':<18}{'ms a step':>12}{'ms a branch':>13}{'bytes a step':>14}"]
    for framework in FRAMEWORKS:
        cells = [figures[f"{framework}_ms_per_{unit}"] for unit in ("step", "branch")]
        size = figures[f"{framework}_bytes_per_step"]
        lines.append(f"{framework:<18}{cells[0]:>12.3f}{cells[1]:>13.3f}{size:>14,.0f}")
    effect_ms = figures["ours_ms_per_effect"]
    lines.append(f"ours, an external effect, recorded on the disk: {effect_ms:.3f} ms")
    lines.append(f"\na conversation of {figures['conversation_text_bytes']:,.0f} bytes of text:")
    for framework in WITH_CONVERSATION:
        size = figures[f"{framework}_conversation_bytes"]
        lines.append(f"{framework:<18}{size:>12,.0f} bytes")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
