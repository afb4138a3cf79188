"""What happens at the deadline of a run, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import DeadlineExceeded, OutsideRun, best_so_far, flow, step, within
from orchestrator.execution.deadline_handling import RECANCEL_S, DeadlineHandling
from tests.strategies import examples
from tests.unit.orchestrator.deadline_samples import (
    DEADLINE_OPTIONS,
    DeadlineOptions,
    Elapsed,
    keep_best,
)
from tests.unit.orchestrator.orchestrator_samples import Boom, law
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.virtual_time import (
    never,
    result_of,
    run_in_virtual_time,
    timed_runtime,
)


def test_with_on_deadline_fail_the_whole_deadline_is_used_and_deadline_exceeded_is_raised() -> None:
    elapsed = Elapsed()
    with pytest.raises(DeadlineExceeded) as raised:
        result_of(flow(name="late", deadline=40)(elapsed))
    assert raised.value.args == ("late", 40)
    assert elapsed.seconds == pytest.approx(40)


@settings(law, max_examples=examples(25))
@given(
    gaps_s=st.lists(st.integers(0, 5), max_size=8),
    deadline_s=st.integers(0, 20).map(lambda whole: whole + 0.5),
)
def test_the_best_so_far_is_the_last_value_given_before_the_deadline(
    gaps_s: list[int], deadline_s: float
) -> None:
    """Without any the flow fails with DeadlineExceeded."""

    @flow(deadline=deadline_s, on_deadline="best_so_far")
    async def improving() -> int | None:
        for number, gap_s in enumerate(gaps_s):
            await asyncio.sleep(gap_s)
            assert best_so_far(number) == number
        await never()
        return -1

    in_time = [number for number in range(len(gaps_s)) if sum(gaps_s[: number + 1]) < deadline_s]
    if not in_time:
        with pytest.raises(DeadlineExceeded):
            result_of(improving)
        return
    result = result_of(improving)
    assert result.value == in_time[-1]
    assert result.elapsed_s == pytest.approx(deadline_s)


def test_none_can_be_the_best_so_far() -> None:
    @flow(deadline=1, on_deadline="best_so_far")
    async def nothing_found() -> str | None:
        best_so_far(None)
        await never()
        return "the end"

    assert result_of(nothing_found).value is None


@pytest.mark.parametrize("way", ["fail", "wrap_up", "best_so_far"])
def test_a_flow_that_ends_in_time_returns_its_own_result(way: Any) -> None:
    async def body() -> str:
        best_so_far("half")
        await asyncio.sleep(8.9)
        return "whole"

    wrap_up = keep_best if way == "wrap_up" else None
    assert result_of(flow(deadline=10, on_deadline=way, wrap_up=wrap_up)(body)).value == "whole"


@pytest.mark.parametrize("way", ["fail", "wrap_up", "best_so_far"])
@pytest.mark.parametrize("error", [Boom("early"), TimeoutError("the flow's own")], ids=repr)
def test_an_error_before_the_deadline_is_raised_even_with_a_best_so_far(
    way: Any, error: Exception
) -> None:
    async def body() -> str:
        best_so_far("half")
        await asyncio.sleep(1)
        raise error

    wrap_up = keep_best if way == "wrap_up" else None
    with pytest.raises(type(error)) as raised:
        result_of(flow(deadline=10, on_deadline=way, wrap_up=wrap_up)(body))
    assert raised.value is error


@pytest.mark.parametrize("way", DEADLINE_OPTIONS, ids=["fail", "best_so_far", "wrap_up"])
def test_a_task_group_that_failed_in_the_flow_does_not_hide_the_deadline(
    way: DeadlineOptions,
) -> None:
    """In Python 3.11 it leaves the task's count of cancellations too high."""

    async def fails() -> None:
        await asyncio.sleep(0.1)
        raise Boom("in a group")

    @flow(deadline=10, **way)
    async def grouped() -> str:
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
        best_so_far("so far")
        await never()
        return "the end"

    if not way:
        with pytest.raises(DeadlineExceeded):
            result_of(grouped)
    else:
        assert result_of(grouped).value in ("so far", "kept so far")


def in_ten_seconds(way: str, work: Callable[[], Awaitable[object]]) -> str:
    """The result of a flow that limits work to 10 s, by `within` or by a step's timeout."""

    @flow(deadline=100)
    async def body() -> str:
        try:
            if way == "within":
                async with within(10):
                    await work()
            else:
                await step(timeout=10)(work)()
        except DeadlineExceeded:
            return "exceeded"
        return "the end"

    return result_of(body).value


@pytest.mark.parametrize("way", ["within", "timeout"])
def test_a_task_group_that_failed_does_not_hide_a_shorter_limit(way: str) -> None:
    async def fails() -> None:
        await asyncio.sleep(0.1)
        raise Boom("in a group")

    async def grouped() -> None:
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
        await never()

    assert in_ten_seconds(way, grouped) == "exceeded"


