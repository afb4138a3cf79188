"""Retries of steps: number of tries, pauses, timeouts, and what is recorded."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import (
    DeadlineExceeded,
    FlowChanged,
    InvalidDuration,
    OutcomeUnknown,
    flow,
    llm,
    remaining,
    step,
    within,
)
from orchestrator.sdk.retries import FIRST_PAUSE_S, MAX_PAUSE_S, Retries
from serving.errors import EngineClosed, PromptTooLong, RequestDropped
from store.errors import StoreFull
from store.records import Status
from tests.strategies import examples
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    Boom,
    law,
    recorded,
    the_run,
)
from tests.unit.orchestrator.virtual_time import (
    never,
    result_of,
    run_in_virtual_time,
    timed_runtime,
)

ID = "the-run"


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Failing:
    """Work that fails on its first `times` tries, and records the time of each try."""

    def __init__(self, times: int, error: BaseException | None = None) -> None:
        self.left = times
        self.error = error or Boom("not yet")
        self.tried_at_s: list[float] = []

    async def __call__(self) -> str:
        self.tried_at_s.append(now_s())
        self.left -= 1
        if self.left >= 0:
            raise self.error
        return "done"

    @property
    def num_tries(self) -> int:
        return len(self.tried_at_s)

    @property
    def pauses_s(self) -> list[float]:
        return [
            later - earlier
            for earlier, later in zip(self.tried_at_s, self.tried_at_s[1:], strict=False)
        ]


def result_with(failing: Failing, *, deadline: float | None = None, **options: Any) -> str:
    """The result of a run of one step with these options."""
    work = step(name="work", **options)(failing.__call__)

    @flow(deadline=deadline)
    async def body() -> str:
        return await work()

    return result_of(body).value


@settings(law, max_examples=examples(25))
@given(failures=st.integers(0, 12), retries=st.integers(0, 12))
def test_a_step_is_tried_until_it_succeeds_or_its_retries_are_used_up(
    failures: int, retries: int
) -> None:
    """Pauses double from the first up to the longest; the last error is raised."""
    failing = Failing(failures)
    if failures > retries:
        with pytest.raises(Boom):
            result_with(failing, retries=retries)
    else:
        assert result_with(failing, retries=retries) == "done"
    assert failing.num_tries == min(failures, retries) + 1
    expected_s = [min(FIRST_PAUSE_S * 2**n, MAX_PAUSE_S) for n in range(failing.num_tries - 1)]
    assert failing.pauses_s == pytest.approx(expected_s)


def test_a_step_without_retries_is_tried_once() -> None:
    failing = Failing(1)
    with pytest.raises(Boom):
        result_with(failing, deadline=100)
    assert failing.num_tries == 1


@pytest.mark.parametrize(
    "error",
    [
        FlowChanged("r", "step a", "step b"),
        OutcomeUnknown("r", "send"),
        StoreFull("sqlite:///x", "no room"),
        PromptTooLong("r-1", 9000, 2048),
        EngineClosed("demo"),
        asyncio.CancelledError(),
        SystemExit(3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_permanent_error_or_a_cancellation_is_not_retried(
    error: BaseException,
) -> None:
    failing = Failing(1, error)
    with pytest.raises(type(error)):
        result_with(failing, deadline=100, retries=5)
    assert failing.num_tries == 1


@pytest.mark.parametrize(
    "error",
    [Boom("x"), TimeoutError("its own"), RequestDropped("r-1", "late"), DeadlineExceeded("x", 1)],
    ids=lambda error: type(error).__name__,
)
def test_a_transient_error_is_retried(error: Exception) -> None:
    failing = Failing(1, error)
    assert result_with(failing, deadline=100, retries=1) == "done"
    assert failing.num_tries == 2


@pytest.mark.parametrize(("deadline_s", "num_tries"), [(0.05, 1), (0.25, 2), (0.35, 3), (1.6, 5)])
def test_a_step_is_not_retried_if_the_pause_alone_would_exceed_the_deadline(
    deadline_s: float, num_tries: int
) -> None:
    """The step's error says more than DeadlineExceeded. Tries are at 0, 0.1, 0.3, 0.7, 1.5 s."""
    failing = Failing(99)
    with pytest.raises(Boom):
        result_with(failing, deadline=deadline_s, retries=50)
    assert failing.num_tries == num_tries


