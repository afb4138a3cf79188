"""Flows, steps and tools: where they execute, their results and errors, and their records."""

from __future__ import annotations

import asyncio
import functools
import threading
from contextvars import ContextVar

import pytest

from orchestrator import (
    Flow,
    Runtime,
    flow,
    gather,
    has_deadline,
    llm,
    remaining,
    step,
    tool,
    within,
)
from orchestrator.durability.identity import checked_name
from orchestrator.errors import (
    ArgumentsDiffer,
    DeadlineExceeded,
    InvalidDuration,
    InvalidRunId,
    OutsideRun,
)
from orchestrator.execution.context import current_context_or_none
from store.records import CallKind, CallRecord, RunRecord, Status, StepRecord
from tests.unit.orchestrator.orchestrator_samples import Boom, answer_ok, ask, recorded, the_run

city: ContextVar[str] = ContextVar("city", default="nowhere")


@step
async def shout(text: str, *, times: int = 1) -> str:
    """The text in upper case."""
    return text.upper() * times


@flow
async def shouting(text: str) -> str:
    return await shout(text, times=2)


async def test_a_flow_awaited_in_an_open_runtime_is_a_run_in_it(runtime: Runtime) -> None:
    assert await shouting("a") == "AA"
    record = await the_run(runtime.store)
    assert (record.run.flow, record.run.status) == ("shouting", Status.COMPLETED)


async def test_a_result_has_the_value_the_run_id_the_deadline_and_the_elapsed_time(
    runtime: Runtime,
) -> None:
    result = await runtime.run(shouting.options(deadline="1h", run_id="mine"), "b")
    assert (result.value, result.run_id, result.deadline_s) == ("BB", "mine", 3600.0)
    assert result.in_time
    assert result.stages == ()
    run = (await recorded(runtime.store, "mine")).run
    assert run.elapsed_s == result.elapsed_s
    assert run.deadline_s == 3600.0
    assert (run.engine, run.model) == ("scripted", "script")


async def test_a_used_id_with_other_arguments_is_refused_and_the_first_run_is_unchanged(
    runtime: Runtime,
) -> None:
    mine = shouting.options(run_id="mine")
    await runtime.run(mine, "a")
    before = await recorded(runtime.store, "mine")
    with pytest.raises(ArgumentsDiffer):
        await runtime.run(mine, "b")
    assert await recorded(runtime.store, "mine") == before


async def test_a_flow_within_a_flow_is_a_step_of_its_run(runtime: Runtime) -> None:
    @flow(name="inner flow")
    async def inner() -> str:
        return await ask()

    @flow
    async def outer() -> list[str]:
        return [await inner(), await inner.options(run_id="ignored", stages=4)()]

    await outer()
    record = await the_run(runtime.store)
    assert record.run.flow == "outer"
    assert set(record.steps) == {
        *("inner flow", "inner flow/ask", "inner flow#2", "inner flow#2/ask"),
    }


async def test_a_nested_flow_can_shorten_but_not_extend_the_outer_deadline(
    runtime: Runtime,
) -> None:
    @flow(deadline="1h")
    async def long() -> float:
        return remaining()

    @flow(deadline="5s")
    async def short() -> float:
        return remaining()

    @flow(deadline="1m")
    async def outer() -> tuple[float, float, float]:
        return await short(), await long(), remaining()

    short_s, long_s, outer_s = await outer()
    assert short_s <= 5
    assert outer_s <= long_s <= 60


async def test_options_change_a_copy(runtime: Runtime) -> None:
    changed = shouting.options(deadline=5, stages=3, run_id="x")
    assert (changed.deadline_s, changed.expected_stages, changed.run_id) == (5.0, 3, "x")
    assert changed.options() == changed
    assert changed.options(deadline="1h").expected_stages == 3
    assert (shouting.deadline_s, shouting.expected_stages, shouting.run_id) == (None, None, None)


@pytest.mark.parametrize("bad", ["", "0s", -1, float("nan"), "soon"])
def test_an_invalid_deadline_is_refused_when_the_flow_is_made(bad: str | float) -> None:
    with pytest.raises(InvalidDuration):
        flow(deadline=bad)(ask)
    with pytest.raises(InvalidDuration):
        shouting.options(deadline=bad)


