"""wrap_up: the time that is reserved for it, its argument, and what is recorded of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import (
    DeadlineExceeded,
    InvalidDuration,
    best_so_far,
    flow,
    has_deadline,
    remaining,
    step,
)
from orchestrator.execution.deadline_handling import TAIL_SHARE
from store.records import Status
from tests.strategies import examples
from tests.unit.orchestrator.deadline_samples import Elapsed, keep_best
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    Boom,
    law,
    recorded,
    scripted_runtime,
    the_run,
)
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.virtual_time import (
    never,
    result_of,
    run_in_virtual_time,
    timed_runtime,
)


@settings(law, max_examples=examples(25))
@given(
    deadline_s=st.floats(0.1, 1000),
    tail_share=st.none() | st.floats(0.01, 0.99),
    used=st.floats(0, 0.99),
)
def test_wrap_up_has_the_reserved_tail_and_the_body_has_the_rest(
    deadline_s: float, tail_share: float | None, used: float
) -> None:
    """The body's deadline is the start of the tail, by default a tenth of the deadline."""
    tail_s = None if tail_share is None else tail_share * deadline_s
    expected_s = TAIL_SHARE * deadline_s if tail_s is None else tail_s
    remaining_s: dict[str, float] = {}
    elapsed = Elapsed()

    async def wrap_up(so_far: None) -> str:
        remaining_s["tail"] = remaining()
        await asyncio.sleep(used * expected_s)
        return f"wrapped up {so_far}"

    @flow(name="long", deadline=deadline_s, wrap_up=wrap_up, tail=tail_s)
    async def long() -> str:
        remaining_s["body"] = remaining()
        return await elapsed()

    result = result_of(long)
    body_s = deadline_s - expected_s
    assert result.value == "wrapped up None"
    assert remaining_s == pytest.approx({"body": body_s, "tail": expected_s}, abs=1e-6)
    assert elapsed.seconds == pytest.approx(body_s, abs=1e-6)
    assert result.elapsed_s == pytest.approx(body_s + used * expected_s, abs=1e-6)
    assert result.in_time


def test_wrap_up_gets_the_last_best_so_far() -> None:
    @flow(deadline=10, wrap_up=keep_best)
    async def improving() -> str:
        best_so_far("a draft")
        best_so_far("a better one")
        await never()
        return "the end"

    assert result_of(improving).value == "kept a better one"


def test_a_wrap_up_that_takes_longer_than_its_tail_ends_at_the_deadline() -> None:
    """The best so far is not the result then: DeadlineExceeded is raised."""
    elapsed = Elapsed()

    async def slow(so_far: str) -> str:
        return await elapsed()

    @flow(name="slow", deadline=100, wrap_up=slow, tail=30)
    async def improving() -> str:
        best_so_far("a draft")
        await never()
        return "the end"

    with pytest.raises(DeadlineExceeded) as raised:
        result_of(improving)
    assert raised.value.args == ("slow", 100)
    assert elapsed.seconds == pytest.approx(30)


def test_an_error_in_wrap_up_is_raised() -> None:
    async def breaks(so_far: str | None) -> str:
        raise Boom("while wrapping up")

    @flow(deadline=1, wrap_up=breaks)
    async def long() -> str:
        await never()
        return "the end"

    with pytest.raises(Boom, match="while wrapping up"):
        result_of(long)


def test_a_wrapped_up_run_is_recorded_as_completed_and_its_cut_off_step_as_cancelled(
    tmp_path: Path,
) -> None:
    @step
    async def dig() -> None:
        await never()

    @step
    async def summarise(so_far: str | None) -> str:
        assert has_deadline()
        return f"a summary of {so_far}"

    @flow(deadline=1, wrap_up=summarise)
    async def research() -> str:
        best_so_far("one page")
        await dig()
        return "the end"

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            result = await runtime.run(research)
            assert (await runtime.run(research.options(run_id=result.run_id))).value == result.value
            record = await the_run(runtime.store)
        assert result.value == "a summary of one page"
        assert record.run.status is Status.COMPLETED
        assert {step.name: step.status for step in record.steps.values()} == {
            "dig": Status.CANCELLED,
            "summarise": Status.COMPLETED,
        }
        assert record.still_running() == []

    run_in_virtual_time(run())


def test_the_steps_of_wrap_up_are_replayed_on_resume(tmp_path: Path) -> None:
    must_fail = [True]

    async def wrap_up(so_far: str) -> str:
        first, second = await summarise(so_far), await summarise(so_far)
        if must_fail.pop():
            raise Boom("the process dies")
        return first + second

    executed: list[str] = []

    @step
    async def summarise(so_far: str) -> str:
        executed.append(so_far)
        return so_far.upper()

    @flow(deadline=100, wrap_up=wrap_up, tail=50)
    async def research() -> str:
        best_so_far(await summarise("x"))
        await never()
        return "the end"

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            with pytest.raises(Boom):
                await runtime.run(research.options(run_id=ID))
            must_fail.append(False)
            assert (await runtime.resume(ID, research)).value == "XX"
            record = await recorded(runtime.store, ID)
        assert executed == ["x", "X", "X"]
        assert sorted(record.steps) == [
            "summarise",
            "summarise[wrap-up]",
            "summarise[wrap-up]#2",
        ]

    run_in_virtual_time(run())


async def test_wrap_up_can_be_a_plain_function(tmp_path: Path) -> None:
    """It runs in a thread, in real time, so that almost the whole deadline is its tail."""

    @flow(deadline=NEVER_S + 0.1, tail=NEVER_S, wrap_up=lambda best: f"plainly {best}")
    async def body() -> str:
        best_so_far("so far")
        await never()
        return "the end"

    async with scripted_runtime(tmp_path) as runtime:
        assert (await runtime.run(body)).value == "plainly so far"


@pytest.mark.parametrize("tail", [10, 11])
def test_a_tail_as_long_as_the_deadline_is_refused(tail: float) -> None:
    with pytest.raises(InvalidDuration, match="leaves nothing"):
        flow(deadline=10, tail=tail, wrap_up=keep_best)(never)
