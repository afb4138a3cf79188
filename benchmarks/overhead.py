"""What durability costs: a step of ours beside one of LangGraph and of DBOS, in one run.

    pip install --no-deps -r requirements/rivals.txt
    python -m benchmarks.overhead [--json] [--steps 1000] [--branches 100] [--repeats 5]

Flows of empty steps, each recorded on a SQLite file as its framework records it by default:
one step after another, and side by side. Then a conversation that grows by 2.2 kB of text a turn
for 100 turns: the bytes of the files afterwards, write-ahead log folded in. Frameworks take turns,
each repeat in a process of its own; the medians are printed.

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

from benchmarks.conversation import TURNS, turns

Flow = Callable[[Path, int], Awaitable[float]]
"""Does a flow of so many steps, recorded in a file; returns the seconds that it took."""

FRAMEWORKS = ("ours", "langgraph", "langgraph_sync", "langgraph_none", "dbos")
WITH_CONVERSATION = ("ours", "langgraph")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--branches", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        framework, what, count = options.one.split(",")
        print(json.dumps(measured(framework, what, int(count))))
        return 0
    figures = compared(options.steps, options.branches, options.repeats)
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        _print(figures)
    return 0


def compared(steps: int, branches: int, repeats: int) -> dict[str, float]:
    """The medians of all, each measured in turn with the others."""
    cases = [(each, "chain", steps) for each in FRAMEWORKS]
    cases += [(each, "branches", branches) for each in FRAMEWORKS]
    cases += [(each, "conversation", TURNS) for each in WITH_CONVERSATION]
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for repeat in range(repeats):
        for framework, what, count in cases:
            print(f"{repeat + 1} of {repeats}: {framework}, {what}", file=sys.stderr)
            one = _in_a_process(framework, what, count)
            found.setdefault((framework, what), []).append(one)

    def median(framework: str, what: str, figure: str) -> float:
        return statistics.median(one[figure] for one in found[framework, what])

    figures = {"steps": steps, "branches": branches, "repeats": repeats}
    for framework in FRAMEWORKS:
        figures[f"{framework}_ms_per_step"] = median(framework, "chain", "ms_per_step")
        figures[f"{framework}_ms_per_branch"] = median(framework, "branches", "ms_per_step")
        figures[f"{framework}_bytes_per_step"] = median(framework, "chain", "bytes") / steps
    for framework in WITH_CONVERSATION:
        figures[f"{framework}_conversation_bytes"] = median(framework, "conversation", "bytes")
    figures["conversation_text_bytes"] = sum(len(turn.encode()) for turn in turns())
    return figures


def measured(framework: str, what: str, count: int) -> dict[str, float]:
    """One framework, one flow, in a folder of its own."""
    name, _, variant = framework.partition("_")
    flow: Flow = importlib.import_module(f"benchmarks.overhead_{name}").flows(variant)[what]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "store.db"
        seconds = asyncio.run(flow(file, count))
        return {"ms_per_step": 1e3 * seconds / count, "bytes": size_of(file)}


def size_of(file: Path) -> int:
    """Bytes of a SQLite file with its write-ahead log folded in; 0 where there is none."""
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


def _in_a_process(framework: str, what: str, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.overhead", "--one", f"{framework},{what},{count}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{framework}, {what}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _print(figures: dict[str, float]) -> None:
    print(f"{'':<18}{'ms a step':>12}{'ms a branch':>13}{'bytes a step':>14}")
    for framework in FRAMEWORKS:
        cells = [figures[f"{framework}_ms_per_{what}"] for what in ("step", "branch")]
        size = figures[f"{framework}_bytes_per_step"]
        print(f"{framework:<18}{cells[0]:>12.3f}{cells[1]:>13.3f}{size:>14,.0f}")
    print(f"\na conversation of {figures['conversation_text_bytes']:,.0f} bytes of text:")
    for framework in WITH_CONVERSATION:
        print(f"{framework:<18}{figures[f'{framework}_conversation_bytes']:>12,.0f} bytes")


if __name__ == "__main__":
    sys.exit(main())