def test_a_default_name_is_the_functions_name_with_dashes() -> None:
    async def deep_thought() -> None: ...

    assert flow(deep_thought).name == "deep-thought"
    assert flow(name="Other_Name")(deep_thought).name == "Other_Name"
    assert Flow(functools.partial(deep_thought), "p").deadline_s is None
    assert step(deep_thought).__doc__ == deep_thought.__doc__
    assert step(deep_thought).__name__ == "deep_thought"


async def test_outside_a_run_steps_and_tools_are_the_plain_functions() -> None:
    @tool
    def add(left: int, right: int) -> int:
        return left + right

    assert await shout("a") == "A"
    assert await add(1, right=2) == 3
    assert current_context_or_none() is None


async def test_functions_that_need_a_run_raise_outside_run_outside_one() -> None:
    for needs_run in (remaining, has_deadline):
        with pytest.raises(OutsideRun, match=rf"{needs_run.__name__}\(\) works only inside a flow"):
            needs_run()
    with pytest.raises(OutsideRun, match=r"llm\(\).*@flow"):
        await llm("hello?")
    with pytest.raises(OutsideRun, match=r"within\(\)"):
        async with within("1s"):
            pass


async def test_a_run_leaves_nothing_in_its_callers_context(runtime: Runtime) -> None:
    async def body() -> None:
        await ask()
        assert current_context_or_none() is not None

    await runtime.run(flow(body))
    assert current_context_or_none() is None
    with pytest.raises(OutsideRun):
        await ask()


async def test_a_plain_tool_runs_in_a_thread_and_sees_the_callers_context(
    runtime: Runtime,
) -> None:
    @tool
    def look() -> tuple[str, int]:
        return city.get(), threading.get_ident()

    @flow
    async def travel() -> list[tuple[str, int]]:
        city.set("Ulm")
        return [await look(), *(await gather(look(), look()))]

    seen = await travel()
    assert [name for name, _ in seen] == ["Ulm"] * 3
    assert threading.get_ident() not in [thread for _, thread in seen]
    record = await the_run(runtime.store)
    assert [(call.kind, call.identity) for call in record.calls] == [(CallKind.TOOL, "look")] * 3
    assert [call.step_path for call in record.calls] == ["look", "look[0]", "look[1]"]
    assert record.steps == {}


async def test_parallel_plain_tools_do_not_wait_for_each_other(runtime: Runtime) -> None:
    both = threading.Barrier(2, timeout=30)

    @tool
    def meet() -> None:
        both.wait()

    @flow
    async def meeting() -> None:
        await gather(meet(), meet())

    await meeting()


async def test_steps_and_calls_are_recorded_under_their_call_paths(runtime: Runtime) -> None:
    @tool
    async def fetch() -> str:
        return await inner()

    @step
    async def inner() -> str:
        return await llm("x")

    @step
    async def outer() -> str:
        return await fetch()

    await runtime.run(flow(name="f")(outer))
    record = await the_run(runtime.store)
    assert set(record.steps) == {"outer", "outer/fetch/inner"}
    assert [(call.identity, call.step_path) for call in record.calls] == [
        ("fetch", "outer/fetch"),
        ("script:inner", "outer/fetch/inner/llm"),
    ]


async def test_the_identity_of_a_call_outside_any_step_has_the_flows_name(runtime: Runtime) -> None:
    async def body() -> None:
        await llm("x")

    await runtime.run(flow(name="bare")(body))
    [call] = (await the_run(runtime.store)).calls
    assert (call.identity, call.step_path) == ("script:bare", "llm")


@pytest.mark.parametrize("kind", [step, tool])
async def test_an_error_is_raised_unchanged_and_its_class_is_recorded(
    runtime: Runtime, kind: object
) -> None:
    error = Boom("what the user wrote")

    @kind  # type: ignore[operator]
    async def fails() -> None:
        raise error

    with pytest.raises(Boom) as raised:
        await runtime.run(flow(name="f")(fails))
    assert raised.value is error
    record = await the_run(runtime.store)
    parts: list[RunRecord | StepRecord | CallRecord] = [record.run, *record.calls]
    parts += record.steps.values()
    assert len(parts) == 2
    for part in parts:
        assert (part.status, part.error_type, part.error_message) == (Status.FAILED, "Boom", None)
    assert record.pattern_records == []


