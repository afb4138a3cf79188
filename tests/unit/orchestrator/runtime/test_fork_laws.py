"""Laws of forks: at any step of any flow, what came before is kept and what comes after is new."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator import DeadlineExceeded, flow, gather, llm, random, step, tool, within
from orchestrator.durability.identity import paths_to
from store.records import StepRecord
from tests.recovery.simulated_flows import FLOWS, world
from tests.unit.orchestrator.orchestrator_samples import law, recorded, scripted_runtime
from tests.unit.orchestrator.virtual_time import run_in_virtual_time, timed_runtime

Program = tuple[Any, ...]
"""What a flow does: ("work", seconds), ("value",), ("call",) or one of these with parts:
("step", *parts), ("gather", *parts), ("within", seconds, *parts)."""

SECONDS = st.sampled_from([0.0, 1.0, 1.0, 2.0, 5.0])
SIMPLE = st.one_of(st.tuples(st.just("work"), SECONDS), st.just(("value",)), st.just(("call",)))


def with_parts(part: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
    parts = st.lists(part, min_size=1, max_size=3)
    return st.builds(lambda kind, each: (kind, *each), st.sampled_from(["step", "gather"]), parts)


def limited(part: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
    parts = st.lists(part, min_size=1, max_size=3)
    return st.builds(lambda seconds, each: ("within", seconds + 0.5, *each), SECONDS, parts)


# No limit is within another: if both have passed in a resumed run, the inner one is seen first.
PARTS = st.recursive(SIMPLE, with_parts, max_leaves=5)
PROGRAMS = st.lists(
    st.recursive(st.one_of(SIMPLE, limited(PARTS)), with_parts, max_leaves=5),
    min_size=1,
    max_size=4,
)

numbers: Iterator[int] = itertools.count()
"""Each execution of a piece of work has another number."""


@tool(effects="pure")
async def work(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return next(numbers)


@step
async def together(parts: list[Any]) -> list[Any]:
    return await execute(parts)


async def execute(parts: Any) -> list[Any]:
    return [await execute_one(part) for part in parts]


async def execute_one(part: Any) -> Any:
    kind, *parts = part
    if kind == "work":
        return await work(parts[0])
    if kind == "value":
        return {"value": random()}
    if kind == "call":
        return await llm("x")
    if kind == "step":
        return await together(parts)
    if kind == "gather":
        # Work first: of a limit that has passed a block that awaits no recorded step is cut off.
        return list(await gather(*[execute([("work", 0.0), each]) for each in parts]))
    try:
        async with within(parts[0]):
            return await execute(parts[1:])
    except DeadlineExceeded:
        return "cut off"


@flow
async def program(parts: list[Any]) -> list[Any]:
    return await execute(parts)


class Warnings(logging.Handler):
    """Collects what the runtime warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def without_warnings() -> Iterator[None]:
    """Nothing is logged in the block, such as a recorded step that is not begun again."""
    logger, warnings = logging.getLogger("orchestrate"), Warnings()
    logger.addHandler(warnings)
    try:
        yield
    finally:
        logger.removeHandler(warnings)
    assert warnings.messages == []


@dataclass(frozen=True)
class Outcome:
    """What a run returned and its steps."""

    value: Any
    journal: dict[str, StepRecord]

    def numbered(self) -> list[StepRecord]:
        """The steps with outcomes, in the order of these."""
        numbered = [step for step in self.journal.values() if step.outcome_number is not None]
        return sorted(numbered, key=lambda step: step.outcome_number or 0)


async def run_and_forks(parts: list[Program], share: float) -> list[Outcome]:
    """A program's run, its fork at one of its steps, and that one's fork at its last step."""
    with TemporaryDirectory() as folder:
        async with timed_runtime(Path(folder)) as runtime:
            ran = await runtime.run(program, parts)
            found = [Outcome(ran.value, (await recorded(runtime.store, ran.run_id)).journal)]
            for share_of_steps in (share, 1.0):
                steps = found[-1].numbered()
                at = steps[min(int(share_of_steps * len(steps)), len(steps) - 1)].path
                ran = await runtime.fork(ran.run_id, program, at=at)
                found.append(
                    Outcome(ran.value, (await recorded(runtime.store, ran.run_id)).journal)
                )
            return found


def without_values(result: Any) -> Any:
    """A program's result without its random values."""
    if isinstance(result, list):
        return [without_values(each) for each in result]
    return "value" if isinstance(result, dict) else result


@pytest.mark.slow
@settings(law, max_examples=40)
@given(PROGRAMS, st.floats(0, 1))
@example([("gather", ("work", 1.0), ("step", ("value",), ("work", 2.0)))], 0.0)
@example([("within", 1.5, ("work", 1.0), ("work", 5.0)), ("work", 1.0)], 0.9)
@example([("within", 1.5, ("step", ("work", 1.0), ("work", 5.0))), ("work", 1.0)], 0.9)
def test_a_fork_keeps_what_came_before_and_executes_the_rest(
    parts: list[Program], share: float
) -> None:
    check(json.loads(json.dumps([("work", 0.0), *parts])), share)


def check(parts: list[Any], share: float) -> None:
    with without_warnings():
        run, fork, last_fork = run_in_virtual_time(run_and_forks(parts, share))
    steps = run.numbered()
    at = min(int(share * len(steps)), len(steps) - 1)
    kept = {step.path for step in steps[: at + 1]}
    for was in steps:
        again = fork.journal.get(was.path)
        if not kept.isdisjoint(paths_to(was.path)):
            assert again is not None
            assert replace(again, run_id=was.run_id) == was
        elif was.name == "work" and again is not None:  # a limit may cut off what begins anew
            assert again.result != was.result
    assert without_values(last_fork.value) == without_values(fork.value)


@pytest.mark.parametrize("name", FLOWS)
async def test_a_fork_at_any_step_has_the_result_of_the_run(tmp_path: Path, name: str) -> None:
    body = FLOWS[name]
    async with scripted_runtime(tmp_path) as runtime:
        world.clear()
        run = await runtime.run(body, "one")
        journal = (await recorded(runtime.store, run.run_id)).journal
        for each in Outcome(run.value, journal).numbered():
            world.clear()
            fork = await runtime.fork(run.run_id, body, at=each.path, allow_effects=True)
            assert fork.value == run.value
            forked = await recorded(runtime.store, fork.run_id)
            assert forked.journal.keys() == journal.keys()
            assert forked.still_running() == []
            assert len(world) == len(set(world))
