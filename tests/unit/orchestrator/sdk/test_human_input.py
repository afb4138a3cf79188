"""Questions to a human: asked once, answered by another process, answers kept for a resume."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import (
    DeadlineExceeded,
    OutsideRun,
    best_so_far,
    flow,
    gather,
    input_required,
    step,
    within,
)
from orchestrator.events import Event, InputRequired
from orchestrator.sdk.human_input import POLL_S
from store.records import Status
from tests.strategies import examples
from tests.unit.orchestrator.orchestrator_samples import Boom, law, recorded
from tests.unit.orchestrator.sdk.human_input_samples import (
    ID,
    answer,
    answer_ended_run,
    questions_of,
)
from tests.unit.orchestrator.virtual_time import run_in_virtual_time, timed_runtime


async def test_outside_a_flow_it_raises_outside_run() -> None:
    with pytest.raises(OutsideRun, match=r"input_required\(\)"):
        await input_required("well?")


def test_a_question_is_recorded_and_emitted_and_its_answer_is_the_result(tmp_path: Path) -> None:
    @step
    async def confirm() -> str:
        return await input_required("may I?")

    @flow
    async def body() -> str:
        return await confirm()

    async def run() -> None:
        events: list[Event] = []
        async with timed_runtime(tmp_path, on_event=events.append) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            [question] = await questions_of(runtime.store)
            assert (question.path, question.name) == ("confirm/input", "may I?")
            assert question.status is Status.RUNNING
            await asyncio.sleep(1000)  # without a deadline it waits forever
            assert not running.done()
            await answer(runtime.store, question.path, "you may")
            assert (await running).value == "you may"
            [event] = [event for event in events if isinstance(event, InputRequired)]
            assert (event.run_id, event.path, event.question) == (ID, "confirm/input", "may I?")
            assert (await recorded(runtime.store, ID)).still_running() == []

    run_in_virtual_time(run())


@settings(law, max_examples=examples(25))
@given(after_s=st.floats(0, 100))
def test_an_answer_is_found_within_one_poll_interval(after_s: float) -> None:
    @flow
    async def body() -> str:
        return await input_required("well?")

    async def run() -> None:
        with TemporaryDirectory() as folder:
            async with timed_runtime(Path(folder)) as runtime:
                running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
                [question] = await questions_of(runtime.store)
                await asyncio.sleep(after_s)
                answered_s = asyncio.get_running_loop().time()
                await answer(runtime.store, question.path, "yes")
                assert (await running).value == "yes"
                assert asyncio.get_running_loop().time() - answered_s <= POLL_S + 1e-6

    run_in_virtual_time(run())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_questions_of_parallel_branches_are_answered_independently(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    @flow
    async def body() -> list[str]:
        return list(await gather(input_required("first?"), input_required("second?")))

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            questions = sorted(await questions_of(runtime.store, 2), key=lambda each: each.path)
            assert [each.name for each in questions] == ["first?", "second?"]
            for number in order:
                assert not running.done()
                await answer(runtime.store, questions[number].path, f"answer {number}")
                await asyncio.sleep(2 * POLL_S)
            assert (await running).value == ["answer 0", "answer 1"]

    run_in_virtual_time(run())


def test_the_same_question_asked_twice_needs_two_answers(tmp_path: Path) -> None:
    @flow
    async def body() -> str:
        return await input_required("well?") + await input_required("well?")

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            for count, text in [(1, "a"), (2, "b")]:
                questions = await questions_of(runtime.store, count)
                await answer(runtime.store, questions[-1].path, text)
            assert (await running).value == "ab"

    run_in_virtual_time(run())


@pytest.mark.parametrize("limit", ["run", "block"])
def test_a_deadline_that_passes_before_the_answer_ends_the_question(
    tmp_path: Path, limit: str
) -> None:
    @flow(deadline=10 if limit == "run" else None)
    async def body() -> str:
        if limit == "run":
            return await input_required("well?")
        async with within(10):
            return await input_required("well?")

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            with pytest.raises(DeadlineExceeded):
                await runtime.run(body.options(run_id=ID))
            [question] = await questions_of(runtime.store)
            assert question.status is Status.CANCELLED
            assert (await recorded(runtime.store, ID)).run.error_type == "DeadlineExceeded"

    run_in_virtual_time(run())


def test_a_flow_may_return_its_best_so_far_if_the_answer_is_late(tmp_path: Path) -> None:
    @flow(deadline=10, on_deadline="best_so_far")
    async def body() -> str:
        best_so_far("no answer")
        return await input_required("well?")

    async def run() -> str:
        async with timed_runtime(tmp_path) as runtime:
            return (await runtime.run(body)).value

    assert run_in_virtual_time(run()) == "no answer"


@pytest.mark.parametrize("how", ["deadline", "cancelled"])
def test_an_answer_that_comes_just_before_the_end_does_not_change_how_the_run_ends(
    tmp_path: Path, how: str
) -> None:
    """The run ended before its next poll. The answer is in the store, and a resume finds it."""

    @flow
    async def body() -> str:
        if how == "cancelled":
            return await input_required("well?")
        async with within(10.1):
            return await input_required("well?")

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            [question] = await questions_of(runtime.store)
            await asyncio.sleep(10.05)  # it polls at 10 and 10.5 s
            await answer(runtime.store, question.path, "yes")
            if how == "cancelled":
                running.cancel()
            with pytest.raises(asyncio.CancelledError if how == "cancelled" else DeadlineExceeded):
                await running
            [question] = await questions_of(runtime.store)
            assert question.status is Status.COMPLETED
            assert (await runtime.resume(ID, body)).value == "yes"

    run_in_virtual_time(run())


def test_an_answer_given_after_the_run_ended_is_found_on_resume(tmp_path: Path) -> None:
    done: list[str] = []

    @step
    async def prepare() -> None:
        done.append("prepared")

    @flow
    async def body() -> str:
        await prepare()
        return await input_required("well?")

    async def run() -> None:
        events: list[Event] = []
        async with timed_runtime(tmp_path, on_event=events.append) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            [question] = await questions_of(runtime.store)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await answer_ended_run(runtime.store, question.path, "yes")
            events.clear()
            assert (await runtime.resume(ID, body)).value == "yes"
            assert not any(isinstance(event, InputRequired) for event in events)
        assert done == ["prepared"]

    run_in_virtual_time(run())


def test_a_resumed_run_asks_only_unanswered_questions_again(tmp_path: Path) -> None:
    @flow
    async def body() -> list[str]:
        return list(await gather(input_required("first?"), input_required("second?")))

    async def run() -> None:
        events: list[Event] = []
        async with timed_runtime(tmp_path, on_event=events.append) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            first, second = sorted(await questions_of(runtime.store, 2), key=lambda each: each.path)
            await answer(runtime.store, first.path, "a")
            await asyncio.sleep(2 * POLL_S)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            events.clear()
            resumed = asyncio.create_task(runtime.resume(ID, body))
            while not any(isinstance(event, InputRequired) for event in events):  # noqa: ASYNC110
                await asyncio.sleep(0)
            await answer(runtime.store, second.path, "b")
            assert (await resumed).value == ["a", "b"]
            record = await recorded(runtime.store, ID)
        [event] = [event for event in events if isinstance(event, InputRequired)]
        assert event.question == "second?"
        assert record.journal[first.path].attempts == 1
        assert record.journal[second.path].attempts == 2
        assert record.still_running() == []

    run_in_virtual_time(run())


@pytest.mark.parametrize("durable", [True, False])
def test_an_answer_given_before_a_resumed_run_reaches_its_question_is_used(
    tmp_path: Path, durable: bool
) -> None:
    """The resume had read the question's record before it was answered."""
    resumed_event, answered_event = asyncio.Event(), asyncio.Event()
    times = 0

    @flow
    async def body() -> str:
        nonlocal times
        times += 1
        if times == 2:
            resumed_event.set()
            await answered_event.wait()
        return await input_required("well?")

    async def run() -> None:
        events: list[Event] = []
        async with timed_runtime(tmp_path, durable=durable, on_event=events.append) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            [question] = await questions_of(runtime.store)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            resumed = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            await resumed_event.wait()
            await answer_ended_run(runtime.store, question.path, "yes")
            answered_event.set()
            async with asyncio.timeout(100):
                assert (await resumed).value == "yes"
            assert (await recorded(runtime.store, ID)).still_running() == []
        assert len([event for event in events if isinstance(event, InputRequired)]) == 1

    run_in_virtual_time(run())


def test_a_failing_branch_cancels_the_question_of_another_branch(tmp_path: Path) -> None:
    async def fails() -> str:
        await asyncio.sleep(1)
        raise Boom("why")

    @flow
    async def body() -> list[str]:
        return list(await gather(input_required("well?"), fails()))

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            with pytest.raises(Boom):
                await runtime.run(body.options(run_id=ID))
            [question] = await questions_of(runtime.store)
        assert question.status is Status.CANCELLED

    run_in_virtual_time(run())


def test_a_run_that_is_not_durable_can_ask_questions(tmp_path: Path) -> None:
    @flow
    async def body() -> str:
        return await input_required("well?")

    async def run() -> None:
        async with timed_runtime(tmp_path, durable=False) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            [question] = await questions_of(runtime.store)
            await answer(runtime.store, question.path, "yes")
            assert (await running).value == "yes"

    run_in_virtual_time(run())
