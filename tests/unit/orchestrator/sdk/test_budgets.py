"""budget: LLM calls in a block are counted, and none begins once it is spent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator import (
    BudgetExceeded,
    DeadlineExceeded,
    Runtime,
    RunUsage,
    budget,
    flow,
    gather,
    llm,
    step,
    within,
)
from orchestrator.testing import CRASHES, Scenario, ScriptedEngine, explore
from serving.errors import RequestFailed
from serving.generation import GenerationRequest
from store.records import Status
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    answer_ok,
    ask,
    recorded,
    scripted_runtime,
    the_run,
)
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.virtual_time import in_virtual_time, timed_runtime

ANSWER_TOKENS = 3  # of "all is well", and as many words in the prompt "how is it?"


async def failure_of(folder: Path, body: Any, engine: ScriptedEngine | None = None) -> Any:
    """The BudgetExceeded in which a flow with this body ends."""
    async with scripted_runtime(folder, engine) as runtime:
        with pytest.raises(BudgetExceeded) as failure:
            await runtime.run(flow(name="spender")(body))
        record = await the_run(runtime.store)
    assert (record.run.status, record.run.error_type) == (Status.FAILED, "BudgetExceeded")
    assert record.still_running() == []
    return failure.value


async def test_no_call_begins_after_the_last_that_is_allowed(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok)

    async def body() -> None:
        async with budget(calls=2):
            for _ in range(5):
                await ask()

    failure = await failure_of(tmp_path, body, engine)
    assert len(engine.requests) == 2
    assert failure.args == ("spender", 12, None, 2, 2)
    assert "2 of 2 calls" in str(failure)


async def test_the_call_that_spends_the_tokens_ends_and_the_next_does_not_begin(
    tmp_path: Path,
) -> None:
    engine, answers = ScriptedEngine(answer_ok), list[str]()

    async def body() -> None:
        async with budget(tokens=7):
            while True:
                answers.append(await ask())

    failure = await failure_of(tmp_path, body, engine)
    assert len(answers) == len(engine.requests) == 2
    assert failure.args == ("spender", 12, 7, 2, None)


async def test_a_block_that_keeps_within_its_budget_ends_normally(tmp_path: Path) -> None:
    """Also if it has spent all of it; calls after the block are not counted."""

    @flow
    async def thrifty() -> tuple[int, int]:
        async with budget(calls=2, tokens=12) as used:
            await gather(ask(), ask())
        await ask()
        return used.calls, used.tokens

    async with scripted_runtime(tmp_path) as runtime:
        assert (await runtime.run(thrifty)).value == (2, 12)


async def test_the_calls_of_all_branches_count_and_those_in_progress_are_aborted(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(answer_ok, token_s=NEVER_S)

    async def body() -> None:
        async with budget(calls=2):
            await gather(ask(), ask(), ask())

    await failure_of(tmp_path, body, engine)
    assert len(engine.requests) == 2
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)


async def test_nothing_begins_in_a_block_that_has_exceeded_its_budget(tmp_path: Path) -> None:
    begun = list[str]()

    @step
    async def note() -> None:
        begun.append("note")

    async def body() -> None:
        async with budget(calls=0):
            try:
                await ask()
            except asyncio.CancelledError:
                await note()

    await failure_of(tmp_path, body)
    assert begun == []


async def test_a_flow_that_catches_the_error_goes_on(tmp_path: Path) -> None:
    @flow
    async def careful() -> str:
        try:
            async with budget(calls=1):
                await ask()
                await ask()
        except BudgetExceeded:
            return await ask("and now?")
        return "never"

    async with scripted_runtime(tmp_path) as runtime:
        assert (await runtime.run(careful)).value == "all is well"


@pytest.mark.parametrize(("outer", "inner", "spent"), [(1, 5, "outer"), (5, 1, "inner")])
async def test_of_nested_budgets_the_one_that_is_spent_ends_its_block(
    tmp_path: Path, outer: int, inner: int, spent: str
) -> None:
    ended = list[str]()

    @flow
    async def nested() -> None:
        try:
            async with budget(calls=outer):
                try:
                    async with budget(calls=inner):
                        await ask()
                        await ask()
                except BudgetExceeded:
                    ended.append("inner")
        except BudgetExceeded:
            ended.append("outer")

    async with scripted_runtime(tmp_path) as runtime:
        await runtime.run(nested)
    assert ended == [spent]


async def test_a_call_that_fails_counts(tmp_path: Path) -> None:
    def failing(request: GenerationRequest) -> str:
        raise RequestFailed(request.request_id, "no")

    engine = ScriptedEngine(failing)

    async def body() -> None:
        async with budget(calls=3):
            while True:
                try:
                    await ask()
                except RequestFailed:
                    continue

    await failure_of(tmp_path, body, engine)
    assert len(engine.requests) == 3


@in_virtual_time
async def test_a_deadline_within_and_around_a_budget_ends_its_own_block(tmp_path: Path) -> None:
    engine, ended = ScriptedEngine(answer_ok, token_s=NEVER_S), list[str]()

    @flow
    async def slow() -> None:
        async with budget(calls=1):
            try:
                async with within(0.05):
                    await ask()
            except DeadlineExceeded:
                ended.append("inner")
        try:
            async with within(0.05), budget(calls=1):
                await ask()
        except DeadlineExceeded:
            ended.append("outer")

    async with timed_runtime(tmp_path, engine) as runtime:
        await runtime.run(slow)
    assert ended == ["inner", "outer"]


@pytest.mark.parametrize(
    "wrong",
    [{}, {"calls": -1}, {"tokens": 1.5}, {"tokens": "9"}, {"calls": True}],
    ids=str,
)
async def test_limits_that_cannot_be_are_refused(runtime: Runtime, wrong: Any) -> None:
    @flow
    async def body() -> None:
        async with budget(**wrong):
            await ask()

    with pytest.raises(ValueError, match="budget"):
        await runtime.run(body)


# Resumed runs


@step
async def twice() -> None:
    """A step whose calls are not begun again once it is recorded."""
    await llm("one two three")
    await llm("one two three")


async def test_a_resumed_run_counts_the_calls_before(tmp_path: Path) -> None:
    """Those of a step that is replayed as a whole, too."""
    engine, raise_once = ScriptedEngine(answer_ok), RaiseOnce()

    @flow
    async def interrupted() -> None:
        async with budget(calls=4, tokens=1000):
            await twice()
            await ask()
            raise_once()
            await ask()
            await ask()

    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, interrupted)
        with pytest.raises(BudgetExceeded) as failure:
            await runtime.resume(ID, interrupted)
    assert failure.value.args == ("interrupted", 24, 1000, 4, 4)
    assert len(engine.requests) == 4


async def test_a_block_that_ended_so_does_again_when_the_run_is_resumed(tmp_path: Path) -> None:
    engine, raise_once = ScriptedEngine(answer_ok), RaiseOnce()
    ends = list[str]()

    @flow
    async def interrupted() -> None:
        try:
            async with budget(tokens=6):
                await gather(twice(), ask())
        except BudgetExceeded as error:
            ends.append(str(error))
        await ask("after that")
        raise_once()

    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, interrupted)
        before = len(engine.requests)
        await runtime.resume(ID, interrupted)
    assert ends[0] == ends[1]
    assert len(engine.requests) == before


async def test_a_run_that_ended_so_goes_on_when_it_is_given_more(tmp_path: Path) -> None:
    engine, allowed = ScriptedEngine(answer_ok), iter((1, 3))

    @flow
    async def raised() -> None:
        async with budget(calls=next(allowed)):
            await ask()
            await ask()

    async with scripted_runtime(tmp_path, engine) as runtime:
        with pytest.raises(BudgetExceeded):
            await runtime.run(raised.options(run_id=ID))
        result = await runtime.resume(ID, raised)
    assert len(engine.requests) == 2
    assert result.usage == RunUsage(prompt_tokens=6, output_tokens=6, calls=2)


@flow
async def spends_in_branches() -> str:
    """Three branches share a budget of four calls; the flow goes on after they have spent it."""
    try:
        async with budget(calls=4):
            await gather(twice(), ask("a"), twice())
    except BudgetExceeded:
        return await ask("after that")
    return "never"


def test_a_spent_budget_survives_a_crash_at_every_commit() -> None:
    scenario = Scenario(flow=spends_in_branches, engine=lambda: ScriptedEngine(answer_ok))
    report = explore(scenario, CRASHES)
    assert not report.failures, report
    assert report.num_schedules > 10


# The usage of a run


async def test_a_result_has_the_usage_of_the_calls_that_were_answered(tmp_path: Path) -> None:
    def second_fails(request: GenerationRequest) -> str:
        if request.prompt == "fail":
            raise RequestFailed(request.request_id, "no")
        return "all is well"

    engine, raise_once = ScriptedEngine(second_fails), RaiseOnce()

    @flow
    async def interrupted() -> None:
        await gather(twice(), ask())
        with pytest.raises(RequestFailed):
            await llm("fail", raw=True)
        raise_once()
        await ask()

    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, interrupted)
        result = await runtime.resume(ID, interrupted)
        loaded = await runtime.resume(ID, interrupted)
        calls = (await recorded(runtime.store, ID)).calls
    assert result.usage == loaded.usage == RunUsage(12, 0, 12, 4)
    assert result.usage.tokens == sum(
        (call.prompt_tokens or 0) + (call.output_tokens or 0) for call in calls
    )
