"""SLOs of calls under a time limit that is shorter than their run's deadline."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path

import pytest

from orchestrator import Runtime, flow, gather, step, tool, within
from serving.slo import Slo
from tests.unit.orchestrator.learning_samples import requests_of
from tests.unit.orchestrator.orchestrator_samples import Boom, ask
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.virtual_time import never, run_in_virtual_time, timed_runtime


@step(timeout="20s")
async def limited() -> str:
    return await ask()


@tool(effects="pure")
async def look() -> str:
    return "found"


@flow(deadline="30s")
async def inner() -> None:
    await gather(ask(), ask())


def slos_of(runtime: Runtime) -> list[Slo]:
    """The SLO of each call so far, in the order in which the calls began."""
    return [request.slo for request in requests_of(runtime)]


async def test_the_calls_under_a_limit_form_a_program_with_that_deadline(runtime: Runtime) -> None:
    """All calls of a program share one final deadline."""

    async def body() -> None:
        await ask()
        async with within("10s"):
            await ask()
            await gather(ask(), ask())
        await ask()

    result = await runtime.run(flow(deadline="1h")(body))
    first, *limited_slos, last = slos_of(runtime)
    assert first.program == last.program == result.run_id
    [program] = {slo.program for slo in limited_slos}
    assert program.startswith(f"{result.run_id}+")
    assert [slo.stage_calls for slo in limited_slos] == [1, 2, 2]
    for slo in limited_slos:
        assert slo.final_s == pytest.approx(10, abs=5)
    assert last.final_s == pytest.approx(3600, abs=60)


async def test_a_limit_beyond_the_runs_deadline_has_no_effect(runtime: Runtime) -> None:
    async def body() -> None:
        async with within("2h"):
            await ask()

    result = await runtime.run(flow(deadline="1h")(body))
    [slo] = slos_of(runtime)
    assert slo.program == result.run_id


async def test_each_try_of_a_step_with_a_timeout_is_a_program(runtime: Runtime) -> None:
    """In parallel branches too: each program has only its own call."""

    async def body() -> None:
        await limited()
        await gather(*(limited() for _ in range(3)))

    result = await runtime.run(flow(deadline="1h")(body))
    slos = slos_of(runtime)
    assert all(slo.program.startswith(f"{result.run_id}+") for slo in slos)
    assert [slo.stage_calls for slo in slos] == [1, 1, 1, 1]
    assert slos[0].program != slos[1].program


def test_calls_before_the_tail_have_an_earlier_final_deadline_than_those_of_wrap_up(
    tmp_path: Path,
) -> None:
    async def wrap_up(_: object) -> None:
        await ask()

    @flow(deadline="100s", on_deadline="wrap_up", wrap_up=wrap_up, tail="10s")
    async def body() -> None:
        await ask()
        await never()

    async def run() -> tuple[str, list[Slo]]:
        async with timed_runtime(tmp_path) as runtime:
            result = await runtime.run(body)
            return result.run_id, slos_of(runtime)

    run_id, slos = run_in_virtual_time(run())
    programs = [(slo.program, slo.final_s) for slo in slos]
    assert programs == [(f"{run_id}+90.000s", 90.0), (run_id, 10.0)]


async def test_a_program_has_the_same_name_after_a_resume(runtime: Runtime) -> None:
    executions: list[int] = []

    @flow(deadline="1h")
    async def body() -> None:
        executions.append(0)
        async with within("5m"):
            await ask("first")
            if len(executions) == 1:
                raise Boom("the process dies")
            await ask("second")

    with pytest.raises(Boom):
        await runtime.run(body.options(run_id=ID))
    await runtime.resume(ID, body)
    first, second = slos_of(runtime)
    [first_s, second_s] = [
        float(slo.program.removeprefix(f"{ID}+").removesuffix("s")) for slo in (first, second)
    ]
    assert first_s == pytest.approx(second_s, abs=0.002)  # recorded times are rounded


async def test_a_nested_flow_with_a_deadline_is_a_program_of_its_own(runtime: Runtime) -> None:
    async def body() -> None:
        await gather(ask(), inner(), inner())

    result = await runtime.run(flow(deadline="1h")(body))
    own, *others = sorted(slos_of(runtime), key=lambda slo: -(slo.final_s or 0.0))
    assert (own.program, own.stage_calls) == (result.run_id, 3)
    assert len(others) == 4
    assert all(slo.program != result.run_id and slo.stage_calls == 2 for slo in others)


async def test_the_future_work_of_a_limited_step_does_not_include_later_steps(
    runtime: Runtime,
) -> None:
    """Five steps of 20 s must not look like a program of five steps within 20 s."""

    async def body() -> None:
        for _ in range(5):
            await limited()

    steps = flow(deadline="100h")(body)
    for _ in range(3):
        result = await runtime.run(steps)
    assert {stage.source for stage in result.stages} == {"learned"}
    slos = slos_of(runtime)[-5:]
    assert [slo.future for slo in slos] == [None] * 5
    assert len({slo.program for slo in slos}) == 5


async def test_parallel_branches_with_limits_divide_the_learned_calls_of_a_stage(
    runtime: Runtime,
) -> None:
    async def body() -> None:
        await gather(*(limited() for _ in range(4)))

    branches = flow(deadline="1h")(body)
    for _ in range(3):
        await runtime.run(branches)
    assert [slo.stage_calls for slo in slos_of(runtime)[-4:]] == [1] * 4


async def test_tool_calls_do_not_count_among_the_calls_in_an_slo(runtime: Runtime) -> None:
    async def body() -> None:
        branches: list[Awaitable[str]] = [ask(), *(look() for _ in range(8))]
        await gather(*branches)
        await look()
        await ask()

    mixed = flow(deadline="1h")(body)
    for _ in range(3):
        await runtime.run(mixed)
    first, last = slos_of(runtime)[-2:]
    assert first.future is not None
    assert last.future is not None
    assert (first.stage_calls, first.future.calls) == (1, 1)
    assert (last.stage_calls, last.future.calls) == (1, 0)
