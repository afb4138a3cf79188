"""Resumed runs: recorded results are reused, and the run continues as it would have."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from orchestrator import (
    ArgumentsDiffer,
    DeadlineExceeded,
    ResultNotSerialisable,
    RunNotResumable,
    Runtime,
    flow,
    gather,
    llm,
    now,
    random,
    remaining,
    step,
    tool,
    uuid,
    within,
)
from orchestrator.testing import ScriptedEngine, VirtualClock
from store.errors import RunNotFound
from store.records import RunRecord, Status
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import Boom, recorded, scripted_runtime
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.virtual_time import in_virtual_time, run_in_virtual_time, timed_runtime


@dataclass(frozen=True)
class Found:
    where: str
    at: datetime


async def test_steps_with_recorded_results_are_not_executed_again(runtime: Runtime) -> None:
    num_calls: Counter[str] = Counter()
    raise_once = RaiseOnce()

    @step
    async def find(where: str) -> Found:
        num_calls[where] += 1
        return Found(where, now())

    @tool
    def count(number: int) -> dict[str, int]:
        num_calls["count"] += 1
        return {"number": number}

    @flow
    async def search() -> tuple[Found, Found, dict[str, int], str]:
        first, second = await gather(find("a"), find("b"))
        counted = await count(2)
        raise_once()
        return first, second, counted, await llm("and so?")

    await run_until_interrupted(runtime, search)
    assert isinstance(runtime.engine, ScriptedEngine)
    assert runtime.engine.requests == []
    result = await runtime.resume(ID, search)
    first, second, counted, reply = result.value
    assert (first.where, second.where, counted, reply) == ("a", "b", {"number": 2}, "all is well")
    assert isinstance(first.at, datetime)
    assert num_calls == {"a": 1, "b": 1, "count": 1}
    repeated = await runtime.resume(ID, search)
    assert repeated.value == result.value
    assert len(runtime.engine.requests) == 1
    record = await recorded(runtime.store, ID)
    assert record.run.status is Status.COMPLETED
    assert record.run.attempts == 2
    assert record.still_running() == []


async def test_a_resumed_run_has_the_graph_of_an_uninterrupted_one(tmp_path: Path) -> None:
    raise_once = RaiseOnce()

    @step
    async def ask(what: str) -> str:
        return await llm(what)

    @flow
    async def chat() -> str:
        await ask("one")
        await gather(ask("two"), ask("three"))
        raise_once()
        await ask("four")
        return await ask("five")

    async with scripted_runtime(tmp_path) as runtime:
        await run_until_interrupted(runtime, chat)
        await runtime.resume(ID, chat)
        other = await runtime.run(chat)
        parts = [await recorded(runtime.store, run_id) for run_id in (ID, other.run_id)]
    assert parts[0].edges == parts[1].edges == {(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)}
    assert parts[0].pattern.edges == parts[1].pattern.edges


@pytest.mark.parametrize("slower", [0, 1, 2])
async def test_branches_are_replayed_whichever_of_them_was_faster(
    runtime: Runtime, slower: int
) -> None:
    num_calls: Counter[int] = Counter()
    slow = {slower}

    @step
    async def work(number: int) -> int:
        if number in slow:
            await asyncio.sleep(3600.0)
        num_calls[number] += 1
        return number

    @flow
    async def all_of_them() -> tuple[int, ...]:
        return await gather(*(work(number) for number in range(3)))

    running = asyncio.create_task(runtime.run(all_of_them.options(run_id=ID)))
    while num_calls.total() < 2:  # noqa: ASYNC110 - it has no event to wait for
        await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    slow.clear()
    assert (await runtime.resume(ID, all_of_them)).value == (0, 1, 2)
    assert num_calls == {0: 1, 1: 1, 2: 1}


async def test_now_random_uuid_and_remaining_return_the_same_values_on_resume(
    runtime: Runtime,
) -> None:
    raise_once = RaiseOnce()
    seen: list[tuple[datetime, float, UUID, float]] = []

    @flow(deadline="1h")
    async def ask() -> float:
        seen.append((now(), random(), uuid(), remaining()))
        await asyncio.sleep(0.01)
        async with within(remaining() / 2):
            raise_once()
            return await llm("anything?") and remaining()

    await run_until_interrupted(runtime, ask)
    await runtime.resume(ID, ask)
    assert len(seen) == 2
    assert seen[0] == seen[1]
    moment, number, name, left_s = seen[0]
    assert moment.tzinfo is not None
    assert 0 <= number < 1
    assert name.version == 4
    assert 3500 < left_s <= 3600


async def test_running_a_flow_with_a_recorded_id_returns_that_runs_result(runtime: Runtime) -> None:
    executed: list[str] = []

    @flow
    async def once(what: str) -> str:
        executed.append(what)
        return what.upper()

    named = once.options(run_id=ID)
    assert [(await runtime.run(named, "x")).value for _ in range(3)] == ["X"] * 3
    assert executed == ["x"]
    with pytest.raises(ArgumentsDiffer):
        await runtime.run(named, "y")
    with pytest.raises(RunNotResumable, match="not of other"):
        await runtime.run(flow(name="other")(once.body).options(run_id=ID), "x")
    assert (await recorded(runtime.store, ID)).run.status is Status.COMPLETED


async def test_a_run_that_is_being_executed_cannot_be_resumed(runtime: Runtime) -> None:
    started = asyncio.Event()

    @flow
    async def long() -> None:
        started.set()
        await asyncio.sleep(3600.0)

    running = asyncio.create_task(runtime.run(long.options(run_id=ID)))
    await started.wait()
    with pytest.raises(RunNotResumable, match="is executing it"):
        await runtime.resume(ID, long)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@in_virtual_time
async def test_the_deadline_counts_from_the_first_start(tmp_path: Path) -> None:
    raise_once = RaiseOnce()

    @flow(deadline=0.2)
    async def slow() -> None:
        raise_once()
        await asyncio.sleep(3600.0)

    async with timed_runtime(tmp_path) as runtime:
        await run_until_interrupted(runtime, slow)
        await asyncio.sleep(0.2)
        with pytest.raises(DeadlineExceeded):
            await runtime.resume(ID, slow)


async def test_all_times_of_a_resumed_run_count_from_its_first_start(tmp_path: Path) -> None:
    clock, raise_once = VirtualClock(), RaiseOnce()

    @step
    async def early() -> None:
        clock.advance(2.0)

    @step
    async def late() -> str:
        clock.advance(3.0)
        return await llm("how late is it?")

    @flow(deadline=100.0, stages=1)
    async def long() -> str:
        await early()
        raise_once()
        return await late()

    async with scripted_runtime(tmp_path, clock=clock) as runtime:
        await run_until_interrupted(runtime, long)
        clock.advance(40.0)
        result = await runtime.resume(ID, long)
        seen = await recorded(runtime.store, ID)
    times = {path: (step.started_s, step.finished_s) for path, step in seen.steps.items()}
    assert times == {"early": (0.0, 2.0), "late": (42.0, 45.0)}
    [call] = seen.calls
    assert (call.started_s, call.finished_s, call.sub_deadline_s) == (45.0, 45.0, 100.0)
    assert (result.elapsed_s, seen.run.elapsed_s) == (45.0, 45.0)


async def test_a_result_that_cannot_be_recorded_fails_the_run_with_result_not_serialisable(
    runtime: Runtime,
) -> None:
    @step
    async def opened() -> object:
        return object()

    @flow
    async def of_objects() -> None:
        await opened()

    with pytest.raises(ResultNotSerialisable, match="step opened"):
        await runtime.run(of_objects.options(run_id=ID))
    record = await recorded(runtime.store, ID)
    assert record.run.status is Status.FAILED
    assert record.still_running() == []


async def test_resuming_an_unknown_run_or_an_unknown_flow_raises_a_named_error(
    runtime: Runtime,
) -> None:
    with pytest.raises(RunNotFound):
        await runtime.resume("no-such-run")

    @flow
    async def local() -> None:
        raise Boom("now")

    await run_until_interrupted(runtime, local)
    with pytest.raises(RunNotResumable, match="was not recorded"):
        await runtime.resume(ID)


async def test_a_run_with_arguments_that_could_not_be_recorded_resumes_with_given_ones(
    runtime: Runtime,
) -> None:
    raise_once = RaiseOnce()

    @flow
    async def use(what: object) -> str:
        raise_once()
        return type(what).__name__

    await run_until_interrupted(runtime, use, object())
    with pytest.raises(RunNotResumable, match="with them and its run_id"):
        await runtime.resume(ID, use)
    assert (await runtime.run(use.options(run_id=ID), object())).value == "object"


async def test_a_default_and_the_same_value_as_an_argument_are_the_same_run(
    runtime: Runtime,
) -> None:
    @flow
    async def add(a: int, b: int = 1, unknown: object = object()) -> int:
        return a + b

    named = add.options(run_id=ID)
    assert (await runtime.run(named, 1)).value == (await runtime.run(named, 1, b=1)).value == 2
    with pytest.raises(ArgumentsDiffer):
        await runtime.run(named, 1, 2)


async def test_a_completed_run_without_a_recorded_result_cannot_return_one(
    runtime: Runtime,
) -> None:
    @flow
    async def odd() -> object:
        return object()

    await runtime.run(odd.options(run_id=ID))
    with pytest.raises(RunNotResumable, match="result was not recorded"):
        await runtime.run(odd.options(run_id=ID))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("", None),
        ("import helper", None),
        ("raise RuntimeError('no')", r"RuntimeError: no\); put code .*__main__"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("oops", "NameError"),
    ],
)
async def test_a_flow_of_a_script_is_imported_or_the_error_says_why_not(
    runtime: Runtime, tmp_path: Path, code: str, reason: str | None
) -> None:
    script = tmp_path / f"script_{abs(hash(code))}.py"
    script.write_text(
        "from orchestrator import flow\nasync def body() -> str:\n    return 'found'\n"
        f"article = flow(name='article')(body)\n{code}\n"
    )
    (tmp_path / "helper.py").write_text("")
    async with runtime.store.transaction() as tx:
        name = await tx.payloads.put(b"{}", media_type="application/json")
        began = RunRecord(ID, "article", datetime.now(UTC), entry=f"{script}:body", process_id=1)
        await tx.runs.add(replace(began, status=Status.FAILED, input_payload=name))
    if reason is None:
        assert (await runtime.resume(ID, may_import=True)).value == "found"
    else:
        with pytest.raises(RunNotResumable, match=reason):
            await runtime.resume(ID, may_import=True)


async def test_code_that_only_the_store_names_is_not_imported(
    runtime: Runtime, tmp_path: Path
) -> None:
    script = tmp_path / "chosen_by_another.py"
    script.write_text(f"open({str(tmp_path / 'was_imported')!r}, 'w')\nbody = None\n")
    for number, source in enumerate([script, "this"]):  # `import this` prints a poem
        began = RunRecord(
            f"r{number}", "f", datetime.now(UTC), entry=f"{source}:body", process_id=1
        )
        async with runtime.store.transaction() as tx:
            await tx.runs.add(replace(began, status=Status.FAILED))
        with pytest.raises(RunNotResumable, match="has not imported"):
            await runtime.resume(began.id)
    assert not (tmp_path / "was_imported").exists()
    assert "this" not in sys.modules


async def test_a_run_that_is_called_again_uses_its_recorded_arguments(runtime: Runtime) -> None:
    raise_once, used = RaiseOnce(), list[str]()

    @step
    async def use(value: str) -> None:
        used.append(value)

    @flow
    async def body(limits: dict[str, int], most: float = 30) -> None:
        for each in (*limits, str(most)):
            await use(each)
        raise_once()

    await run_until_interrupted(runtime, body, {"b": 1, "a": 2})
    await runtime.run(body.options(run_id=ID), {"a": 2, "b": 1})
    assert used == ["b", "a", "30.0"]


def test_steps_within_a_step_that_a_limit_had_cut_off_are_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raise_once = RaiseOnce()

    @step
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @step
    async def long() -> None:
        await work(1)
        await work(60)

    @flow
    async def limited() -> float:
        with suppress(DeadlineExceeded):
            async with within(5):
                await long()
        await work(1)
        raise_once()
        return asyncio.get_running_loop().time()

    async def run() -> float:
        async with timed_runtime(tmp_path) as runtime:
            await run_until_interrupted(runtime, limited)
            began_s = asyncio.get_running_loop().time()
            return (await runtime.resume(ID, limited)).value - began_s

    assert run_in_virtual_time(run()) == pytest.approx(0, abs=0.1)
    assert "is not begun again" not in caplog.text
