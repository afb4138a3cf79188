"""llm with n: several answers to one prompt, in a call each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator import FlowChanged, Runtime, flow, llm
from orchestrator.testing import ScriptedEngine
from serving.errors import InvalidRequest, RequestFailed, StructuredOutputInvalid
from serving.generation import SEED_LIMIT, GenerationRequest
from store.records import Status
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import NEVER_S, recorded, scripted_runtime
from tests.unit.orchestrator.run_samples import ID


class Point(BaseModel):
    x: int


def seed_of(request: GenerationRequest) -> str:
    return str(request.seed)


async def answers_of(folder: Path, engine: ScriptedEngine, **arguments: Any) -> Any:
    """The result of llm() in a flow that does nothing else."""

    @flow
    async def asking() -> Any:
        return await llm("Name a number.", **arguments)

    async with scripted_runtime(folder, engine) as runtime:
        return (await runtime.run(asking)).value


async def test_each_answer_has_the_seed_after_that_of_the_one_before(tmp_path: Path) -> None:
    engine = ScriptedEngine(seed_of)
    assert await answers_of(tmp_path, engine, n=3, seed=7) == ["7", "8", "9"]


async def test_seeds_stay_in_their_range(tmp_path: Path) -> None:
    last, first = str(SEED_LIMIT - 1), str(-SEED_LIMIT)
    answers = await answers_of(tmp_path, ScriptedEngine(seed_of), n=2, seed=SEED_LIMIT - 1)
    assert answers == [last, first]


async def test_without_a_seed_none_is_fixed(tmp_path: Path) -> None:
    assert await answers_of(tmp_path, ScriptedEngine(seed_of), n=2) == ["None", "None"]


async def test_one_answer_is_a_list_of_one_also_at_temperature_0(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: "one")
    assert await answers_of(tmp_path, engine, n=1, temperature=0) == ["one"]


async def test_each_answer_is_read_by_the_schema(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda request: f'{{"x":{request.seed}}}')
    answers = await answers_of(tmp_path, engine, n=2, seed=1, schema=Point)
    assert answers == [Point(x=1), Point(x=2)]


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        ({"n": 0}, ValueError, "from 1 to 128"),
        ({"n": -1}, ValueError, "from 1 to 128"),
        ({"n": 129}, ValueError, "from 1 to 128"),
        ({"n": True}, ValueError, "n is True"),
        ({"n": "3"}, ValueError, "n is '3'"),
        ({"n": 2.0}, ValueError, "whole number"),
        ({"n": 2, "temperature": 0}, ValueError, "would be equal"),
        ({"n": 2, "on_text": print}, ValueError, "on_text"),
        ({"n": 2, "seed": "7"}, InvalidRequest, "seed must be"),
        ({"n": 2, "seed": SEED_LIMIT}, InvalidRequest, "seed must be"),
    ],
    ids=repr,
)
async def test_several_answers_that_cannot_be_are_refused(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], reason: str
) -> None:
    engine = ScriptedEngine(seed_of)
    with pytest.raises(error, match=reason):
        await answers_of(tmp_path, engine, **arguments)
    assert not engine.requests


async def test_the_answers_are_parallel_calls_of_one_stage(runtime: Runtime) -> None:
    @flow(deadline="1h")
    async def asking() -> str:
        await llm("First.")
        await llm("Name a number.", n=3)
        return await llm("Last.")

    run = await recorded(runtime.store, (await runtime.run(asking)).run_id)
    assert [call.stage for call in run.calls] == [0, 1, 1, 1, 2]
    assert run.edges == {(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)}
    engine = runtime.engine
    assert isinstance(engine, ScriptedEngine)
    assert [request.slo.stage_calls for request in engine.requests] == [1, 3, 3, 3, 1]
    deadlines = [call.sub_deadline_s for call in run.calls[1:4]]
    assert None not in deadlines
    assert len(set(deadlines)) == 1
    assert len({request.request_id for request in engine.requests}) == 5


async def test_a_resumed_run_gets_the_same_answers_and_asks_for_none_again(
    tmp_path: Path,
) -> None:
    drawn = iter(range(100))
    engine, raise_once = ScriptedEngine(lambda _: str(next(drawn))), RaiseOnce()

    @flow
    async def interrupted() -> list[str]:
        answers = await llm("Name a number.", n=3)
        raise_once()
        return answers

    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, interrupted)
        first = await recorded(runtime.store, ID)
        assert [call.status for call in first.calls] == [Status.COMPLETED] * 3
        assert (await runtime.resume(ID, interrupted)).value == ["0", "1", "2"]
    assert len(engine.requests) == 3


async def test_a_resumed_run_asks_only_for_the_answers_that_are_missing(tmp_path: Path) -> None:
    fails = {"8": 1}

    def script(request: GenerationRequest) -> str:
        if fails.pop(str(request.seed), 0):
            raise RequestFailed(request.request_id, "once")
        return str(request.seed)

    engine = ScriptedEngine(script)

    @flow
    async def asking() -> list[str]:
        return await llm("Name a number.", n=3, seed=7)

    async with scripted_runtime(tmp_path, engine) as runtime:
        with pytest.raises(RequestFailed):
            await runtime.run(asking.options(run_id=ID))
        run = await recorded(runtime.store, ID)
        num_missing = sum(call.status is not Status.COMPLETED for call in run.calls)
        num_before = len(engine.requests)
        assert (await runtime.resume(ID, asking)).value == ["7", "8", "9"]
    assert 1 <= num_missing <= 3
    again = Counter(request.seed for request in engine.requests[num_before:])
    assert len(again) == num_missing
    assert again[8] == 1


async def test_another_number_of_answers_is_another_flow(tmp_path: Path) -> None:
    raise_once, numbers = RaiseOnce(), iter((2, 3))

    @flow
    async def changing() -> list[str]:
        answers = await llm("Name a number.", n=next(numbers))
        raise_once()
        return answers

    async with scripted_runtime(tmp_path) as runtime:
        await run_until_interrupted(runtime, changing)
        with pytest.raises(FlowChanged):
            await runtime.resume(ID, changing)


async def test_an_answer_that_fails_ends_the_others_in_the_engine(tmp_path: Path) -> None:
    def script(request: GenerationRequest) -> str:
        if request.seed == 2:
            raise RequestFailed(request.request_id, "no")
        return "one two"

    engine = ScriptedEngine(script, token_s=NEVER_S)
    with pytest.raises(RequestFailed):
        await answers_of(tmp_path, engine, n=3, seed=0)
    assert engine.aborted == [each.request_id for each in engine.requests if each.seed != 2]
    assert engine.num_running == 0


async def test_an_answer_that_does_not_fit_the_schema_fails_the_call(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda request: '{"x":1}' if request.seed else "none")
    with pytest.raises(StructuredOutputInvalid):
        await answers_of(tmp_path, engine, n=3, seed=0, schema=Point)
