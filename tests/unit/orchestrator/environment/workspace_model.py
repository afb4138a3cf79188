"""Workspaces against plain folders: random operations in both, which must always show the same.

A plain folder is the model: system calls and programs change it as they change the workspace. What
it held at each state is kept in memory, and written back at a rewind, in a fork and so on. After
each step the whole trees are compared, seen from inside the sandbox; so are the manifest with the
difference to the base, ids with trees, times, and the shell. A long run:

    python -m tests.unit.orchestrator.environment.workspace_model --examples 2000 --jobs 2
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from orchestrator.environment import live_workspace
from orchestrator.environment.environments import Backend
from orchestrator.environment.files import layer_stacks
from tests.unit.orchestrator.environment.modelling.acting import MOST_OPEN, ActingExample
from tests.unit.orchestrator.environment.modelling.changes import (
    Change,
    Place,
    changes,
    commands,
    numbers,
    places,
)
from tests.unit.orchestrator.environment.modelling.shell_statements import STATEMENTS
from tests.unit.orchestrator.environment.modelling.world import Seat, World

_STEP_S = 120
"""After which a step counts as hanging."""

_texts = st.sampled_from(["", "w", "written\n"])
_modes = st.none() | st.sampled_from([0o600, 0o4755])
_statements = st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=4)


class WorkspaceMachine(RuleBasedStateMachine):
    """One example: a workspace, its forks, and what is done with them."""

    world: ClassVar[World]
    backend: ClassVar[Backend]
    own: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        super().__init__()
        self.example = ActingExample(self.world, self.backend, self.own)
        self._do(self.example.begin)

    @rule(at=numbers, what=st.lists(changes, min_size=1, max_size=6))
    def change(self, at: int, what: list[Change]) -> None:
        self._do(self.example.change, self._seat(at), what)

    @rule(at=numbers, what=st.lists(changes, min_size=1, max_size=3))
    def change_little(self, at: int, what: list[Change]) -> None:
        self._do(self.example.change, self._seat(at), what)

    @rule(at=numbers, what=st.lists(changes, min_size=1, max_size=4))
    def fail(self, at: int, what: list[Change]) -> None:
        self._do(self.example.fail, self._seat(at), what)

    @rule(at=numbers, what=commands, way=st.sampled_from(["run", "shell"]))
    def command(self, at: int, what: Change, way: str) -> None:
        self._do(self.example.command, self._seat(at), what, way)

    @rule(at=numbers, where=places, text=_texts, mode=_modes)
    def write(self, at: int, where: Place, text: str, mode: int | None) -> None:
        self._do(self.example.write, self._seat(at), where, text, mode)

    @rule(at=numbers, where=places)
    def read(self, at: int, where: Place) -> None:
        self._do(self.example.read, self._seat(at), where)

    @rule(at=numbers, what=_statements, where=places)
    def shell(self, at: int, what: list[str], where: Place) -> None:
        self._do(self.example.shell, self._seat(at), what, where)

    @rule(at=numbers)
    def checkpoint(self, at: int) -> None:
        self._do(self.example.checkpoint, self._seat(at))

    @rule(at=numbers, to=numbers)
    def rewind(self, at: int, to: int) -> None:
        self._do(self.example.rewind, self._seat(at), to)

    @precondition(lambda self: len(self.example.seats) < MOST_OPEN)
    @rule(at=numbers, count=st.integers(1, 2))
    def fork(self, at: int, count: int) -> None:
        self._do(self.example.fork, self._seat(at), count)

    @precondition(lambda self: len(self.example.seats) > 1)
    @rule(at=numbers)
    def adopt(self, at: int) -> None:
        self._do(self.example.adopt, self._fork(at))

    @precondition(lambda self: len(self.example.seats) > 1)
    @rule(at=numbers, also=st.booleans())
    def merge(self, at: int, also: bool) -> None:
        self._do(self.example.merge, self._fork(at), also)

    @precondition(lambda self: len(self.example.seats) > 1)
    @rule(at=numbers)
    def close_fork(self, at: int) -> None:
        self._do(self.example.close_fork, self._fork(at))

    @rule(how=st.sampled_from(["reopened", "layers lost", "a layer lost", "discarded"]), at=numbers)
    def begin_again(self, how: str, at: int) -> None:
        if how == "discarded":
            self._do(self.example.discard, self._seat(at))
        else:
            self._do(self.example.reopen, how)

    def teardown(self) -> None:
        self._do(self.example.end)

    def _seat(self, at: int) -> Seat:
        return self.example.seats[at % len(self.example.seats)]

    def _fork(self, at: int) -> Seat:
        forks = [each for each in self.example.seats if each.origin is not None]
        return forks[at % len(forks)]

    def _do(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        async def limited() -> None:
            try:
                async with asyncio.timeout(_STEP_S):
                    await work(*arguments)
            except Exception as error:
                error.add_note(self.example.told(f"in {work.__name__}"))
                raise

        self.world.counts[f"step {work.__name__}"] += 1
        self.world.runner.run(limited())


@dataclass(frozen=True)
class Asked:
    """What is tried.

    Attributes:
        folder: in which all is written; None: one for temporary files.
        own: folders that workspaces copy when they begin.
        is_shrunk: whether the smallest example that fails is looked for, which takes long.
    """

    examples: int
    steps: int = 30
    seed: int = 0
    folder: Path | None = None
    backend: Backend = "overlay"
    own: tuple[str, ...] = ()
    is_shrunk: bool = True


def run_model(asked: Asked) -> World:
    """Run examples; raises AssertionError for one that fails."""
    folder = Path(tempfile.mkdtemp(dir=asked.folder))
    folder.chmod(0o755)
    world = World(folder)
    attributes = {"world": world, "backend": asked.backend, "own": asked.own}
    machine = type("Machine", (WorkspaceMachine,), attributes)
    phases = [phase for phase in Phase if asked.is_shrunk or phase is not Phase.shrink]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(live_workspace, "_MANY_CHANGES", 12)  # so that it happens often
            patch.setattr(layer_stacks, "MAX_DEPTH", 3)
            run_state_machine_as_test(
                seed(asked.seed)(machine),
                settings=settings(
                    max_examples=asked.examples,
                    stateful_step_count=asked.steps,
                    deadline=None,
                    database=None,
                    print_blob=False,
                    phases=phases,
                    suppress_health_check=list(HealthCheck),
                    report_multiple_bugs=False,
                ),
            )
    finally:
        world.close()
    return world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes, with a seed each")
    parser.add_argument("--folder", type=Path, help="where all is written, in one of its own")
    parser.add_argument("--backend", choices=["overlay", "copies"], default="overlay")
    parser.add_argument("--own", action="append", default=[], help="folder that is copied up")
    parser.add_argument("--no-shrink", action="store_true", help="end with the first failure")
    given = parser.parse_args()
    if given.jobs > 1:
        sys.exit(_run_in_parallel(given.jobs, given.examples, given.seed))
    asked = Asked(
        given.examples,
        given.steps,
        given.seed,
        given.folder,
        given.backend,
        tuple(given.own),
        not given.no_shrink,
    )
    began_s = time.monotonic()
    world = run_model(asked)
    _report(world, time.monotonic() - began_s)


def _report(world: World, seconds: float) -> None:
    counts = world.counts
    steps = {name[5:]: count for name, count in sorted(counts.items()) if name.startswith("step ")}
    examples, rate = counts["examples"], counts["examples"] / seconds
    lines = [
        f"{examples} examples of {sum(steps.values())} steps in {seconds:.0f} s, {rate:.1f}/s",
        f"{counts['comparisons']} comparisons; {counts['settled']} times changes became layers",
        "steps: " + ", ".join(f"{name} {count}" for name, count in steps.items()),
    ]
    for name, results in sorted(world.results.items()):
        each = ", ".join(f"{outcome} {count}" for outcome, count in results.most_common())
        lines.append(f"  {name}: {each}")
    sys.stdout.write("\n".join([*lines, ""]))


def _run_in_parallel(jobs: int, examples: int, first_seed: int) -> int:
    """Run this program several times, with parts of the examples; the worst exit code."""
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", __spec__.name, *sys.argv[1:], "--jobs=1"),
                *(f"--examples={examples // jobs}", f"--seed={first_seed + number}"),
            ]
        )
        for number in range(jobs)
    ]
    return max(job.wait() for job in started)


if __name__ == "__main__":
    main()
