"""now, random and uuid: their values are recorded, and the same in each execution of a run."""

from __future__ import annotations

import asyncio
import random as plain_random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import (
    FlowChanged,
    OutsideRun,
    Runtime,
    flow,
    gather,
    now,
    random,
    run_id,
    step,
    uuid,
)
from orchestrator import map as map_
from orchestrator.testing import VirtualClock
from store.records import Status, StepKind
from tests.strategies import examples
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import (
    Boom,
    law,
    recorded,
    scripted_runtime,
)

ID = "the-run"
few = settings(law, max_examples=examples(25))

SOURCES: dict[str, Callable[[], Any]] = {"now": now, "random": random, "uuid": uuid}
kinds = st.sampled_from(sorted(SOURCES))


@step
async def nothing() -> None: ...


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_outside_a_flow_each_raises_outside_run_with_its_name(source: Callable[[], Any]) -> None:
    with pytest.raises(OutsideRun, match=rf"{source.__name__}\(\)"):
        source()


async def test_now_is_the_aware_time_of_the_runs_clock(runtime: Runtime) -> None:
    clock = VirtualClock(datetime(2031, 5, 4, 3, 2, 1, 99, tzinfo=UTC))
    seen: list[datetime] = []

    async def body() -> None:
        seen.append(now())
        clock.advance(90)
        seen.append(now())

    await Runtime(runtime.engine, runtime.store, clock=clock).run(flow(body))
    assert [moment.isoformat() for moment in seen] == [
        "2031-05-04T03:02:01.000099+00:00",
        "2031-05-04T03:03:31.000099+00:00",
    ]


async def test_random_values_differ_within_a_run_and_between_runs(runtime: Runtime) -> None:
    drawn: list[Any] = []

    async def branch() -> None:
        drawn.extend([random(), uuid(), random(), uuid()])

    async def body() -> None:
        await gather(branch(), branch())
        await branch()

    await runtime.run(flow(name="f")(body))
    await runtime.run(flow(name="f")(body))
    assert len(set(drawn)) == len(drawn) == 24
    assert all(0 <= each < 1 for each in drawn if isinstance(each, float))


Kinds = list[str]


@few
@given(
    before=st.lists(kinds, max_size=5),
    branches=st.lists(st.lists(kinds, max_size=4), max_size=4),
    after=st.lists(kinds, max_size=3),
    seed=st.integers(0, 99),
)
def test_every_value_is_the_same_in_each_execution_whichever_branch_is_faster(
    before: Kinds, branches: list[Kinds], after: Kinds, seed: int
) -> None:
    """Also values that no later step follows: the end of the run records them."""
    speeds = plain_random.Random(seed)
    executions: list[dict[str, list[Any]]] = []

    def draw(where: str, kinds: Kinds) -> None:
        executions[-1].setdefault(where, []).extend(SOURCES[kind]() for kind in kinds)

    async def branch(number: int) -> None:
        for kind in branches[number]:
            for _ in range(speeds.randint(0, 5)):
                await asyncio.sleep(0)
            draw(f"branch {number}", [kind])
        if number % 2:
            await nothing()

    @flow
    async def body() -> None:
        executions.append({})
        draw("before", before)
        await map_(branch, range(len(branches)), concurrency=2 + seed % 3)
        await gather(*(branch(number) for number in range(len(branches))))
        draw("after", after)
        if len(executions) < 3:
            raise Boom("the process dies")

    async def run() -> None:
        with TemporaryDirectory() as folder:
            async with scripted_runtime(Path(folder)) as runtime:
                with pytest.raises(Boom):
                    await runtime.run(body.options(run_id=ID))
            async with scripted_runtime(Path(folder)) as runtime:
                with pytest.raises(Boom):
                    await runtime.resume(ID, body)
                await runtime.resume(ID, body)
                record = await recorded(runtime.store, ID)
        values = [
            step
            for step in record.journal.values()
            if step.kind is StepKind.VALUE and not step.name.startswith("gather-")
        ]
        assert len(values) == sum(map(len, executions[0].values()))
        assert all(step.status is Status.COMPLETED for step in values)

    asyncio.run(run())
    assert executions[0] == executions[1] == executions[2]


async def test_a_replayed_value_has_the_same_type_as_well(runtime: Runtime) -> None:
    executions: list[list[Any]] = []

    @flow
    async def body() -> None:
        executions.append([now(), random(), uuid()])
        if len(executions) == 1:
            raise Boom("the process dies")

    with pytest.raises(Boom):
        await runtime.run(body.options(run_id=ID))
    await runtime.resume(ID, body)
    first, second = executions
    assert [type(value) for value in first] == [type(value) for value in second]
    assert first == second
    assert second[0].utcoffset() == first[0].utcoffset()
    assert second[2].version == 4


async def test_a_generator_seeded_with_random_gives_the_same_numbers_on_resume(
    runtime: Runtime,
) -> None:
    executions: list[list[int]] = []

    @flow
    async def body() -> None:
        dice = plain_random.Random(random())
        executions.append([dice.randint(1, 6) for _ in range(50)])
        if len(executions) == 1:
            raise Boom("the process dies")

    with pytest.raises(Boom):
        await runtime.run(body.options(run_id=ID))
    await runtime.resume(ID, body)
    assert executions[0] == executions[1]


async def test_a_value_is_recorded_before_the_next_step_begins(runtime: Runtime) -> None:
    """The step finds it in the store."""
    values: list[float] = []
    stored: list[bytes | None] = []

    @step
    async def look() -> None:
        record = await recorded(runtime.store, ID)
        stored.append(record.journal["random"].result)

    @flow
    async def body() -> None:
        values.append(random())
        await look()

    await runtime.run(body.options(run_id=ID))
    assert [float(value or b"") for value in stored] == values


async def test_a_changed_flow_that_draws_another_kind_of_value_is_refused(runtime: Runtime) -> None:
    async def before() -> None:
        now()
        raise Boom("the process dies")

    async def after() -> None:
        uuid()

    bodies: list[Callable[[], Awaitable[None]]] = [before, after]
    first, second = (flow(name="f")(body) for body in bodies)
    with pytest.raises(Boom):
        await runtime.run(first.options(run_id=ID))
    with pytest.raises(FlowChanged, match="value now is recorded"):
        await runtime.resume(ID, second)


async def test_a_run_that_is_not_durable_records_no_values(tmp_path: Path) -> None:
    async def body() -> float:
        now(), uuid()
        return random()

    async with scripted_runtime(tmp_path, durable=False) as runtime:
        result = await runtime.run(flow(body))
        assert 0 <= result.value < 1
        assert (await recorded(runtime.store, result.run_id)).journal == {}


async def test_a_flow_knows_its_run_s_id_in_each_step_and_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    seen: list[str] = []

    @step
    async def inner() -> str:
        return run_id()

    @flow
    async def interrupted() -> None:
        seen.append(run_id())
        seen.extend(await gather(inner(), inner()))
        raise_once()

    raise_once = RaiseOnce()
    async with scripted_runtime(tmp_path) as runtime:
        await run_until_interrupted(runtime, interrupted)
        await runtime.resume(ID, interrupted)
    assert seen == [ID] * 6


def test_outside_a_run_there_is_no_run_id() -> None:
    with pytest.raises(OutsideRun, match="run_id"):
        run_id()
