"""The order of outcomes: a resumed run gets the recorded ones in the order in which they came."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import DeadlineExceeded, Runtime, best_so_far, flow, gather, llm, step, within
from orchestrator.durability.outcome_order import SETTLING_PASSES, OutcomeOrder
from store.records import Status
from tests.strategies import examples
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import Boom, recorded, scripted_runtime
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.virtual_time import in_virtual_time, timed_runtime


@step
async def waiting(name: str, pauses_s: list[float]) -> str:
    for pause_s in pauses_s:
        await asyncio.sleep(pause_s)
    return name


@step
async def chosen(names: list[str]) -> list[str]:
    return names


async def by_wait() -> list[str]:
    tasks = {asyncio.create_task(waiting(*each)) for each in PAUSES_S.items()}
    names: list[str] = []
    while tasks:
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        names += await chosen(sorted(task.result() for task in done))
    return names


async def by_as_completed() -> list[str]:
    ends = asyncio.as_completed([waiting(*each) for each in PAUSES_S.items()])
    return [(await chosen([await end]))[0] for end in ends]


async def by_shared_list() -> list[str]:
    names: list[str] = []

    async def branch(name: str, pauses_s: list[float]) -> None:
        names.append(await waiting(name, pauses_s))

    await gather(*[branch(*each) for each in PAUSES_S.items()])
    return await chosen(names)


async def by_queue() -> list[str]:
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def produce(name: str, pauses_s: list[float]) -> None:
        await queue.put(await waiting(name, pauses_s))

    tasks = [asyncio.create_task(produce(*each)) for each in PAUSES_S.items()]
    names = [(await chosen([await queue.get()]))[0] for _ in tasks]
    await asyncio.gather(*tasks)
    return names


async def by_losers_cancelled() -> list[str]:
    tasks = [asyncio.create_task(waiting(*each)) for each in PAUSES_S.items()]
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    return await chosen([task.result() for task in done])


PAUSES_S = {"a": [0.03], "b": [0.015], "c": [0.0]}  # seconds: the last one begun ends first

SHAPES = [by_wait, by_as_completed, by_shared_list, by_queue, by_losers_cancelled]


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_same_step_is_first_in_a_resumed_run(
    runtime: Runtime, shape: Callable[[], Awaitable[list[str]]]
) -> None:
    seen: list[list[str]] = []
    raise_once = RaiseOnce()

    @flow
    async def racing() -> list[str]:
        names = await shape()
        seen.append(names)
        raise_once()
        return names

    await run_until_interrupted(runtime, racing)
    result = await runtime.resume(ID, racing)
    assert seen[0] == seen[1] == result.value
    assert result.value[0] == "c"


@given(
    chains=st.lists(
        st.lists(st.lists(st.sampled_from([0, 0, 0, 0.001, 0.002]), max_size=4), min_size=1),
        min_size=2,
        max_size=4,
    ),
    num_before=st.integers(0, 8),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_resumed_run_sees_the_outcomes_in_the_order_in_which_they_came(
    chains: list[list[list[float]]], num_before: int
) -> None:
    """For chains of steps in parallel, interrupted after any number of outcomes."""
    rounds: list[list[str]] = []  # in each: what ended together

    async def chain(index: int, steps: list[list[float]], ended: list[str]) -> None:
        for place, pauses_s in enumerate(steps):
            ended.append(await waiting(f"{index}.{place}", pauses_s))

    def body_until(num_outcomes: int) -> Callable[[], Awaitable[None]]:
        async def racing() -> None:
            ended: list[str] = []
            tasks = {asyncio.create_task(chain(i, steps, ended)) for i, steps in enumerate(chains)}
            try:
                while tasks:
                    _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    rounds.append(list(ended))
                    if len(ended) >= num_outcomes:
                        raise Boom
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                rounds.append(list(ended))

        return racing

    async def run_and_resume() -> None:
        with TemporaryDirectory() as folder:
            async with scripted_runtime(Path(folder)) as runtime:
                first = flow(name="racing")(body_until(num_before))
                try:
                    await runtime.run(first.options(run_id=ID))
                except Boom:
                    before = rounds.copy()
                    rounds.clear()
                    await runtime.resume(ID, flow(name="racing")(body_until(1000)))
                    num_seen = len(before[-1])
                    assert rounds[-1][:num_seen] == before[-1]
                    assert rounds[: len(before) - 1] == before[:-1]

    asyncio.run(run_and_resume())


async def test_outcomes_that_come_at_the_same_moment_reach_the_flow_one_by_one(
    runtime: Runtime,
) -> None:
    """Else a resumed run, in which they come one by one, would act on the first alone."""
    ready = asyncio.Event()
    num_done: list[int] = []

    @step
    async def when_ready(index: int) -> int:
        await ready.wait()
        return index

    @flow
    async def racing() -> None:
        tasks = {asyncio.create_task(when_ready(index)) for index in range(3)}
        asyncio.get_running_loop().call_later(0.01, ready.set)
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            num_done.append(len(done))

    await runtime.run(racing)
    assert num_done == [1, 1, 1]


async def test_a_recorded_outcome_waits_for_an_earlier_step_that_begins_later(
    runtime: Runtime,
) -> None:
    """The flow waits for something else before it begins that step."""
    seen: list[str] = []
    raise_once = RaiseOnce()

    @flow
    async def racing() -> None:
        async def late() -> None:
            await asyncio.sleep(0.05)
            seen.append(await waiting("late", []))

        async def slow() -> None:
            seen.append(await waiting("slow", [0.1]))

        await gather(slow(), late())
        raise_once()

    await run_until_interrupted(runtime, racing)
    await runtime.resume(ID, racing)
    assert seen == ["late", "slow"] * 2


async def test_new_outcomes_come_after_the_recorded_ones(runtime: Runtime) -> None:
    seen: list[str] = []
    raise_once = RaiseOnce()

    @step
    async def faster_again() -> str:
        await asyncio.sleep(0 if seen else 1)
        return "new"

    @flow
    async def racing() -> None:
        async def first() -> None:
            seen.append(await faster_again())

        async def second() -> None:
            for _ in range(3):
                await asyncio.sleep(0.01)
                seen.append(await waiting("recorded", []))
            raise_once()

        await gather(first(), second())

    await run_until_interrupted(runtime, racing)
    await runtime.resume(ID, racing)
    assert seen == ["recorded"] * 3 + ["recorded"] * 3 + ["new"]


async def test_a_step_that_ended_the_run_is_tried_again_in_its_place(runtime: Runtime) -> None:
    """It does not wait for what handled its error, nor what is within it for itself."""
    fail = RaiseOnce()

    @step
    async def failing() -> str:
        text = await llm("inner")
        fail()
        return text

    @flow
    async def racing() -> tuple[str, str]:
        async def branch() -> str:
            try:
                return await failing()
            except Boom:
                await waiting("clean-up", [])
                raise

        async def other() -> str:
            return await waiting("other", [])

        results = await asyncio.gather(branch(), other(), return_exceptions=True)
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0], str(results[1])

    await run_until_interrupted(runtime, racing)
    result = await runtime.resume(ID, racing)
    assert result.value == ("all is well", "other")


async def test_a_step_that_the_flow_no_longer_begins_is_not_waited_for_without_end(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    raise_once = RaiseOnce()
    is_first = True

    @flow
    async def racing() -> str:
        nonlocal is_first
        others = asyncio.create_task(waiting("other", [0.01])) if is_first else None
        is_first = False
        slow = asyncio.create_task(waiting("slow", [0.02]))
        name = await slow
        if others is not None:
            await others
        raise_once()
        return name

    await run_until_interrupted(runtime, racing)
    with caplog.at_level(logging.WARNING, logger="orchestrate"):
        result = await runtime.resume(ID, racing)
    assert result.value == "slow"
    assert "is not begun again" in caplog.text


@in_virtual_time
async def test_a_deadline_that_has_passed_cuts_off_no_recorded_outcome(tmp_path: Path) -> None:
    """A run that is resumed after its deadline has the result of what was done before."""
    raise_once = RaiseOnce()

    @flow(deadline=1.0, on_deadline="best_so_far")
    async def collecting() -> list[str]:
        found: list[str] = []

        async def branch(name: str) -> None:
            for place in range(3):
                found.append(await waiting(f"{name}{place}", [0.001]))
                best_so_far(sorted(found))

        await gather(*[branch(name) for name in "abcd"])
        raise_once()
        await waiting("more", [3.0])
        return found

    async with timed_runtime(tmp_path) as runtime:
        await run_until_interrupted(runtime, collecting)
        await asyncio.sleep(1.1)
        result = await runtime.resume(ID, collecting)
    assert result.value == sorted(f"{name}{place}" for name in "abcd" for place in range(3))


async def test_a_try_that_a_resumed_run_does_not_need_is_not_waited_for(runtime: Runtime) -> None:
    fail, raise_once = RaiseOnce(ConnectionError("once")), RaiseOnce()

    @step(retries=1)
    async def flaky() -> str:
        name = await waiting("inner", [])
        fail()
        raise_once()
        return name

    @flow
    async def trying() -> str:
        return await flaky()

    # Both tries fail; that ended the run, so that a resumed run tries again, and succeeds at once.
    await run_until_interrupted(runtime, trying)
    result = await runtime.resume(ID, trying)
    history = await recorded(runtime.store, ID)
    assert result.value == "inner"
    assert history.run.status is Status.COMPLETED


@in_virtual_time
async def test_a_step_cut_off_by_a_limit_stays_cut_off(tmp_path: Path) -> None:
    """Its cancellation is no outcome: it is begun again, and cut off again by the same limit."""
    raise_once = RaiseOnce()

    @flow
    async def limited() -> str:
        try:
            async with within(0.05):
                return await waiting("slow", [0.2])
        except DeadlineExceeded:
            name = await waiting("fallback", [])
        raise_once()
        return name

    async with timed_runtime(tmp_path) as runtime:
        await run_until_interrupted(runtime, limited)
        assert (await runtime.resume(ID, limited)).value == "fallback"


async def test_a_sequence_of_steps_is_replayed_without_a_pass_of_the_event_loop(
    runtime: Runtime,
) -> None:
    """Settling is for outcomes that different tasks wait for."""
    raise_once = RaiseOnce()
    num_passes: list[int] = []

    @flow
    async def sequence() -> None:
        is_over, passes = False, 0

        def count() -> None:
            nonlocal passes
            passes += 1
            if not is_over:
                asyncio.get_running_loop().call_soon(count)

        asyncio.get_running_loop().call_soon(count)
        for index in range(20):
            await waiting(str(index), [])
        is_over = True
        num_passes.append(passes)
        raise_once()

    await run_until_interrupted(runtime, sequence)
    await runtime.resume(ID, sequence)
    assert num_passes[1] < SETTLING_PASSES


async def test_no_branch_waits_for_a_step_that_is_tried_again(runtime: Runtime) -> None:
    """The step that ended the run needs what the other branch does; so it must not hold that."""
    ready = asyncio.Event()
    fail = RaiseOnce()

    @step
    async def needs_the_other() -> str:
        fail()
        await ready.wait()
        return "ready"

    @flow
    async def both() -> list[str]:
        async def other() -> str:
            names = [await waiting(str(index), [0.001]) for index in range(3)]
            ready.set()
            return names[-1]

        return list(await gather(needs_the_other(), other()))

    await run_until_interrupted(runtime, both)
    async with asyncio.timeout(30):
        result = await runtime.resume(ID, both)
    assert result.value == ["ready", "2"]


@in_virtual_time
async def test_a_limit_in_one_branch_does_not_expire_while_another_tries_again(
    tmp_path: Path,
) -> None:
    fail = RaiseOnce()

    @step
    async def slow_again() -> str:
        fail()
        await asyncio.sleep(0.5)
        return "slow"

    @flow
    async def both() -> list[str]:
        async def other() -> str:
            try:
                async with within(0.25):
                    return await waiting("in time", [0.01])
            except DeadlineExceeded:
                return "too late"

        return list(await gather(slow_again(), other()))

    async with timed_runtime(tmp_path) as runtime:
        await run_until_interrupted(runtime, both)
        assert (await runtime.resume(ID, both)).value == ["slow", "in time"]


async def test_a_recorded_outcome_reaches_its_task_before_a_cancellation(runtime: Runtime) -> None:
    """Else it is recorded as completed, while the flow took another way."""
    ready = asyncio.Event()
    seen: list[str] = []

    @step
    async def when_ready(name: str) -> str:
        await ready.wait()
        return name

    @flow
    async def cancelling() -> list[str]:
        async def branch(name: str) -> None:
            seen.append(await when_ready(name))
            await asyncio.sleep(30)

        tasks = [asyncio.create_task(branch(name)) for name in "abc"]
        asyncio.get_running_loop().call_later(0.01, ready.set)
        while not seen:  # noqa: ASYNC110 - the outcomes come one by one
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        return list(seen)

    result = await runtime.run(cancelling.options(run_id=ID))
    steps = (await recorded(runtime.store, ID)).journal.values()
    completed = [each.name for each in steps if each.status is Status.COMPLETED]
    assert len(completed) == len(result.value)


@pytest.mark.parametrize("num_cancellations", [1, 2, 3])
@pytest.mark.parametrize("after_passes", range(SETTLING_PASSES + 5))
async def test_an_outcome_whose_task_is_cancelled_while_it_waits_stops_no_other(
    after_passes: int, num_cancellations: int
) -> None:
    """Whenever the cancellation comes, in the very pass in which the outcome would have as well."""
    order = OutcomeOrder()

    async def ends(path: str) -> None:
        order.number(path)
        try:
            await order.turn(path)
        finally:
            order.drop(path)

    await ends("first")  # so that what follows has to wait
    tasks = [asyncio.create_task(ends(path)) for path in ("a", "b", "c")]
    for _ in range(after_passes):
        await asyncio.sleep(0)
    for _ in range(num_cancellations):
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
    for _ in range(10 * SETTLING_PASSES):
        await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [True, True, True]
