"""What a run comes to at its deadline, on an event loop whose time jumps to what is due next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import (
    DeadlineExceeded,
    Flow,
    InvalidDuration,
    OutsideRun,
    best_so_far,
    flow,
    has_deadline,
    remaining,
    step,
    within,
)
from orchestrator.expiry import TAIL_SHARE, Expiry
from store.records import Status
from tests.unit.orchestrator.jumping_time import (
    comes_to,
    in_jumping_time,
    never,
    timed_runtime,
)
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    Boom,
    law,
    recorded,
    scripted_runtime,
    the_run,
)

T = TypeVar("T")

ID = "the-run"
few = settings(law, max_examples=25)


async def kept(so_far: str | None) -> str:
    """A way to wrap up: takes no time."""
    return f"kept {so_far}"


class Elapsed:
    """How long a flow went on until it was ended."""

    def __init__(self) -> None:
        self.seconds = -1.0

    async def __call__(self) -> str:
        began_s = asyncio.get_running_loop().time()
        try:
            await never()
        finally:
            self.seconds = asyncio.get_running_loop().time() - began_s
        return "the end"


def test_a_flow_that_is_to_fail_does_so_at_its_deadline_and_keeps_no_tail() -> None:
    elapsed = Elapsed()
    with pytest.raises(DeadlineExceeded) as raised:
        comes_to(flow(name="late", deadline=40)(elapsed))
    assert raised.value.args == ("late", 40)
    assert elapsed.seconds == pytest.approx(40)


@few
@given(
    gaps_s=st.lists(st.integers(0, 5), max_size=8),
    deadline_s=st.integers(0, 20).map(lambda whole: whole + 0.5),
)
def test_the_best_so_far_is_the_last_that_was_said_before_the_deadline(
    gaps_s: list[int], deadline_s: float
) -> None:
    """And without any the flow fails, as if it had not asked for the best so far."""

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
            comes_to(improving)
        return
    result = comes_to(improving)
    assert result.value == in_time[-1]
    assert result.elapsed_s == pytest.approx(deadline_s)


def test_a_best_so_far_of_none_is_one() -> None:
    @flow(deadline=1, on_deadline="best_so_far")
    async def nothing_found() -> str | None:
        best_so_far(None)
        await never()
        return "the end"

    assert comes_to(nothing_found).value is None


@pytest.mark.parametrize("way", ["fail", "wrap_up", "best_so_far"])
def test_a_flow_that_ends_in_time_comes_to_what_it_returns(way: Any) -> None:
    async def body() -> str:
        best_so_far("half")
        await asyncio.sleep(8.9)
        return "whole"

    wrap_up = kept if way == "wrap_up" else None
    assert comes_to(flow(deadline=10, on_deadline=way, wrap_up=wrap_up)(body)).value == "whole"


@pytest.mark.parametrize("way", ["fail", "wrap_up", "best_so_far"])
@pytest.mark.parametrize("error", [Boom("early"), TimeoutError("the flow's own")], ids=repr)
def test_an_error_before_the_deadline_is_raised_whatever_there_is_so_far(
    way: Any, error: Exception
) -> None:
    async def body() -> str:
        best_so_far("half")
        await asyncio.sleep(1)
        raise error

    wrap_up = kept if way == "wrap_up" else None
    with pytest.raises(type(error)) as raised:
        comes_to(flow(deadline=10, on_deadline=way, wrap_up=wrap_up)(body))
    assert raised.value is error


@few
@given(
    deadline_s=st.floats(0.1, 1000),
    tail_share=st.none() | st.floats(0.01, 0.99),
    used=st.floats(0, 0.99),
)
def test_wrapping_up_has_the_tail_to_itself(
    deadline_s: float, tail_share: float | None, used: float
) -> None:
    """The rest of the flow is told of the time before it and cut off there; a tenth by default."""
    tail_s = None if tail_share is None else tail_share * deadline_s
    expected_s = TAIL_SHARE * deadline_s if tail_s is None else tail_s
    told: dict[str, float] = {}
    elapsed = Elapsed()

    async def wrap_up(so_far: None) -> str:
        told["tail"] = remaining()
        await asyncio.sleep(used * expected_s)
        return f"wrapped up {so_far}"

    @flow(name="long", deadline=deadline_s, wrap_up=wrap_up, tail=tail_s)
    async def long() -> str:
        told["body"] = remaining()
        return await elapsed()

    result = comes_to(long)
    body_s = deadline_s - expected_s
    assert result.value == "wrapped up None"
    assert told == pytest.approx({"body": body_s, "tail": expected_s}, abs=1e-6)
    assert elapsed.seconds == pytest.approx(body_s, abs=1e-6)
    assert result.elapsed_s == pytest.approx(body_s + used * expected_s, abs=1e-6)
    assert result.in_time


def test_wrapping_up_is_given_the_last_of_what_there_is_so_far() -> None:
    @flow(deadline=10, wrap_up=kept)
    async def improving() -> str:
        best_so_far("a draft")
        best_so_far("a better one")
        await never()
        return "the end"

    assert comes_to(improving).value == "kept a better one"


def test_wrapping_up_for_longer_than_its_tail_ends_with_the_deadline_of_the_whole() -> None:
    """What there is so far is no result then: the flow asked for it to be wrapped up."""
    elapsed = Elapsed()

    async def slow(so_far: str) -> str:
        return await elapsed()

    @flow(name="slow", deadline=100, wrap_up=slow, tail=30)
    async def improving() -> str:
        best_so_far("a draft")
        await never()
        return "the end"

    with pytest.raises(DeadlineExceeded) as raised:
        comes_to(improving)
    assert raised.value.args == ("slow", 100)
    assert elapsed.seconds == pytest.approx(30)


def test_what_wrapping_up_raises_is_raised() -> None:
    async def breaks(so_far: str | None) -> str:
        raise Boom("while wrapping up")

    @flow(deadline=1, wrap_up=breaks)
    async def long() -> str:
        await never()
        return "the end"

    with pytest.raises(Boom, match="while wrapping up"):
        comes_to(long)


def test_what_ended_gracefully_is_recorded_as_completed_with_what_it_was_cut_off_in(
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
            found = await the_run(runtime.store)
        assert result.value == "a summary of one page"
        assert found.run.status is Status.COMPLETED
        assert {step.name: step.status for step in found.steps.values()} == {
            "dig": Status.CANCELLED,
            "summarise": Status.COMPLETED,
        }
        assert found.still_running() == []

    in_jumping_time(run())


def test_a_nested_flow_shortens_the_deadline_and_leaves_the_way_to_end_to_the_run() -> None:
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

    result = comes_to(outer)
    assert elapsed.seconds == pytest.approx(5)
    assert result.value == "the outer's"
    assert result.elapsed_s == pytest.approx(20)


def test_a_nested_flow_with_a_longer_deadline_is_cut_off_with_the_run() -> None:
    elapsed = Elapsed()

    @flow(deadline=10, wrap_up=kept, tail=4)
    async def outer() -> str:
        return await flow(deadline=100)(elapsed)()

    assert comes_to(outer).value == "kept None"
    assert elapsed.seconds == pytest.approx(6)


Ways = dict[str, Any]
WAYS: list[Ways] = [
    {},
    {"on_deadline": "best_so_far"},
    {"wrap_up": kept, "tail": 5},
]


@pytest.mark.parametrize("way", WAYS, ids=["fail", "best_so_far", "wrap_up"])
@pytest.mark.parametrize(
    ("cancelled_at_s", "clean_up_s"),
    [(1, 0), (1, 30), (11, 30)],
    ids=["before", "before, and cleaning up beyond it", "while it cleans up after it"],
)
def test_a_cancellation_from_outside_is_not_taken_for_the_deadline(
    tmp_path: Path, way: Ways, cancelled_at_s: float, clean_up_s: float
) -> None:
    """However long the flow takes to end; nothing that was so far makes it a success."""

    begun = asyncio.Event()

    @flow(deadline=10, **way)
    async def stubborn() -> str:
        best_so_far("so far")
        begun.set()
        try:
            await never()
        finally:
            await asyncio.sleep(clean_up_s)
        return "the end"

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            running = asyncio.create_task(runtime.run(stubborn))
            await begun.wait()
            await asyncio.sleep(cancelled_at_s)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            found = await the_run(runtime.store)
        assert found.run.status is Status.CANCELLED

    in_jumping_time(run())


def test_a_cancellation_while_wrapping_up_ends_the_run_as_cancelled(tmp_path: Path) -> None:
    elapsed, wrapping = Elapsed(), asyncio.Event()

    async def slow(so_far: None) -> str:
        wrapping.set()
        return await elapsed()

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            body = flow(name="long", deadline=20, wrap_up=slow, tail=10)(Elapsed())
            running = asyncio.create_task(runtime.run(body))
            await wrapping.wait()
            await asyncio.sleep(4)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await the_run(runtime.store)).run.status is Status.CANCELLED
        assert elapsed.seconds == pytest.approx(4)

    in_jumping_time(run())


@pytest.mark.parametrize("way", WAYS, ids=["fail", "best_so_far", "wrap_up"])
def test_a_task_group_that_failed_in_the_flow_does_not_hide_the_deadline(way: Ways) -> None:
    """Python 3.11's leaves the task with one cancellation too many."""

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
            comes_to(grouped)
    else:
        assert comes_to(grouped).value in ("so far", "kept so far")


