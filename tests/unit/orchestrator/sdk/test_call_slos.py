"""An SLO of a call's own: targets of a stream, a deadline, a waiting time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator import (
    DeadlineExceeded,
    InvalidDuration,
    OutsideRun,
    Runtime,
    flow,
    llm,
    llm_stream,
    remaining,
    step,
)
from orchestrator.testing import ScriptedEngine
from serving.errors import RequestDropped
from serving.generation import GenerationRequest
from serving.slo import Slo, SloKind, from_tags, to_tags
from store.records import Status
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import answer_ok, scripted_runtime, the_run
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.virtual_time import LoopClock, run_in_virtual_time


async def slo_of(folder: Path, *, deadline: str | None = "60s", **arguments: Any) -> Slo:
    """The SLO of a run's only call, with these arguments of llm()."""

    @flow(deadline=deadline)
    async def asking() -> object:
        return await llm("hello", **arguments)

    engine = ScriptedEngine(answer_ok)
    async with scripted_runtime(folder, engine) as runtime:
        await runtime.run(asking.options(user="alice", run_id=ID))
    [request] = engine.requests
    assert from_tags(to_tags(request.slo)) == request.slo
    return request.slo


@pytest.mark.parametrize("deadline", [None, "60s"])
async def test_targets_of_a_stream_make_a_call_one_of_kind_latency(
    tmp_path: Path, deadline: str | None
) -> None:
    slo = await slo_of(tmp_path, deadline=deadline, ttft="500ms", tbt=timedelta(seconds=0.05))
    assert (slo.kind, slo.ttft_s, slo.tbt_s, slo.waiting_s) == (SloKind.LATENCY, 0.5, 0.05, 5.0)
    assert (slo.deadline_s, slo.final_s, slo.user) == (None, None, "alice")
    assert slo.program == (ID if deadline else "")


async def test_a_target_that_is_not_given_has_its_default(tmp_path: Path) -> None:
    assert (await slo_of(tmp_path / "1", ttft=1)).tbt_s == 0.2
    assert (await slo_of(tmp_path / "2", tbt=1)).ttft_s == 5.0


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).mkdir()


async def test_a_waiting_time_is_kept_beside_the_deadlines_of_the_run(tmp_path: Path) -> None:
    slo = await slo_of(tmp_path / "1", waiting_time="2s")
    assert (slo.kind, slo.waiting_s, slo.program) == (SloKind.COMPOUND, 2.0, ID)
    slo = await slo_of(tmp_path / "2", deadline=None, waiting_time="2s")
    assert (slo.kind, slo.waiting_s) == (SloKind.BEST_EFFORT, 2.0)


async def test_a_waiting_time_replaces_that_of_a_stream(tmp_path: Path) -> None:
    slo = await slo_of(tmp_path, ttft=1, waiting_time="90s")
    assert (slo.kind, slo.waiting_s) == (SloKind.LATENCY, 90.0)


async def test_a_deadline_of_a_call_is_an_earlier_one_within_the_run_s(tmp_path: Path) -> None:
    slo = await slo_of(tmp_path / "1", deadline="60s")
    assert slo.final_s == pytest.approx(60, abs=5)
    assert slo.program == ID

    engine = ScriptedEngine(answer_ok)

    @flow(deadline="60s")
    async def limited() -> list[object]:
        return [await llm("a", deadline="10s"), await llm("b", deadline="2h"), await llm("c")]

    async with scripted_runtime(tmp_path / "2", engine) as runtime:
        await runtime.run(limited.options(run_id=ID))
    first, second, third = (request.slo for request in engine.requests)
    assert first.final_s is not None
    assert first.final_s <= 10
    assert first.program.startswith(f"{ID}+")
    for slo in (second, third):
        assert slo.final_s is not None
        assert 50 < slo.final_s <= 60
        assert slo.program == ID


def test_a_call_ends_at_its_deadline_and_the_run_goes_on(tmp_path: Path) -> None:
    slow = ScriptedEngine(lambda request: "word " * 100, token_s=1.0)

    @step
    async def hasty() -> str:
        return await llm("hello", deadline="3s")

    @flow(deadline="60s")
    async def limited() -> tuple[str, float]:
        began_s = asyncio.get_running_loop().time()
        try:
            return await hasty(), 0.0
        except DeadlineExceeded as error:
            return str(error), asyncio.get_running_loop().time() - began_s

    async def run() -> tuple[str, float]:
        async with scripted_runtime(tmp_path, slow, clock=LoopClock()) as runtime:
            value = (await runtime.run(limited)).value
            [call] = (await the_run(runtime.store)).calls
            assert call.status is Status.CANCELLED
            return value

    message, taken_s = run_in_virtual_time(run())
    assert message == "hasty did not end within its 3 s"
    assert taken_s == pytest.approx(3.0)
    assert len(slow.aborted) == 1


