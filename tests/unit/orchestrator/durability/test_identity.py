"""A step's path: unique within the run, and independent of which branch is faster."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import Runtime, flow, gather, step
from orchestrator.durability.digests import digest_of
from orchestrator.durability.identity import StepPath
from tests.strategies import examples
from tests.unit.orchestrator.orchestrator_samples import law, recorded, scripted_runtime

# A program: steps, each a name and an inner program, and gathers, each a tuple of programs.
Program = list[Any]

NAMES = ["plan", "read", "a/b", "a", "b", "a#2", "read[0]", "%2f", "f", "[1]"]


def programs() -> st.SearchStrategy[Program]:
    return st.recursive(
        st.just([]),
        lambda inner: st.lists(
            st.tuples(st.sampled_from(NAMES), inner) | st.lists(inner, max_size=3).map(tuple),
            max_size=3,
        ),
        max_leaves=12,
    )


def parts_of(program: Program) -> Iterator[tuple[str | None, Any]]:
    """The parts of a program: a step's name and inner program, or None and a gather's branches."""
    for part in program:
        match part:
            case (str(name), inner):
                yield name, inner
            case branches:
                yield None, branches


def paths_of(program: Program, step_path: StepPath, order: random.Random) -> list[str]:
    """The paths of a program's steps; a gather's branches finish in a random order."""
    paths = []
    for name, inner in parts_of(program):
        if name is not None:
            entered = step_path.enter(name)
            paths += [entered.text, *paths_of(inner, entered, order)]
        else:
            branches = list(zip(step_path.branches(len(inner)), inner, strict=True))
            order.shuffle(branches)
            for branch, branch_program in branches:
                paths += paths_of(branch_program, branch, order)
    return paths


@law
@given(program=programs(), seed=st.integers())
def test_paths_are_unique_and_do_not_depend_on_the_order_of_branches(
    program: Program, seed: int
) -> None:
    paths = paths_of(program, StepPath(), random.Random(seed))
    assert [path for path, count in Counter(paths).items() if count > 1] == []
    assert sorted(paths) == sorted(paths_of(program, StepPath(), random.Random(seed + 1)))


def test_a_path_consists_of_the_names_of_the_steps_that_led_to_it() -> None:
    top = StepPath()
    plan = top.enter("plan")
    again = top.enter("plan")
    third = top.branches(4)[3].enter("read")
    assert [plan.text, again.text, third.text] == ["plan", "plan#2", "read[3]"]
    assert third.enter("quote").text == "read[3]/quote"
    assert top.branches(2)[0].enter("read").text == "read[2:0]"
    assert third.branches(2)[1].branches(2)[0].enter("x").text == "read[3]/x[1][0]"


@settings(law, max_examples=examples(15))
@given(program=programs(), seed=st.integers())
def test_a_run_records_the_paths_of_its_program_whichever_branch_is_faster(
    program: Program, seed: int
) -> None:
    delays = random.Random(seed)

    async def perform(program: Program) -> None:
        for name, inner in parts_of(program):
            await asyncio.sleep(delays.choice([0, 0, 0.0005]))
            if name is not None:
                await flow(name=name)(perform)(inner)
            else:
                await gather(*(perform(branch) for branch in inner))

    async def main(folder: Path) -> list[str]:
        async with scripted_runtime(folder) as runtime:
            result = await runtime.run(flow(name="top")(perform), program)
            return sorted((await recorded(runtime.store, result.run_id)).steps)

    with TemporaryDirectory() as folder:
        paths = asyncio.run(main(Path(folder)))
    assert paths == sorted(paths_of(program, StepPath(), random.Random(0)))


async def test_a_task_that_the_runtime_did_not_start_is_identified_by_its_first_step(
    runtime: Runtime,
) -> None:
    @step
    async def work(number: int) -> None: ...

    async def branch(number: int) -> None:
        await work(number)
        await work(7)

    @flow
    async def many() -> None:
        await work(1)
        tasks = [asyncio.create_task(branch(number)) for number in (0, 1, 1)]
        await asyncio.gather(*tasks)

    result = await runtime.run(many)
    paths = set((await recorded(runtime.store, result.run_id)).steps)
    zero, one = ("work", digest_of([("number", 0)])), ("work", digest_of([("number", 1)]))
    first, second = (digest_of(name, (key or b"").hex()) for name, key in (zero, one))
    assert first is not None
    assert second is not None
    marks = [f"[~{first.hex()[:8]}]", f"[~{second.hex()[:8]}]", f"[~{second.hex()[:8]}:2]"]
    assert paths == {"work", *(f"work{mark}{ordinal}" for mark in marks for ordinal in ("", "#2"))}