@pytest.mark.parametrize("limit", ["within", "timeout"])
def test_a_task_group_that_failed_does_not_hide_a_shorter_limit(limit: str) -> None:
    async def fails() -> None:
        await asyncio.sleep(0.1)
        raise Boom("in a group")

    async def grouped() -> None:
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
        await never()

    @flow(deadline=100)
    async def body() -> str:
        try:
            if limit == "within":
                async with within(10):
                    await grouped()
            else:
                await step(timeout=10)(grouped)()
        except DeadlineExceeded:
            return "told"
        return "the end"

    assert comes_to(body).value == "told"


@pytest.mark.parametrize("ending", ["best_so_far", "wrap_up"])
def test_a_resumed_run_may_be_cut_off_earlier_than_it_was_before(
    tmp_path: Path, ending: str
) -> None:
    """What is recorded comes back at once, and waiting between steps does not: so it is late."""
    first_time = [True]
    done: list[str] = []

    @step
    async def work(name: str) -> str:
        done.append(name)
        return best_so_far(name)

    @step
    async def summarise(so_far: str) -> str:
        done.append("summarise")
        return f"a summary of {so_far}"

    async def wrap_up(so_far: str) -> str:
        said = await summarise(so_far)
        if first_time.pop():
            raise Boom("the process dies")
        return said

    ways: dict[str, Ways] = {
        "wrap_up": {"wrap_up": wrap_up, "tail": 50},
        "best_so_far": {"on_deadline": "best_so_far"},
    }

    @flow(deadline=100, **ways[ending])
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
                await asyncio.sleep(60)  # of the deadline 10 s are left, and the sleep takes 30
            return (await runtime.resume(ID, research)).value

    value = in_jumping_time(run())
    if ending == "wrap_up":
        assert value == "a summary of b"  # that was recorded
        assert done == ["a", "b", "summarise"]
    else:
        assert value == "a"
        assert done == ["a", "b"]