def test_the_run_s_deadline_ends_a_stream_that_has_none_in_the_engine(tmp_path: Path) -> None:
    slow = ScriptedEngine(lambda request: "word " * 100, token_s=1.0)

    @flow(deadline="5s")
    async def streaming() -> str:
        return await llm("hello", ttft=1, tbt=1)

    async def run() -> None:
        async with scripted_runtime(tmp_path, slow, clock=LoopClock()) as runtime:
            with pytest.raises(DeadlineExceeded):
                await runtime.run(streaming)

    run_in_virtual_time(run())
    assert len(slow.aborted) == 1


async def test_all_answers_of_a_call_share_its_deadline_and_targets(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok)

    @flow(deadline="60s")
    async def several() -> list[str]:
        return await llm("hello", n=3, deadline="10s", waiting_time=4)

    async with scripted_runtime(tmp_path, engine) as runtime:
        await runtime.run(several)
    assert len({request.slo.program for request in engine.requests}) == 1
    assert [request.slo.waiting_s for request in engine.requests] == [4.0] * 3
    assert all((request.slo.final_s or 99) <= 10 for request in engine.requests)


@pytest.mark.parametrize("name", ["ttft", "tbt", "deadline", "waiting_time"])
@pytest.mark.parametrize("value", [0, -1, "soon", "", float("nan"), float("inf"), True, [1], "5"])
async def test_what_is_no_duration_is_refused_before_the_call(
    tmp_path: Path, name: str, value: object
) -> None:
    engine = ScriptedEngine(answer_ok)

    @flow
    async def asking() -> object:
        return await llm("hello", **{name: value})  # type: ignore[call-overload]

    async with scripted_runtime(tmp_path, engine) as runtime:
        if value == "5":  # seconds
            await runtime.run(asking)
            return
        with pytest.raises(InvalidDuration):
            await runtime.run(asking)
    assert not engine.requests


async def test_the_deadline_of_a_stream_ends_where_its_loop_is_left(tmp_path: Path) -> None:
    """Also in a task that asyncio alone has started, which gets its context from its first step."""

    async def streaming() -> float:
        async for _ in llm_stream("hello", deadline="5s"):
            break
        return remaining()

    @flow(deadline="60s")
    async def both() -> list[float]:
        return [await asyncio.create_task(streaming()), await streaming()]

    slow = ScriptedEngine(answer_ok, token_s=0.005)  # the first piece is read before the last comes
    async with scripted_runtime(tmp_path, slow) as runtime:
        for left_s in (await runtime.run(both)).value:
            assert 10 < left_s < 60


@pytest.mark.parametrize("arguments", [{}, {"deadline": "5s"}, {"n": 2, "deadline": "5s"}])
async def test_outside_a_run_a_call_names_itself(arguments: dict[str, Any]) -> None:
    with pytest.raises(OutsideRun, match=r"llm\(\) works only inside a flow"):
        await llm("hello", **arguments)


async def test_a_dropped_call_raises_its_error_also_when_it_is_replayed(tmp_path: Path) -> None:
    def drop(request: GenerationRequest) -> str:
        raise RequestDropped(request.request_id, "unscheduled for 2.01 s, slo_waiting_s is 2")

    fail_once = RaiseOnce()

    @flow
    async def asking() -> str:
        try:
            return await llm("hello", waiting_time=2)
        except RequestDropped as error:
            fail_once()
            return str(error)

    engine = ScriptedEngine(drop)
    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, asking)
        assert "slo_waiting_s is 2" in (await runtime.resume(ID, asking)).value


async def test_a_resumed_run_keeps_the_deadline_of_a_call_from_its_first_execution(
    tmp_path: Path,
) -> None:
    fail_once = RaiseOnce()

    @flow(deadline="60s")
    async def asking() -> list[str]:
        answers = [await llm("a", deadline="20s"), await llm("b", ttft=1)]
        fail_once()
        return answers

    engine = ScriptedEngine(answer_ok)
    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, asking)
        assert (await runtime.resume(ID, asking)).value == ["all is well"] * 2
    assert len(engine.requests) == 2


async def test_targets_do_not_change_what_a_call_is(runtime: Runtime) -> None:
    """A run that began without them can be resumed by code with them."""
    fail_once = RaiseOnce()
    targets: dict[str, Any] = {}

    @flow
    async def asking() -> object:
        answer = await llm("a", **targets)
        fail_once()
        return answer

    await run_until_interrupted(runtime, asking)
    targets.update(ttft=1, tbt=1, waiting_time=2, engine="judge")
    assert (await runtime.resume(ID, asking)).value == "all is well"