def test_each_try_has_the_whole_timeout() -> None:
    seen_s: list[float] = []
    took_s: list[float] = []

    @step(retries=2, timeout=5)
    async def slow() -> str:
        began_s = now_s()
        seen_s.append(remaining())
        try:
            await asyncio.sleep(NEVER_S if len(seen_s) < 3 else 4.9)
        finally:
            took_s.append(now_s() - began_s)
        return "in time"

    @flow(deadline=100)
    async def body() -> str:
        return await slow()

    assert result_of(body).value == "in time"
    assert seen_s == pytest.approx([5, 5, 5])
    assert took_s == pytest.approx([5, 5, 4.9])


def test_a_step_that_times_out_in_every_try_fails_but_the_run_continues() -> None:
    num_tries = [0]

    @step(retries=3, timeout="2s")
    async def slow() -> str:
        num_tries[0] += 1
        await never()
        return "the end"

    @flow(deadline=100)
    async def body() -> str:
        with pytest.raises(DeadlineExceeded) as raised:
            await slow()
        assert raised.value.args == ("slow", 2)
        return "went on"

    assert result_of(body).value == "went on"
    assert num_tries == [4]


def test_a_timeout_error_of_the_steps_own_code_is_raised_unchanged() -> None:
    failing = Failing(1, TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own") as raised:
        result_with(failing, timeout=5)
    assert not isinstance(raised.value, DeadlineExceeded)


class Busy(Exception):
    """Another error than Boom."""


@pytest.mark.parametrize(
    ("options", "num_tries"),
    [
        ({"retry_on": Boom}, 4),
        ({"retry_on": (Busy, Boom)}, 4),
        ({"retry_on": Busy}, 1),
        ({"retry_on": ()}, 1),
        ({"give_up_on": Boom}, 1),
        ({"give_up_on": (Busy,)}, 4),
        ({"retry_on": Exception, "give_up_on": Boom}, 1),
    ],
    ids=str,
)
def test_retry_on_and_give_up_on_say_which_errors_are_followed_by_a_try(
    options: dict[str, Any], num_tries: int
) -> None:
    failing = Failing(99)
    with pytest.raises(Boom):
        result_with(failing, retries=3, **options)
    assert failing.num_tries == num_tries


def test_a_permanent_error_is_not_retried_even_if_retry_on_names_it() -> None:
    failing = Failing(1, EngineClosed("demo"))
    with pytest.raises(EngineClosed):
        result_with(failing, retries=3, retry_on=Exception)
    assert failing.num_tries == 1


@pytest.mark.parametrize(
    ("backoff", "pauses_s"),
    [
        ("2s", [2, 4, 8, 16]),
        (timedelta(minutes=1), [60, 120, 240, 480]),
        (lambda number, error: number * len(str(error)), [7, 14, 21, 28]),
        (lambda number, error: "1 minute" if number > 2 else 0, [0, 0, 60, 60]),
    ],
)
def test_backoff_says_how_long_to_wait(backoff: Any, pauses_s: list[float]) -> None:
    failing = Failing(4)
    assert result_with(failing, retries=4, backoff=backoff) == "done"
    assert failing.pauses_s == pytest.approx(pauses_s)


def test_a_pause_grows_at_most_a_hundredfold() -> None:
    failing = Failing(9)
    assert result_with(failing, retries=9, backoff=1) == "done"
    assert failing.pauses_s == pytest.approx([1, 2, 4, 8, 16, 32, 64, 100, 100])


def test_no_pause_is_asked_for_after_the_last_try() -> None:
    asked: list[int] = []

    def backoff(number: int, error: Exception) -> float:
        asked.append(number)
        return 1

    with pytest.raises(Boom):
        result_with(Failing(9), retries=2, backoff=backoff)
    assert asked == [1, 2]


def test_a_pause_that_the_deadline_does_not_allow_ends_the_tries() -> None:
    failing = Failing(9)
    with pytest.raises(Boom):
        result_with(failing, deadline=100, retries=9, backoff="1h")
    assert failing.num_tries == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"retry_on": Boom}, ValueError),
        ({"give_up_on": Boom}, ValueError),
        ({"backoff": 1}, ValueError),
        ({"backoff": "soon", "retries": 1}, InvalidDuration),
        ({"backoff": -1, "retries": 1}, InvalidDuration),
        ({"retry_on": "Boom", "retries": 1}, TypeError),
        ({"give_up_on": (Boom, 5), "retries": 1}, TypeError),
        ({"retry_on": asyncio.CancelledError, "retries": 1}, TypeError),
    ],
    ids=str,
)
def test_arguments_that_steer_no_retries_are_refused(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        step(**options)


def test_a_resumed_run_waits_only_for_the_rest_of_a_recorded_pause(tmp_path: Path) -> None:
    """The run is cut off within a pause; the next execution begins the step again."""
    tried_at_s: list[float] = []
    asked: list[int] = []
    pause_s = 10_000.0

    def backoff(number: int, error: Exception) -> float:
        asked.append(number)
        return pause_s

    @step(retries=1, backoff=backoff)
    async def work() -> str:
        tried_at_s.append(now_s())
        if len(tried_at_s) < 3:
            raise Boom("not yet")
        return "done"

    @flow
    async def body() -> str:
        return await work()

    async def run() -> str:
        async with timed_runtime(tmp_path) as runtime:
            handle = runtime.start(body.options(run_id=ID))
            while not asked:  # noqa: ASYNC110 - the pause has no event to wait for
                await asyncio.sleep(0.001)
            await asyncio.sleep(40)
            await handle.cancel()
            with pytest.raises(asyncio.CancelledError):
                await handle
            return (await runtime.resume(ID, body)).value

    assert run_in_virtual_time(run()) == "done"
    first_s, again_s, last_s = tried_at_s
    assert 40 <= again_s - first_s < pause_s
    assert last_s - first_s == pytest.approx(pause_s, abs=0.1)
    assert asked == [1]


@pytest.mark.parametrize("limit", ["run", "block"])
def test_a_deadline_around_a_step_ends_it_with_all_its_tries(limit: str) -> None:
    num_tries = [0]

    @step(retries=9, timeout=4)
    async def slow() -> str:
        num_tries[0] += 1
        await never()
        return "the end"

    async def limited() -> str:
        async with within(10):
            return await slow()

    body = flow(name="f", deadline=10)(slow) if limit == "run" else flow(name="f")(limited)
    with pytest.raises(DeadlineExceeded) as raised:
        result_of(body)
    assert raised.value.args == ("f", 10)
    assert num_tries == [3]  # from 0, 4.1 and 8.3 s


def test_a_timeout_cannot_exceed_the_deadline_around_it() -> None:
    @step(timeout=50)
    async def time_left() -> float:
        return remaining()

    assert result_of(flow(deadline=7)(time_left)).value == pytest.approx(7)


@pytest.mark.parametrize("retries", [-1, -9])
def test_negative_retries_are_refused(retries: int) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Retries(retries=retries)
    with pytest.raises(ValueError, match="at least 0"):
        step(retries=retries)


@pytest.mark.parametrize("timeout", [0, -1, "soon"])
def test_a_timeout_that_is_not_a_positive_time_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidDuration):
        step(timeout=timeout)