def test_a_run_whose_steps_did_not_change_is_wrapped_up_as_it_was(tmp_path: Path) -> None:
    breaking = [True]

    async def wrap_up(so_far: str) -> str:
        first, second = await summarise(so_far), await summarise(so_far)
        if breaking.pop():
            raise Boom("the process dies")
        return first + second

    done: list[str] = []

    @step
    async def summarise(so_far: str) -> str:
        done.append(so_far)
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
            breaking.append(False)
            assert (await runtime.resume(ID, research)).value == "XX"
            found = await recorded(runtime.store, ID)
        assert done == ["x", "X", "X"]
        assert sorted(found.steps) == [
            "summarise",
            "summarise[wrap-up]",
            "summarise[wrap-up]#2",
        ]

    in_jumping_time(run())


async def _wraps(so_far: Any) -> Any: ...


@pytest.mark.parametrize(
    "options",
    [
        {"on_deadline": "wrap_up"},
        {"on_deadline": "fail", "wrap_up": _wraps},
        {"on_deadline": "best_so_far", "wrap_up": _wraps},
        {"on_deadline": "give_up"},
    ],
)
def test_ways_to_end_that_contradict_themselves_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="on_deadline"):
        Expiry(**options)
    with pytest.raises(ValueError, match="on_deadline"):
        flow(deadline=1, **options)