async def caught(elapsed: Elapsed) -> None:
    with suppress(asyncio.CancelledError):
        await never()
    await elapsed()


async def lost_in_a_failing_group(elapsed: Elapsed) -> None:
    """Before Python 3.13, a TaskGroup that fails at the same time loses its cancellation."""

    async def slow_to_end() -> None:
        try:
            await never()
        finally:
            await asyncio.sleep(2)

    async def fails() -> None:
        await asyncio.sleep(9)
        raise Boom("in a group")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(slow_to_end())
            group.create_task(fails())
    except* Boom:
        await elapsed()


@pytest.mark.parametrize("way", ["within", "timeout"])
@pytest.mark.parametrize("work", [caught, lost_in_a_failing_group])
def test_a_lost_cancellation_is_repeated(work: Any, way: str) -> None:
    elapsed = Elapsed()
    assert in_ten_seconds(way, lambda: work(elapsed)) == "exceeded"
    assert elapsed.seconds <= RECANCEL_S


def test_a_flow_that_catches_cancellations_is_cancelled_again_until_it_ends() -> None:
    num_caught = 0

    @flow(deadline=10)
    async def stubborn() -> str:
        nonlocal num_caught
        while num_caught < 3:
            try:
                await never()
            except asyncio.CancelledError:
                num_caught += 1
        await never()
        return "the end"

    with pytest.raises(DeadlineExceeded):
        result_of(stubborn)
    assert num_caught == 3


def test_a_flow_may_clean_up_after_its_deadline() -> None:
    cleaned = False

    @flow(deadline=10)
    async def tidy() -> None:
        nonlocal cleaned
        try:
            await never()
        finally:
            await asyncio.sleep(0.9 * RECANCEL_S)
            cleaned = True

    with pytest.raises(DeadlineExceeded):
        result_of(tidy)
    assert cleaned


@pytest.mark.parametrize("ending", ["best_so_far", "wrap_up"])
def test_a_resumed_run_may_be_cut_off_earlier_than_it_was_before(
    tmp_path: Path, ending: str
) -> None:
    """Steps are replayed at once, but a wait between steps takes its time again."""
    first_time = [True]
    executed: list[str] = []

    @step
    async def work(name: str) -> str:
        executed.append(name)
        return best_so_far(name)

    @step
    async def summarise(so_far: str) -> str:
        executed.append("summarise")
        return f"a summary of {so_far}"

    async def wrap_up(so_far: str) -> str:
        summary = await summarise(so_far)
        if first_time.pop():
            raise Boom("the process dies")
        return summary

    options: dict[str, DeadlineOptions] = {
        "wrap_up": {"wrap_up": wrap_up, "tail": 50},
        "best_so_far": {"on_deadline": "best_so_far"},
    }

    @flow(deadline=100, **options[ending])
    async def research() -> str:
        best_so_far(await work("a"))
        await asyncio.sleep(30)
        best_so_far(await work("b"))
        if ending == "best_so_far" and first_time.pop():
            raise Boom("the process dies")
        await never()
        return "the end"

    async def run() -> str:
        async with timed_runtime(tmp_path) as runtime:
            with pytest.raises(Boom):
                await runtime.run(research.options(run_id=ID))
            first_time.append(False)
            if ending == "best_so_far":
                await asyncio.sleep(60)  # 10 s of the deadline are left, but the sleep takes 30 s
            return (await runtime.resume(ID, research)).value

    value = run_in_virtual_time(run())
    if ending == "wrap_up":
        assert value == "a summary of b"  # as recorded
        assert executed == ["a", "b", "summarise"]
    else:
        assert value == "a"
        assert executed == ["a", "b"]


async def _wrap_up(so_far: Any) -> Any: ...


@pytest.mark.parametrize(
    "options",
    [
        {"on_deadline": "wrap_up"},
        {"on_deadline": "fail", "wrap_up": _wrap_up},
        {"on_deadline": "best_so_far", "wrap_up": _wrap_up},
        {"on_deadline": "give_up"},
    ],
)
def test_contradictory_or_unknown_on_deadline_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="on_deadline"):
        DeadlineHandling(**options)
    with pytest.raises(ValueError, match="on_deadline"):
        flow(deadline=1, **options)


def test_on_deadline_is_wrap_up_by_default_if_wrap_up_is_given() -> None:
    wrapping: Callable[[Any], Awaitable[Any]] = _wrap_up
    assert flow(deadline=1, wrap_up=wrapping)(never).deadline_handling.on_deadline == "wrap_up"
    assert flow(deadline=1)(never).deadline_handling.on_deadline == "fail"


def test_best_so_far_outside_a_flow_raises_outside_run() -> None:
    with pytest.raises(OutsideRun, match=r"best_so_far\(\)"):
        best_so_far(1)
