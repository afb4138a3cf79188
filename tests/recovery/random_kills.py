"""Kills runs at random moments, again and again until each has ended, and counts what went wrong.

    python -m tests.recovery.random_kills [--kills 200] [--seed 0] [--store postgresql://...]

A run of the recovery tests (deep research, then one external effect) is killed in its process and
resumed in another one. Counted are results that differ, effects that are missing or done twice, and
runs that cannot be resumed. An effect that was killed within itself ends in OutcomeUnknown; it must
not be repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from orchestrator import OutcomeUnknown, Settings, open_runtime
from orchestrator.testing import ScriptedEngine
from tests.recovery.test_killed_at_every_write import MODEL, Outcome, published, research
from tests.unit.agents.deep_research_samples import open_corpus

LONGEST_S = 0.5
"""Kills come within this time after a process began; an undisturbed run takes about 0.3 s."""


async def run_once(store: str, folder: Path, run_id: str) -> Outcome:
    """Start or resume the run."""
    settings = Settings(store=store, fit_every=0)
    async with open_runtime(settings, engine=ScriptedEngine(MODEL)) as runtime:
        options = research.options(run_id=run_id, deadline="10m")
        try:
            result = await runtime.run(options, open_corpus(folder), str(folder))
        except OutcomeUnknown:
            return {"unknown": True}
        report, reply = result.value
        return {"report": json.loads(json.dumps(asdict(report))), "reply": reply}


def attempt(store: str, folder: Path, run_id: str, kill_after_s: float | None) -> Outcome | None:
    """The outcome of one process; None if it was killed."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        try:
            outcome: Outcome = asyncio.run(run_once(store, folder, run_id))
        except BaseException:
            outcome = {"error": traceback.format_exc()}
        os.write(sending, json.dumps(outcome).encode())
        os._exit(0)
    os.close(sending)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(receiving, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) or not data:
        return None
    ended: Outcome = json.loads(data)
    return ended


def main() -> int:
    """Kill, resume, count; returns 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", help="a PostgreSQL URL; default: a SQLite file for each run")
    arguments = parser.parse_args()
    chance, counts = random.Random(arguments.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        whole.mkdir()
        store = arguments.store or f"sqlite:///{whole}/runs.db"
        expected = attempt(store, whole, f"whole-{os.getpid()}", None)
        assert expected is not None, "it was not killed"
        assert "report" in expected, expected
        while counts["kills"] < arguments.kills:
            counts["runs"] += 1
            folder = Path(name) / str(counts["runs"])
            folder.mkdir()
            store = arguments.store or f"sqlite:///{folder}/runs.db"
            run_id, outcome = f"run-{os.getpid()}-{counts['runs']}", None
            while outcome is None:
                kill_after_s = chance.uniform(0, LONGEST_S) if chance.random() < 0.8 else None
                outcome = attempt(store, folder, run_id, kill_after_s)
                counts["kills"] += outcome is None
            num_effects = len(published(str(folder)))
            if "error" in outcome:
                counts["cannot be resumed"] += 1
                sys.stderr.write(outcome["error"])
            elif "unknown" in outcome:
                counts["outcome unknown"] += 1
                counts["done twice"] += num_effects > 1
            else:
                counts["other result"] += outcome != expected
                counts["lost"] += num_effects < 1
                counts["done twice"] += num_effects > 1
    sys.stdout.write(json.dumps(counts) + "\n")
    wrong = ("cannot be resumed", "other result", "lost", "done twice")
    return int(any(counts[each] for each in wrong))


if __name__ == "__main__":
    sys.exit(main())
