"""Runs that are gone on with: nothing recorded is done again, and nothing is done differently."""

from __future__ import annotations

import asyncio
from collections import Counter
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


@dataclass(frozen=True)
class Found:
    where: str
    at: datetime


async def test_what_is_recorded_is_not_done_again(runtime: Runtime) -> None:
    done: Counter[str] = Counter()
    raise_once = RaiseOnce()

    @step
    async def find(where: str) -> Found:
        done[where] += 1
        return Found(where, now())

    @tool
    def count(number: int) -> dict[str, int]:
        done["count"] += 1
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
    first, second, counted, said = result.value
    assert (first.where, second.where, counted, said) == ("a", "b", {"number": 2}, "all is well")
    assert isinstance(first.at, datetime)
    assert done == {"a": 1, "b": 1, "count": 1}
    again = await runtime.resume(ID, search)
    assert again.value == result.value
    assert len(runtime.engine.requests) == 1
    found = await recorded(runtime.store, ID)
    assert found.run.status is Status.COMPLETED
    assert found.run.attempts == 2
    assert found.still_running() == []


async def test_the_graph_of_a_resumed_run_is_that_of_a_whole_one(tmp_path: Path) -> None:
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
        whole = await runtime.run(chat)
        parts = [await recorded(runtime.store, each) for each in (ID, whole.run_id)]
    assert parts[0].edges == parts[1].edges == {(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)}
    assert parts[0].pattern.edges == parts[1].pattern.edges


@pytest.mark.parametrize("slower", [0, 1, 2])
async def test_branches_replay_alike_whichever_was_faster(runtime: Runtime, slower: int) -> None:
    done: Counter[int] = Counter()
    slow = {slower}

    @step
    async def work(number: int) -> int:
        if number in slow:
            await asyncio.sleep(3600.0)
        done[number] += 1
        return number

    @flow
    async def all_of_them() -> tuple[int, ...]:
        return await gather(*(work(number) for number in range(3)))

    running = asyncio.create_task(runtime.run(all_of_them.options(run_id=ID)))
    while done.total() < 2:  # noqa: ASYNC110 - it has no event to wait for
        await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    slow.clear()
    assert (await runtime.resume(ID, all_of_them)).value == (0, 1, 2)
    assert done == {0: 1, 1: 1, 2: 1}


async def test_what_another_execution_would_not_get_stays_as_it_was(runtime: Runtime) -> None:
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


async def test_a_run_of_a_known_id_is_that_run(runtime: Runtime) -> None:
    done: list[str] = []

    @flow
    async def once(what: str) -> str:
        done.append(what)
        return what.upper()

    named = once.options(run_id=ID)
    assert [(await runtime.run(named, "x")).value for _ in range(3)] == ["X"] * 3
    assert done == ["x"]
    with pytest.raises(ArgumentsDiffer):
        await runtime.run(named, "y")
    with pytest.raises(RunNotResumable, match="not of other"):
        await runtime.run(flow(name="other")(once.body).options(run_id=ID), "x")
    assert (await recorded(runtime.store, ID)).run.status is Status.COMPLETED


async def test_a_run_at_work_is_not_taken(runtime: Runtime) -> None:
    at_work = asyncio.Event()

    @flow
    async def long() -> None:
        at_work.set()
        await asyncio.sleep(3600.0)

    running = asyncio.create_task(runtime.run(long.options(run_id=ID)))
    await at_work.wait()
    with pytest.raises(RunNotResumable, match="is executing it"):
        await runtime.resume(ID, long)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_the_deadline_counts_from_the_first_start(runtime: Runtime) -> None:
    raise_once = RaiseOnce()

    @flow(deadline=0.2)
    async def slow() -> None:
        raise_once()
        await asyncio.sleep(3600.0)

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


async def test_a_result_that_would_not_come_back_is_refused_by_name(runtime: Runtime) -> None:
    @step
    async def opened() -> object:
        return object()

    @flow
    async def of_objects() -> None:
        await opened()

    with pytest.raises(ResultNotSerialisable, match="step opened"):
        await runtime.run(of_objects.options(run_id=ID))
    found = await recorded(runtime.store, ID)
    assert found.run.status is Status.FAILED
    assert found.still_running() == []


async def test_what_is_not_there_has_a_name(runtime: Runtime) -> None:
    with pytest.raises(RunNotFound):
        await runtime.resume("nobody")

    @flow
    async def local() -> None:
        raise Boom("now")

    await run_until_interrupted(runtime, local)
    with pytest.raises(RunNotResumable, match="was not recorded"):
        await runtime.resume(ID)


async def test_arguments_that_could_not_be_recorded_can_be_given_again(runtime: Runtime) -> None:
    raise_once = RaiseOnce()

    @flow
    async def use(what: object) -> str:
        raise_once()
        return type(what).__name__

    await run_until_interrupted(runtime, use, object())
    with pytest.raises(RunNotResumable, match="with them and its run_id"):
        await runtime.resume(ID, use)
    assert (await runtime.run(use.options(run_id=ID), object())).value == "object"


async def test_a_default_and_the_argument_that_it_stands_for_are_the_same_run(
    runtime: Runtime,
) -> None:
    @flow
    async def add(a: int, b: int = 1, unknown: object = object()) -> int:
        return a + b

    named = add.options(run_id=ID)
    assert (await runtime.run(named, 1)).value == (await runtime.run(named, 1, b=1)).value == 2
    with pytest.raises(ArgumentsDiffer):
        await runtime.run(named, 1, 2)


async def test_a_result_that_was_not_recorded_is_not_made_up(runtime: Runtime) -> None:
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
        ("raise RuntimeError('no')", r"RuntimeError: no\); what a script does .*__main__"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("oops", "NameError"),
    ],
)
async def test_a_flow_of_a_script_is_found_or_it_is_told_why_not(
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
        assert (await runtime.resume(ID)).value == "found"
    else:
        with pytest.raises(RunNotResumable, match=reason):
            await runtime.resume(ID)


async def test_a_run_that_is_called_again_has_the_arguments_that_it_had(runtime: Runtime) -> None:
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