def test_a_way_to_wrap_up_is_enough_to_say_so() -> None:
    wrapping: Callable[[Any], Awaitable[Any]] = _wraps
    assert flow(deadline=1, wrap_up=wrapping)(never).expiry.on_deadline == "wrap_up"
    assert flow(deadline=1)(never).expiry.on_deadline == "fail"


def test_outside_a_flow_there_is_no_best_so_far() -> None:
    with pytest.raises(OutsideRun, match=r"best_so_far\(\)"):
        best_so_far(1)


def nested(**limits: Any) -> Flow[[], str]:
    """A flow that is never done, and says at once what it would come to."""

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
        ({"deadline": 5, "wrap_up": kept, "tail": 2}, "kept inner", 3.0),
        ({"deadline": 5}, "DeadlineExceeded", 5.0),
    ],
)
def test_a_flow_within_a_flow_ends_as_it_says_itself(
    limits: dict[str, Any], value: str, at_s: float
) -> None:
    @flow(deadline=20)
    async def outer() -> tuple[str, float]:
        try:
            came = await nested(**limits)()
        except DeadlineExceeded as error:
            came = type(error).__name__
        return came, asyncio.get_running_loop().time()

    assert comes_to(outer).value == (value, at_s)


def test_what_a_flow_within_would_come_to_is_not_what_the_one_around_would() -> None:
    @flow(deadline=10, on_deadline="best_so_far")
    async def outer() -> str:
        best_so_far("outer")
        await nested(deadline=5, on_deadline="best_so_far")()
        await never()
        return "the end"

    result = comes_to(outer)
    assert (result.value, result.elapsed_s) == ("outer", 10.0)


def test_a_flow_within_has_no_more_time_than_the_one_around() -> None:
    @flow(deadline=4, on_deadline="best_so_far")
    async def outer() -> str:
        best_so_far("outer")
        return await nested(deadline=60)()

    result = comes_to(outer)
    assert (result.value, result.elapsed_s) == ("outer", 4.0)


async def test_a_plain_function_wraps_up_as_well(tmp_path: Path) -> None:
    """In a thread, and so in real time: most of it is kept for that."""

    @flow(deadline=NEVER_S + 0.1, tail=NEVER_S, wrap_up=lambda best: f"plainly {best}")
    async def body() -> str:
        best_so_far("so far")
        await never()
        return "the end"

    async with scripted_runtime(tmp_path) as runtime:
        assert (await runtime.run(body)).value == "plainly so far"


@pytest.mark.parametrize("tail", [10, 11])
def test_a_tail_that_leaves_no_time_is_refused(tail: float) -> None:
    with pytest.raises(InvalidDuration, match="leaves nothing"):
        flow(deadline=10, tail=tail, wrap_up=kept)(never)
