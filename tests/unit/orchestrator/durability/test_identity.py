"""A step's path: its own within the run, and the same whoever is faster."""

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
from tests.unit.orchestrator.orchestrator_samples import law, recorded, scripted_runtime

# A program: steps, each a name and what it does, and gathers, each a tuple of programs.
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
    """What a program does: a step's name and body, or no name and the branches of a gather."""
    for part in program:
        match part:
            case (str(name), inside):
                yield name, inside
            case branches:
                yield None, branches


def paths_of(program: Program, step_path: StepPath, order: random.Random) -> list[str]:
    """The paths of a program's steps; a gather's branches finish in a random order."""
    found = []
    for name, inside in parts_of(program):
        if name is not None:
            entered = step_path.enter(name)
            found += [entered.text, *paths_of(inside, entered, order)]
        else:
            branches = list(zip(step_path.branches(len(inside)), inside, strict=True))
            order.shuffle(branches)
            for branch, within_branch in branches:
                found += paths_of(within_branch, branch, order)
    return found


@law
@given(program=programs(), seed=st.integers())
def test_paths_are_unique_and_do_not_depend_on_the_order_of_branches(
    program: Program, seed: int
) -> None:
    found = paths_of(program, StepPath(), random.Random(seed))
    assert [path for path, count in Counter(found).items() if count > 1] == []
    assert sorted(found) == sorted(paths_of(program, StepPath(), random.Random(seed + 1)))


def test_a_path_reads_like_the_calls_that_led_there() -> None:
    top = StepPath()
    plan = top.enter("plan")
    again = top.enter("plan")
    third = top.branches(4)[3].enter("read")
    assert [plan.text, again.text, third.text] == ["plan", "plan#2", "read[3]"]
    assert third.enter("quote").text == "read[3]/quote"
    assert top.branches(2)[0].enter("read").text == "read[2:0]"
    assert third.branches(2)[1].branches(2)[0].enter("x").text == "read[3]/x[1][0]"


@settings(law, max_examples=15)
@given(program=programs(), seed=st.integers())
def test_a_run_records_the_paths_that_its_program_has_whoever_is_faster(
    program: Program, seed: int
) -> None:
    delays = random.Random(seed)

    async def perform(program: Program) -> None:
        for name, inside in parts_of(program):
            await asyncio.sleep(delays.choice([0, 0, 0.0005]))
            if name is not None:
                await flow(name=name)(perform)(inside)
            else:
                await gather(*(perform(branch) for branch in inside))

    async def main(folder: Path) -> list[str]:
        async with scripted_runtime(folder) as runtime:
            result = await runtime.run(flow(name="top")(perform), program)
            return sorted((await recorded(runtime.store, result.run_id)).steps)

    with TemporaryDirectory() as folder:
        found = asyncio.run(main(Path(folder)))
    assert found == sorted(paths_of(program, StepPath(), random.Random(0)))


async def test_a_bare_task_is_known_by_what_it_does_first(runtime: Runtime) -> None:
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
    places = [f"[~{first.hex()[:8]}]", f"[~{second.hex()[:8]}]", f"[~{second.hex()[:8]}:2]"]
    assert paths == {"work", *(f"work{each}{again}" for each in places for again in ("", "#2"))}