def test_a_step_that_succeeded_after_retries_is_recorded_once_and_replayed(tmp_path: Path) -> None:
    failing, errors = Failing(2), [Boom("the process dies")]
    work = step(name="work", retries=2)(failing.__call__)

    @flow(deadline=100)
    async def body() -> str:
        value = await work()
        if errors:
            raise errors.pop()
        return value

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            with pytest.raises(Boom):
                await runtime.run(body.options(run_id=ID))
            assert (await runtime.resume(ID, body)).value == "done"
            record = await recorded(runtime.store, ID)
        assert failing.num_tries == 3
        assert record.steps["work"].status is Status.COMPLETED
        assert record.steps["work"].attempts == 1

    run_in_virtual_time(run())


@pytest.mark.parametrize("later_failures", [0, 1, 2])
@pytest.mark.parametrize("ended", ["failed", "cancelled"])
def test_a_resumed_step_may_need_a_different_number_of_tries(
    tmp_path: Path, later_failures: int, ended: str
) -> None:
    """The records of the former tries, and of steps within them, do not conflict with that."""
    fails_first, fails_later = Failing(3), Failing(later_failures)
    now_failing = [fails_first]
    executed: list[str] = []

    @step
    async def inner(name: str) -> str:
        executed.append(f"{name} {len(executed)}")
        return "inner"

    @step(retries=2)
    async def outer() -> str:
        await inner("first")
        if ended == "cancelled" and now_failing[0] is fails_first and fails_first.num_tries == 2:
            raise asyncio.CancelledError
        return await now_failing[0]() + await inner("last")

    @flow(deadline=1000)
    async def body() -> str:
        return await outer()

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            with pytest.raises((Boom, asyncio.CancelledError)):
                await runtime.run(body.options(run_id=ID))
            now_failing[0] = fails_later
            assert (await runtime.resume(ID, body)).value == "doneinner"
            record = await recorded(runtime.store, ID)
        assert fails_later.num_tries == later_failures + 1
        assert record.run.status is Status.COMPLETED
        # The first inner step of each try was recorded in the first execution, and is replayed.
        assert executed == ["first 0", "first 1", "first 2", "last 3"]

    run_in_virtual_time(run())


