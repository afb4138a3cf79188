"""Kills processes that work in workspaces at random moments, and counts what went wrong.

    python -m tests.recovery.killed_workspaces [--kills 1000] [--jobs 2] [--seed 0]

A child process writes, checkpoints, forks, rewinds and merges: in a run, which is resumed after
each kill until it ends, or outside of one. Killed is the process itself, or its zygote, or the
first process of a sandbox: then the child gets SandboxFailed and does the operation again. After
that a fresh process looks at every state that the child had told of: it must show exactly the files
and the shell that a model says. Then the garbage is collected, and nothing of the dead may be left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator import Settings, flow, gather, open_runtime
from orchestrator.environment.beginning import workspace
from orchestrator.environment.collection import Collected, collect, verify
from orchestrator.environment.environments import Environments, WorkspaceKind
from orchestrator.environment.errors import SandboxFailed
from orchestrator.environment.states.location import environments_place
from orchestrator.testing import ScriptedEngine
from store.session import open_store
from tests.recovery.sandbox_processes import first_processes, gone, zygotes
from tests.recovery.telling_process import Child, Report, Tell, tell
from tests.recovery.workspace_script import BASE, VARIABLES, Model, Performer, script

LONGEST_S = 0.9
"""Kills come within this time after a process began; an undisturbed script takes about as long."""

LENGTH = 12

_VICTIMS = [
    ["process"],
    ["zygote", "process"],
    ["sandbox", "process"],
    ["sandbox", "sandbox", "process"],
    ["zygote", "sandbox", "zygote", "process"],
    ["sandbox", "zygote", "sandbox"],
]
"""What is killed of one child, one after another."""


@dataclass
class Place:
    """A base, and the store of the runs on it."""

    folder: Path
    acknowledged: dict[str, Report] = field(default_factory=dict)
    compared: set[str] = field(default_factory=set)

    @classmethod
    def new(cls, folder: Path) -> Place:
        place = cls(folder)
        for path, line in BASE.items():
            (place.base / path).parent.mkdir(parents=True, exist_ok=True)
            (place.base / path).write_text(f"{line}\n")
        return place

    @property
    def base(self) -> Path:
        return self.folder / "base"

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder}/runs.db"

    @property
    def root(self) -> Path:
        return environments_place(self.store).root


@flow
async def edits(base: str, seed: int) -> str:
    performer = Performer(gather, _told, _failed)
    async with workspace(base) as ws:
        await performer.perform(ws, Model(), script(random.Random(seed), LENGTH))
        return ws.state


def _told(state: str, model: Model) -> None:
    tell({"state": state} | model.to_json())


def _failed(error: SandboxFailed) -> None:
    tell({"failed": str(error)})


async def in_a_run(place: Place, seed: int, _: Tell) -> None:
    """Start or resume the run of a place."""
    settings = Settings(store=place.store, fit_every=0)
    async with open_runtime(settings, engine=ScriptedEngine(lambda _: "")) as runtime:
        await runtime.run(edits.options(run_id="the-run"), str(place.base), seed)


async def outside(place: Place, seed: int, _: Tell) -> None:
    """The same operations, with nothing recorded."""
    os.environ["ORCHESTRATE_STORE"] = place.store
    performer = Performer(asyncio.gather, _told, _failed)
    async with workspace(place.base) as ws:
        await performer.perform(ws, Model(), script(random.Random(seed), LENGTH))


async def look(place: Place, states: Sequence[str], tell: Tell) -> None:
    """Tell what a state shows, of each."""
    environments = Environments(place.root)
    variables = " ".join(f'"${name}"' for name in VARIABLES)
    live = None
    for each in states:
        state = environments.states.get(each)
        if live is None:
            live = await environments.open(WorkspaceKind(str(place.base)), state)
        else:
            await live.show(state)
        files = (await live.run("grep -r '' .")).stdout
        shell = (await live.run_in_shell(f"pwd; printf '%s\\n' {variables}")).stdout.splitlines()
        tell({"state": each} | _seen(files, shell, place.base))
    if live is not None:
        await live.close()


def _seen(files: str, shell: Sequence[str], base: Path) -> Report:
    lines: dict[str, list[str]] = {}
    for line in files.splitlines():
        path, _, text = line.removeprefix("./").partition(":")
        lines.setdefault(path, []).append(text)
    folder = os.path.relpath(shell[0], base)
    shown = ["" if folder == "." else folder, shell[1:]]
    return {"files": {path: lines[path] for path in sorted(lines)}, "shell": shown}


async def collected(place: Place, tell: Tell) -> None:
    """Collect the garbage of a later time, and tell what is left and what is wrong."""
    keep = set(place.acknowledged)
    if (place.folder / "runs.db").exists():
        async with await open_store(place.store) as store, store.reading() as tx:
            keep |= set(await tx.states.all_ids())
    root = Environments(place.root).root
    at = datetime.now(UTC) + timedelta(hours=2)
    collect(root, keep=keep, grace_s=0, now=at)
    again = collect(root, keep=keep, grace_s=0, now=at, dry_run=True)
    folders = ("live", "layers", "trash", "new")
    found = verify(root, named=keep)
    problems = {
        "left": [str(each) for name in folders for each in root.path.glob(f"{name}/*")],
        "left the second time": [] if again == Collected() else [str(again)],
        "lost": [str(each) for each in found.lost],
        "missing": found.missing,
        "unnamed": found.unnamed,
    }
    tell({name: problem for name, problem in problems.items() if problem})


class Killer:
    """Kills again and again, and counts."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self.counts = Counter[str]()

    def run(self, num_kills: int) -> None:
        """Until so many kills have been done."""
        number = 0
        while self.counts["kills"] < num_kills:
            number += 1
            place = Place.new(self._folder / str(number))
            if self._chance.random() < 0.5:
                seed, is_ended = self._chance.randrange(1 << 30), False
                while not is_ended and self.counts["kills"] < num_kills + 20:
                    is_ended = self._disturb(place, partial(in_a_run, place, seed))
            else:
                for _ in range(4):
                    seed = self._chance.randrange(1 << 30)
                    self._disturb(place, partial(outside, place, seed))

    def _disturb(self, place: Place, work: Callable[[Tell], Any]) -> bool:
        """Let a child work, kill something of it, look; returns whether it has ended."""
        child = Child(work)
        for victim in self._chance.choice(_VICTIMS):
            if child.read(time.monotonic() + self._chance.uniform(0, LONGEST_S)):
                break
            self._kill(child, victim)
        reports = child.end()
        for each in reports:
            if "state" in each:
                former = place.acknowledged.setdefault(each["state"], each)
                self.counts["acknowledged"] += 1
                self._require("two models of one state", former == each, former, each)
            elif "failed" in each:
                self.counts["SandboxFailed"] += 1
            elif "error" in each:
                self._require("errors", False, each["error"])
        self._look(place, child.process)
        is_ended = any("ended" in each for each in reports)
        self.counts["runs"] += is_ended
        return is_ended or any("error" in each for each in reports)

    def _kill(self, child: Child, victim: str) -> None:
        if victim == "process":
            victims = [child.process]
        elif victim == "zygote":
            victims = zygotes(child.process)
        else:
            victims = first_processes(child.process)
            victims = victims and [self._chance.choice(victims)]
        for each in victims:
            with suppress(ProcessLookupError):  # it ended since it was looked up
                os.kill(each, signal.SIGKILL)
                self.counts[f"kills of a {victim}"] += 1
                self.counts["kills"] += 1

    def _look(self, place: Place, process: int) -> None:
        """In fresh processes, see that all is as acknowledged, and collect the garbage."""
        left = gone(place.base, str(process), within_s=5.0)
        self._require("processes left", not left, left)
        self._compare(place)
        for report in Child(partial(collected, place)).end():
            for name, problem in report.items():
                self._require(name, name == "ended", problem)
        if self._chance.random() < 0.1:
            self._compare(place)

    def _compare(self, place: Place) -> None:
        new = [each for each in place.acknowledged if each not in place.compared]
        former = sorted(place.compared)
        states = [*new, *self._chance.sample(former, min(len(former), 3))]
        place.compared.update(new)
        seen = Child(partial(look, place, states)).end()
        shown = {each["state"]: each for each in seen if "state" in each}
        errors = [each for each in seen if "error" in each]
        self._require("errors", not errors, *errors)
        for state in states:
            self.counts["compared"] += 1
            expected = place.acknowledged[state]
            self._require("differs", shown.get(state) == expected, expected, shown.get(state))

    def _require(self, what: str, holds: bool, *details: object) -> None:
        if not holds:
            self.counts[f"WRONG: {what}"] += 1
            sys.stderr.write(f"{what}: " + "\n  ".join(map(str, details)) + "\n")


def killed(num_kills: int, seed: int, folder: Path) -> Counter[str]:
    """What was counted until so many kills were done; what went wrong begins with WRONG."""
    killer = Killer(folder, seed)
    killer.run(num_kills)
    return killer.counts


def main() -> int:
    """Kill, look, count; returns 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began_s, counts = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        share = -(-arguments.kills // arguments.jobs)
        jobs = [
            Child(partial(_job, share, arguments.seed + number, Path(name, str(number))))
            for number in range(arguments.jobs)
        ]
        for job in jobs:
            for report in job.end(within_s=math.inf):
                counts.update({name: n for name, n in report.items() if name != "ended"})
    sys.stdout.write(json.dumps(counts | {"seconds": round(time.monotonic() - began_s)}) + "\n")
    return int("error" in counts or any(name.startswith("WRONG") for name in counts))


def _job(kills: int, seed: int, folder: Path, tell: Tell) -> None:
    tell(killed(kills, seed, folder))


if __name__ == "__main__":
    sys.exit(main())
