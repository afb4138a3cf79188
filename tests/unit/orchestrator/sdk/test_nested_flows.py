"""Nested flows: each ends at its own deadline or that of the flow around it, and in its own way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator import DeadlineExceeded, Flow, best_so_far, flow
from tests.unit.orchestrator.deadline_samples import Elapsed, keep_best
from tests.unit.orchestrator.virtual_time import never, result_of


def test_a_nested_flow_fails_at_its_own_deadline_and_the_run_continues() -> None:
    elapsed = Elapsed()

    @flow(name="inner", deadline=5)
    async def inner() -> str:
        return await elapsed()

    @flow(deadline=20, on_deadline="best_so_far")
    async def outer() -> str:
        best_so_far("the outer's")
        with pytest.raises(DeadlineExceeded, match="5 s"):
            await inner()
        await never()
        return "the end"

    result = result_of(outer)
    assert elapsed.seconds == pytest.approx(5)
    assert result.value == "the outer's"
    assert result.elapsed_s == pytest.approx(20)


def test_a_nested_flow_with_a_longer_deadline_is_cut_off_with_the_run() -> None:
    elapsed = Elapsed()

    @flow(deadline=10, wrap_up=keep_best, tail=4)
    async def outer() -> str:
        return await flow(deadline=100)(elapsed)()

    assert result_of(outer).value == "kept None"
    assert elapsed.seconds == pytest.approx(6)


def nested(**limits: Any) -> Flow[[], str]:
    """A flow that never ends, and has the best result "inner" so far."""

    @flow(name="nested", **limits)
    async def inner() -> str:
        best_so_far("inner")
        await never()
        return "the end"

    return inner


@pytest.mark.parametrize(
    ("limits", "value", "at_s"),
    [
        ({"deadline": 5, "on_deadline": "best_so_far"}, "inner", 5.0),
        ({"deadline": 5, "wrap_up": keep_best, "tail": 2}, "kept inner", 3.0),
        ({"deadline": 5}, "DeadlineExceeded", 5.0),
    ],
)
def test_a_nested_flow_handles_its_deadline_in_its_own_way(
    limits: dict[str, Any], value: str, at_s: float
) -> None:
    @flow(deadline=20)
    async def outer() -> tuple[str, float]:
        try:
            result = await nested(**limits)()
        except DeadlineExceeded as error:
            result = type(error).__name__
        return result, asyncio.get_running_loop().time()

    assert result_of(outer).value == (value, at_s)


def test_the_best_so_far_of_a_nested_flow_is_not_that_of_the_outer_flow() -> None:
    @flow(deadline=10, on_deadline="best_so_far")
    async def outer() -> str:
        best_so_far("outer")
        await nested(deadline=5, on_deadline="best_so_far")()
        await never()
        return "the end"

    result = result_of(outer)
    assert (result.value, result.elapsed_s) == ("outer", 10.0)


def test_a_nested_flow_ends_at_the_outer_deadline_at_the_latest() -> None:
    @flow(deadline=4, on_deadline="best_so_far")
    async def outer() -> str:
        best_so_far("outer")
        return await nested(deadline=60)()

    result = result_of(outer)
    assert (result.value, result.elapsed_s) == ("outer", 4.0)
