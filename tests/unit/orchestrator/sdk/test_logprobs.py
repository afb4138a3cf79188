"""llm with logprobs: an answer with the log-probabilities of its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator import Answer, FlowChanged, Token, flow, llm, step
from orchestrator.testing import ScriptedEngine
from serving.errors import InvalidRequest
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime
from tests.unit.orchestrator.run_samples import ID

TOKENS = (
    Token('{"x":', -0.5, (('{"x":', -0.5), ("No", -2.0))),
    Token(" 1", -1.5, ((" 2", -0.25), (" 1", -1.5))),
    Token("}", -1.0),
)


class Point(BaseModel):
    x: int


def scored() -> ScriptedEngine:
    return ScriptedEngine(lambda _: TOKENS)


async def answer_of(folder: Path, engine: ScriptedEngine, **arguments: Any) -> Any:
    """The result of llm() in a flow that does nothing else."""

    @flow
    async def asking() -> Any:
        found.append(await llm("Where?", **arguments))

    found: list[Any] = []
    async with scripted_runtime(folder, engine) as runtime:
        await runtime.run(asking)
    return found[0]


async def test_an_answer_has_its_text_its_tokens_and_their_mean(tmp_path: Path) -> None:
    engine = scored()
    answer = await answer_of(tmp_path, engine, logprobs=2)
    assert answer == Answer('{"x": 1}', '{"x": 1}', TOKENS)
    assert answer.mean_logprob == -1.0
    assert engine.requests[0].logprobs == 2


async def test_with_a_schema_the_value_is_read_and_the_text_is_kept(tmp_path: Path) -> None:
    answer = await answer_of(tmp_path, scored(), logprobs=2, schema=Point)
    assert answer == Answer(Point(x=1), '{"x": 1}', TOKENS)


async def test_without_alternatives_the_tokens_keep_their_own(tmp_path: Path) -> None:
    answer = await answer_of(tmp_path, scored(), logprobs=0)
    assert [token.logprob for token in answer.tokens] == [-0.5, -1.5, -1.0]
    assert [token.top for token in answer.tokens] == [(), (), ()]


async def test_a_streamed_answer_has_them_too(tmp_path: Path) -> None:
    pieces: list[str] = []
    answer = await answer_of(tmp_path, scored(), logprobs=2, on_text=pieces.append)
    assert "".join(pieces) == answer.text
    assert answer.tokens == TOKENS


async def test_each_of_several_answers_has_its_own(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda request: [Token("x", -float(request.seed or 0))])
    answers = await answer_of(tmp_path, engine, logprobs=0, n=3, seed=1)
    assert [answer.mean_logprob for answer in answers] == [-1.0, -2.0, -3.0]


async def test_the_words_of_a_scripted_text_are_certain(tmp_path: Path) -> None:
    answer = await answer_of(tmp_path, ScriptedEngine(lambda _: "by the sea"), logprobs=1)
    assert [token.text for token in answer.tokens] == ["by", " the", " sea"]
    assert answer.mean_logprob == 0.0
    assert answer.tokens[1].top == ((" the", 0.0),)


@pytest.mark.parametrize("wrong", [-1, 21, True, "5", 1.0], ids=repr)
async def test_numbers_of_alternatives_that_cannot_be_are_refused(
    tmp_path: Path, wrong: Any
) -> None:
    with pytest.raises(InvalidRequest, match="logprobs must be a whole number from 0 to 20"):
        await answer_of(tmp_path, scored(), logprobs=wrong)


async def test_a_resumed_run_gets_the_recorded_log_probabilities(tmp_path: Path) -> None:
    engine, raise_once = scored(), RaiseOnce()
    seen: list[Answer[str]] = []

    @flow
    async def interrupted() -> None:
        seen.append(await llm("Where?", logprobs=2))
        raise_once()

    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, interrupted)
        await runtime.resume(ID, interrupted)
    first, second = seen
    assert first == second
    assert second.tokens == TOKENS
    assert len(engine.requests) == 1


async def test_an_answer_that_was_recorded_without_them_is_not_taken_for_one_with_them(
    tmp_path: Path,
) -> None:
    raise_once, wanted = RaiseOnce(), iter((None, 2))

    @flow
    async def changing() -> None:
        logprobs: Any = next(wanted)
        await llm("Where?", logprobs=logprobs)
        raise_once()

    async with scripted_runtime(tmp_path, scored()) as runtime:
        await run_until_interrupted(runtime, changing)
        with pytest.raises(FlowChanged):
            await runtime.resume(ID, changing)


async def test_a_step_may_return_an_answer(tmp_path: Path) -> None:
    """It is recorded with its value's type."""
    engine, raise_once = scored(), RaiseOnce()

    @step
    async def ask() -> Answer[Point]:
        return await llm("Where?", schema=Point, logprobs=2)

    @flow
    async def asking() -> Answer[Point]:
        answer = await ask()
        raise_once()
        return answer

    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, asking)
        assert (await runtime.resume(ID, asking)).value == Answer(Point(x=1), '{"x": 1}', TOKENS)
    assert len(engine.requests) == 1