async def test_the_messages_of_our_own_errors_are_recorded(runtime: Runtime) -> None:
    async def body() -> None:
        raise DeadlineExceeded("the test", 2.0)

    with pytest.raises(DeadlineExceeded):
        await runtime.run(flow(body))
    run = (await the_run(runtime.store)).run
    assert run.error_message == "the test did not end within its 2 s"


async def test_a_flow_that_catches_an_error_is_completed(runtime: Runtime) -> None:
    @step
    async def fails() -> None:
        raise Boom

    async def body() -> str:
        try:
            await fails()
        except Boom:
            return await ask()
        return ""

    await runtime.run(flow(body))
    record = await the_run(runtime.store)
    assert record.run.status is Status.COMPLETED
    assert {path: part.status for path, part in record.steps.items()} == {
        "fails": Status.FAILED,
        "ask": Status.COMPLETED,
    }


async def test_plain_functions_run_in_threads_with_the_context_of_their_run(
    runtime: Runtime,
) -> None:
    @step
    def plain_step(factor: int) -> tuple[int, bool]:
        return factor * threading.get_ident(), remaining() < 50

    @flow(deadline="40s")
    async def around() -> tuple[int, bool]:
        return await plain_step(1)

    @flow
    def plain_flow() -> int:
        return threading.get_ident()

    ident, has_deadline_of_run = (await runtime.run(around)).value
    assert ident != threading.get_ident()
    assert has_deadline_of_run
    assert (await runtime.run(plain_flow)).value != threading.get_ident()
    async with runtime.store.reading() as tx:
        assert {run.status for run in await tx.runs.newest()} == {Status.COMPLETED}


async def test_a_coroutine_that_a_plain_function_returns_is_awaited(runtime: Runtime) -> None:
    assert (await runtime.run(flow(lambda: ask("how?")))).value == "all is well"


async def test_methods_can_be_steps_and_tools(runtime: Runtime) -> None:
    class Agent:
        name = "Ada"

        @step
        async def greet(self, other: str) -> str:
            return f"{self.name} greets {await self.formal(other)}"

        @tool
        def formal(self, other: str) -> str:
            return f"Dr {other}"

    async def body() -> str:
        return await Agent().greet("Bob")

    assert (await runtime.run(flow(body))).value == "Ada greets Dr Bob"


def test_decorating_a_method_as_a_flow_is_refused() -> None:
    """A resume would call it without its instance."""
    with pytest.raises(TypeError, match="work is a method, but a flow must be a function"):

        class Agent:
            @flow
            async def work(self) -> None: ...


async def test_a_bound_method_can_be_a_flow(runtime: Runtime) -> None:
    class Agent:
        name = "Ada"

        async def work(self) -> str:
            return self.name

    assert (await runtime.run(flow(Agent().work))).value == "Ada"


@pytest.mark.parametrize("name", ["a\x00b", "half \ud83d"])
def test_a_flow_name_that_cannot_be_stored_is_refused(name: str) -> None:
    """It would be recorded as another name, which a resumed run would not find."""
    with pytest.raises(ValueError, match="cannot be stored"):
        flow(name=name)(ask)
    with pytest.raises(ValueError, match="cannot be stored"):
        checked_name(name)
    assert checked_name("naïve/😀") == "naïve/😀"


async def test_concurrent_flows_in_one_runtime_do_not_mix_up_their_records(
    runtime: Runtime,
) -> None:
    @flow
    async def counting(number: int) -> list[str]:
        await asyncio.sleep(0)
        return [*(await gather(*(shout(f"{number}") for _ in range(number)))), await ask()]

    runs = [counting.options(run_id=f"run-{number}") for number in range(10)]
    results = await asyncio.gather(*(runtime.run(run, n) for n, run in enumerate(runs)))
    for number, result in enumerate(results):
        assert result.value == [f"{number}"] * number + [answer_ok(None)]  # type: ignore[arg-type]
        record = await recorded(runtime.store, f"run-{number}")
        assert set(record.steps) == {"ask", *(f"shout[{place}]" for place in range(number))}
        assert record.still_running() == []


@pytest.mark.parametrize("run_id", ["", "../x", "a b", "x\n", "-x", ".", "é", "x" * 65])
def test_an_invalid_run_id_is_refused(run_id: str) -> None:
    @flow
    async def nothing() -> None: ...

    with pytest.raises(InvalidRunId):
        nothing.options(run_id=run_id)
    assert nothing.options(run_id="Nightly-2026.11_21").run_id == "Nightly-2026.11_21"
