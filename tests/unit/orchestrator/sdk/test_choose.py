"""choose: one call, one token, and the probabilities of all options."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Choice, Message, Runtime, choose, flow, llm
from orchestrator.testing import ScriptedEngine
from serving.errors import InvalidRequest
from serving.generation import Chunk, GenerationRequest, check_request
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime
from tests.unit.orchestrator.run_samples import ID


class Scored(ScriptedEngine):
    """Prefers the second of the choices, and says how much."""

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        async for chunk in super().stream(request):
            if chunk.completion is not None:
                logprobs = tuple(-1.0 - abs(at - 1) for at in range(len(request.choices)))
                scored = replace(chunk.completion, choice_logprobs=logprobs)
                yield Chunk(chunk.text, scored)
            else:
                yield chunk


def second(request: GenerationRequest) -> str:
    return request.choices[1] if len(request.choices) > 1 else "A"


@flow
async def choosing(options: list[str]) -> Choice:
    return await choose("Which?", options, system="Be brief.")


async def test_the_most_probable_option_is_chosen_in_one_call(tmp_path: Path) -> None:
    engine = Scored(second)
    async with scripted_runtime(tmp_path, engine) as runtime:
        choice = (await runtime.run(choosing, ["red", "green", "blue"])).value
    assert (choice.index, choice.text) == (1, "green")
    assert sum(choice.probabilities) == pytest.approx(1.0)
    assert choice.probabilities[1] > choice.probabilities[0] == choice.probabilities[2]
    [request] = engine.requests
    assert request.choices == ("A", "B", "C")
    assert isinstance(request.prompt, tuple)
    assert "B. green" in request.prompt[-1].content


async def test_an_engine_without_probabilities_chooses_by_its_answer(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path, ScriptedEngine(second)) as runtime:
        choice = (await runtime.run(choosing, ["red", "green"])).value
    assert choice == Choice(1, "green", (0.0, 1.0))


@pytest.mark.parametrize("count", [0, 21])
async def test_too_few_or_too_many_options_are_refused(runtime: Runtime, count: int) -> None:
    with pytest.raises(ValueError, match="1 to 20 options"):
        await runtime.run(choosing, [str(number) for number in range(count)])


async def test_a_resumed_run_does_not_ask_again(tmp_path: Path) -> None:
    engine, raise_once = Scored(second), RaiseOnce()

    @flow
    async def interrupted() -> Choice:
        choice = await choose("Which?", ["red", "green"])
        raise_once()
        return choice

    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, interrupted)
        choice = (await runtime.resume(ID, interrupted)).value
    assert choice.index == 1
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": ("a", "a")},
        {"choices": ("",)},
        {"choices": tuple(map(str, range(21)))},
        {"choices": ("a", "b"), "schema": {}},
        {"repetition_penalty": 0},
        {"repetition_penalty": "much"},
    ],
)
def test_choices_and_penalties_that_cannot_be_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        check_request(GenerationRequest(request_id="r", prompt="p", **fields))  # type: ignore[arg-type]


async def test_sampling_parameters_and_turns_reach_the_engine(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: "So.")

    @flow
    async def sampling() -> str:
        turns = [{"role": "system", "content": "Be brief."}, Message("user", "Why?")]
        return await llm(
            turns,
            top_p=0.5,
            top_k=20,
            min_p=0.1,
            repetition_penalty=1.2,
            frequency_penalty=-0.5,
            presence_penalty=0.25,
            stop="\n",
        )

    async with scripted_runtime(tmp_path, engine) as runtime:
        await runtime.run(sampling)
    [request] = engine.requests
    assert (request.top_p, request.repetition_penalty, request.stop) == (0.5, 1.2, ("\n",))
    assert (request.top_k, request.min_p) == (20, 0.1)
    assert (request.frequency_penalty, request.presence_penalty) == (-0.5, 0.25)
    assert request.prompt == (Message("system", "Be brief."), Message("user", "Why?"))


@pytest.mark.parametrize("turn", [{}, {"role": "boss", "content": "x"}, {"role": "user"}])
async def test_a_dict_that_is_no_turn_is_refused(runtime: Runtime, turn: dict[str, str]) -> None:
    @flow
    async def asking() -> str:
        return await llm([turn])

    with pytest.raises(ValueError, match="a turn has a role"):
        await runtime.run(asking)


@flow
async def continuing(options: list[str]) -> Choice:
    return await choose("Clue: a slow animal\nAnswer:", options, raw=True)


async def test_words_that_continue_a_raw_prompt_are_not_listed_in_it(tmp_path: Path) -> None:
    engine = Scored(second)
    async with scripted_runtime(tmp_path, engine) as runtime:
        choice = (await runtime.run(continuing, ["horse", "snail"])).value
    [request] = engine.requests
    assert request.prompt == "Clue: a slow animal\nAnswer:"
    assert request.choices == (" horse", " snail")
    assert (choice.text, choice.logprobs) == ("snail", (-2.0, -1.0))


async def test_an_engine_without_probabilities_answers_a_raw_prompt_with_a_word(
    tmp_path: Path,
) -> None:
    async with scripted_runtime(tmp_path, ScriptedEngine(second)) as runtime:
        choice = (await runtime.run(continuing, ["horse", "snail"])).value
    assert choice == Choice(1, "snail", (0.0, 1.0))


async def test_turns_of_a_chat_are_no_raw_prompt(tmp_path: Path) -> None:
    @flow
    async def wrong() -> None:
        await choose([{"role": "user", "content": "Clue"}], ["a", "b"], raw=True)

    async with scripted_runtime(tmp_path, ScriptedEngine(second)) as runtime:
        with pytest.raises(ValueError, match="raw prompt"):
            await runtime.run(wrong)


@pytest.mark.parametrize("prompt", [["a"], [], [7], [None], 7, None, {"role": "user"}])
async def test_what_is_no_prompt_is_refused_in_words(tmp_path: Path, prompt: Any) -> None:
    @flow
    async def choosing() -> None:
        await choose(prompt, ["a", "b"])

    @flow
    async def asking() -> None:
        await llm(prompt)

    async with scripted_runtime(tmp_path, ScriptedEngine(second)) as runtime:
        for wrong in (choosing, asking):
            with pytest.raises(ValueError, match="a prompt is a text"):
                await runtime.run(wrong)


@pytest.mark.parametrize("name", ["temperature", "top_p", "repetition_penalty"])
async def test_an_argument_that_is_no_number_is_refused_by_its_name(
    tmp_path: Path, name: str
) -> None:
    @flow
    async def wrong(value: Any) -> None:
        await llm("x", **{name: value})

    async with scripted_runtime(tmp_path, ScriptedEngine(second)) as runtime:
        for value in ("x", None, True):
            with pytest.raises(InvalidRequest, match=f"{name} must be a number"):
                await runtime.run(wrong, value)
