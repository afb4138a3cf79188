"""Calls that were cut off are nodes of their run's graph: later calls come after them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from orchestrator import (
    BudgetExceeded,
    DeadlineExceeded,
    Flow,
    budget,
    flow,
    gather,
    llm,
    llm_stream,
    step,
    tool,
    within,
)
from orchestrator.testing import ScriptedEngine
from patterns.stages import Stage
from serving.generation import GenerationRequest
from store.records import Status
from tests.unit.orchestrator.interrupted_runs import RaiseOnce
from tests.unit.orchestrator.learning_samples import stages_of
from tests.unit.orchestrator.orchestrator_samples import NEVER_S, Boom, Recorded, recorded
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.virtual_time import in_virtual_time, timed_runtime

LIMIT_S = 10.0


def script(request: GenerationRequest) -> str:
    """A long answer to "slow", a short one to anything else."""
    return " and" * 1000 if "slow" in str(request.prompt) else "all is well"


def engine() -> ScriptedEngine:
    return ScriptedEngine(script, token_s=0.1)


@tool
async def look_up() -> None:
    await asyncio.sleep(1)


async def in_parallel() -> None:
    """Two calls that the limit cuts off, and a tool that it does not."""
    await gather(llm("slow one"), llm("slow two"), look_up())


async def with_limit(work: Callable[[], Awaitable[object]] = in_parallel) -> None:
    try:
        async with within(LIMIT_S):
            await work()
    except DeadlineExceeded:
        pass


def kinds(stages: tuple[Stage, ...]) -> list[list[tuple[str, int]]]:
    return [[(call.identity, call.num_calls) for call in stage.calls] for stage in stages]


def stages_by_identity(record: Recorded) -> list[tuple[str, int]]:
    return [(call.identity, call.stage) for call in record.calls]


async def interrupted_and_resumed(
    folder: Path, body: Flow[[], object], *, after_s: float = 0.0
) -> Recorded:
    """The records of a run that fails once with Boom, and is resumed after a while."""
    async with timed_runtime(folder, engine()) as runtime:
        with pytest.raises(Boom):
            await runtime.run(body.options(run_id=ID))
        await asyncio.sleep(after_s)
        await runtime.resume(ID, body)
        return await recorded(runtime.store, ID)


async def cancelled_and_resumed(
    folder: Path, body: Flow[[], object], *, after_s: float
) -> Recorded:
    """The records of a run that is cancelled after a while, and resumed at once."""
    async with timed_runtime(folder, engine()) as runtime:
        running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
        await asyncio.sleep(after_s)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await runtime.resume(ID, body)
        return await recorded(runtime.store, ID)


@in_virtual_time
async def test_a_gather_that_a_limit_cuts_off_is_a_stage_of_its_own(tmp_path: Path) -> None:
    """The pattern has its calls, with the time that they took, and matches the next run."""

    @flow(name="f", deadline=100)
    async def body() -> None:
        await llm("first")
        await with_limit()
        await llm("last")

    async with timed_runtime(tmp_path, engine()) as runtime:
        result = await runtime.run(body)
        record = await recorded(runtime.store, result.run_id)
        other = await runtime.run(body)
        learned = await stages_of(runtime.store, other.run_id)
    assert [call.stage for call in record.calls] == [0, 1, 1, 1, 2]
    assert record.edges == {(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)}
    assert kinds(record.pattern.stages) == [
        [("script:f", 1)],
        [("look-up", 1), ("script:f", 2)],
        [("script:f", 1)],
    ]
    middle = record.pattern.stages[1]
    assert middle.seconds == pytest.approx(LIMIT_S, rel=0.02)
    assert middle.input_tokens > 0
    assert (result.usage.calls, result.usage.output_tokens) == (2, 6)  # as before: those answered
    assert [stage.source for stage in learned] == ["learned"] * 3
    assert [stage.num_matches for stage in learned] == [1] * 3


@pytest.mark.parametrize("after_s", [0.0, 50.0])
@pytest.mark.parametrize("is_step", [False, True])
@in_virtual_time
async def test_a_resumed_run_has_the_stages_of_calls_that_were_cut_off_before(
    tmp_path: Path, is_step: bool, after_s: float
) -> None:
    """Also if the limit and the calls are in a step, which is replayed as a whole."""
    raise_once = RaiseOnce()
    limited = step(name="limited")(with_limit) if is_step else with_limit

    @flow(name="f", deadline=1000)
    async def body() -> None:
        await limited()
        raise_once()
        await llm("last")

    record = await interrupted_and_resumed(tmp_path, body, after_s=after_s)
    assert [call.stage for call in record.calls] == [0, 0, 0, 1]
    assert record.edges == {(0, 3), (1, 3), (2, 3)}
    assert [sum(n for _, n in calls) for calls in kinds(record.pattern.stages)] == [3, 1]
    assert record.pattern.stages[0].seconds == pytest.approx(LIMIT_S, rel=0.02)
    assert record.pattern.stages[0].input_tokens > 0


@in_virtual_time
async def test_a_step_that_is_cut_off_again_has_its_calls_before_what_follows(
    tmp_path: Path,
) -> None:
    """The limit passes again before the resumed run could begin the calls within the step."""
    raise_once = RaiseOnce()

    @step
    async def two_calls() -> None:
        await llm("first")
        await llm("slow")

    @flow(name="f", deadline=1000)
    async def body() -> None:
        await with_limit(two_calls)
        raise_once()
        await llm("last")

    record = await interrupted_and_resumed(tmp_path, body)
    assert stages_by_identity(record) == [
        *(("script:two-calls", 0), ("script:two-calls", 1), ("script:f", 2)),
    ]
    assert record.edges == {(0, 1), (1, 2)}


@in_virtual_time
async def test_a_call_that_a_resumed_run_makes_again_counts_once(tmp_path: Path) -> None:
    """The run was cancelled during it: no limit had passed, and nothing came after it."""

    @flow(name="f", deadline=1000)
    async def body() -> None:
        await gather(llm("one"), llm("slow two"))
        await llm("last")

    record = await cancelled_and_resumed(tmp_path, body, after_s=20)
    statuses = [call.status for call in record.calls]
    assert statuses == [Status.COMPLETED, Status.CANCELLED, Status.COMPLETED, Status.COMPLETED]
    assert [call.stage for call in record.calls] == [0, 0, 0, 1]
    assert record.edges == {(0, 3), (2, 3)}
    assert kinds(record.pattern.stages) == [[("script:f", 2)], [("script:f", 1)]]


@in_virtual_time
async def test_a_branch_that_is_cut_off_again_by_the_same_failure_counts_once(
    tmp_path: Path,
) -> None:
    """A resumed run begins it anew, until the recorded failure reaches the flow."""
    raise_once = RaiseOnce()

    @tool(effects="pure")
    async def fails() -> None:
        await asyncio.sleep(1)
        raise LookupError

    @tool(effects="pure")
    async def slow() -> None:
        await asyncio.sleep(NEVER_S)

    @flow(name="f", deadline=1000)
    async def body() -> None:
        try:
            await gather(slow(), fails())
        except LookupError:
            await llm("in place of it")
        raise_once()
        await llm("last")

    record = await interrupted_and_resumed(tmp_path, body)
    assert kinds(record.pattern.stages) == [
        *([("slow", 1)], [("script:f", 1)], [("script:f", 1)]),
    ]
    assert record.pattern.edges == ((0, 1), (1, 2))


@in_virtual_time
async def test_a_retry_after_a_timeout_is_a_stage_of_its_own_and_after_an_error_is_not(
    tmp_path: Path,
) -> None:
    failures = ["time", "error"]

    @tool(effects="pure")
    async def flaky() -> None:
        if failures and failures.pop(0) == "error":
            raise LookupError
        await asyncio.sleep(NEVER_S if failures else 0)

    @flow(name="f", deadline=1000)
    async def body() -> None:
        await step(retries=2, timeout=LIMIT_S, name="tries")(flaky)()

    async with timed_runtime(tmp_path, engine()) as runtime:
        result = await runtime.run(body)
        record = await recorded(runtime.store, result.run_id)
    assert [(call.status, call.stage) for call in record.calls] == [
        *((Status.CANCELLED, 0), (Status.FAILED, 1), (Status.COMPLETED, 1)),
    ]
    assert len(record.pattern.stages) == 2


@in_virtual_time
async def test_a_try_that_a_resumed_run_completes_counts_in_place_of_the_one_cut_off(
    tmp_path: Path,
) -> None:
    """In a resumed run a try has its whole timeout again. The second try is not made again."""
    takes_s = iter([NEVER_S, NEVER_S, 1.0])

    @tool(effects="pure")
    async def flaky() -> None:
        await asyncio.sleep(next(takes_s))

    @flow(name="f", deadline=1000)
    async def body() -> None:
        await step(retries=1, timeout=LIMIT_S, name="tries")(flaky)()
        await llm("last")

    record = await cancelled_and_resumed(tmp_path, body, after_s=1.5 * LIMIT_S)
    statuses = [call.status for call in record.calls if call.identity == "flaky"]
    assert statuses == [Status.CANCELLED, Status.CANCELLED, Status.COMPLETED]
    assert kinds(record.pattern.stages)[-1] == [("script:f", 1)]
    assert sum(node.identity == "flaky" for node in record.pattern.nodes) == 2


@pytest.mark.parametrize("is_resumed", [False, True])
@in_virtual_time
async def test_what_follows_an_answer_that_was_left_early_comes_after_it(
    tmp_path: Path, is_resumed: bool
) -> None:
    raise_once = RaiseOnce()
    if not is_resumed:
        raise_once.error = None

    @flow(name="f", deadline=1000)
    async def body() -> None:
        async for _ in llm_stream("slow"):
            break
        await look_up()
        raise_once()
        await llm("last")

    if is_resumed:
        record = await interrupted_and_resumed(tmp_path, body)
    else:
        async with timed_runtime(tmp_path, engine()) as runtime:
            await runtime.run(body.options(run_id=ID))
            record = await recorded(runtime.store, ID)
    assert stages_by_identity(record) == [("script:f", 0), ("look-up", 1), ("script:f", 2)]
    assert record.edges == {(0, 1), (1, 2)}
    assert record.pattern.stages[0].output_tokens == 1


@in_virtual_time
async def test_what_follows_a_stream_that_a_limit_cut_off_comes_after_it(tmp_path: Path) -> None:
    async def read() -> None:
        async for _ in llm_stream("slow"):
            pass

    @flow(name="f", deadline=1000)
    async def body() -> None:
        await with_limit(read)
        await llm("last")

    async with timed_runtime(tmp_path, engine()) as runtime:
        result = await runtime.run(body)
        record = await recorded(runtime.store, result.run_id)
    assert [call.stage for call in record.calls] == [0, 1]
    assert record.edges == {(0, 1)}


@in_virtual_time
async def test_what_follows_calls_that_a_budget_cut_off_comes_after_them(tmp_path: Path) -> None:
    async def late() -> None:
        await asyncio.sleep(5)
        await llm("one too many")

    @flow(name="f", deadline=1000)
    async def body() -> None:
        try:
            async with budget(calls=1):
                await gather(llm("slow"), late())
        except BudgetExceeded:
            await llm("last")

    async with timed_runtime(tmp_path, engine()) as runtime:
        result = await runtime.run(body)
        record = await recorded(runtime.store, result.run_id)
    assert [(call.status, call.stage) for call in record.calls] == [
        *((Status.CANCELLED, 0), (Status.COMPLETED, 1)),
    ]


@pytest.mark.parametrize("after_s", [0.0, 60.0], ids=["at once", "later"])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "in parallel"])
@in_virtual_time
async def test_nested_limits_that_have_passed_cut_a_resumed_run_off_in_the_order_in_which_they_did(
    tmp_path: Path, together: bool, after_s: float
) -> None:
    once = RaiseOnce()

    @flow(name="f", deadline=1000)
    async def nested() -> None:
        try:
            async with within(20):
                try:
                    async with within(5):
                        await (gather(llm("slow one"), llm("quick")) if together else llm("slow"))
                except DeadlineExceeded:
                    await llm("after the inner limit")
                await llm("slow two")
        except DeadlineExceeded:
            await llm("after the outer limit")
        once()
        await llm("at the end")

    record = await interrupted_and_resumed(tmp_path, nested, after_s=after_s)

    assert record.run.status is Status.COMPLETED
    assert [call.stage for call in record.calls] == [0, *([0] if together else []), 1, 2, 3, 4]