def test_a_step_of_the_last_try_that_made_the_run_fail_is_executed_again(tmp_path: Path) -> None:
    failing = Failing(3)
    inner = step(name="inner")(failing.__call__)

    @step(retries=2)
    async def outer() -> str:
        return await inner()

    @flow(deadline=1000)
    async def body() -> str:
        return await outer()

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            with pytest.raises(Boom):
                await runtime.run(body.options(run_id=ID))
            assert (await runtime.resume(ID, body)).value == "done"
            record = await recorded(runtime.store, ID)
        assert failing.num_tries == 4
        assert sorted(record.steps) == [
            "outer",
            "outer/inner",
            "outer/inner[try2]",
            "outer/inner[try3]",
        ]

    run_in_virtual_time(run())


@pytest.mark.parametrize("ended", ["failed", "cancelled"])
def test_a_step_has_its_whole_timeout_again_when_the_run_is_resumed_later(
    tmp_path: Path, ended: str
) -> None:
    slow = [NEVER_S]

    @step(timeout=10)
    async def work() -> str:
        await llm("and?")
        await asyncio.sleep(slow[0])
        return "done"

    @flow
    async def body() -> str:
        return await work()

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            if ended == "cancelled":
                while not runtime.engine.requests:  # type: ignore[attr-defined]  # noqa: ASYNC110
                    await asyncio.sleep(0)
                await asyncio.sleep(5)
                running.cancel()
            with pytest.raises((DeadlineExceeded, asyncio.CancelledError)):
                await running
            slow[0] = 9
            await asyncio.sleep(100)
            assert (await runtime.resume(ID, body)).value == "done"
            assert len((await the_run(runtime.store)).calls) == 1

    run_in_virtual_time(run())
