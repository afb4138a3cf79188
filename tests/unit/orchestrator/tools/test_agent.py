"""agent(): rounds of tool calls, results, errors and limits, on scripted models."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from orchestrator import (
    AgentResult,
    BudgetExceeded,
    DeadlineExceeded,
    Message,
    OutsideRun,
    ToolCall,
    ToolCallsInvalid,
    ToolFailed,
    agent,
    best_so_far,
    budget,
    flow,
    gather,
    llm,
    step,
    tool,
    within,
)
from orchestrator.testing import ScriptedEngine
from orchestrator.tools.agent_loop import JSON_REQUEST, LAST_REQUEST
from orchestrator.tools.functions import agent_tools
from serving.errors import InvalidRequest, StructuredOutputInvalid
from serving.generation import GenerationRequest, Usage
from store.records import StepKind
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    Boom,
    scripted_runtime,
    the_run,
)
from tests.unit.orchestrator.tools.agent_samples import (
    asks,
    call,
    in_json,
    native,
    results,
    turns,
)
from tests.unit.orchestrator.virtual_time import in_virtual_time, timed_runtime


class Weather(BaseModel):
    city: str
    rain: bool


@tool(effects="pure")
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


@tool(effects="pure")
async def population(city: str, year: int = 2020) -> dict[str, int]:
    return {"year": year, "people": len(city)}


async def run_agent(
    folder: Path, engine: ScriptedEngine, *tools: Any, prompt: Any = "Bern?", **more: Any
) -> AgentResult[Any]:
    """The result of an agent in a run of its own."""
    results: list[AgentResult[Any]] = []

    @flow
    async def one_agent() -> None:
        results.append(await agent(prompt, tools, **more))

    async with scripted_runtime(folder, engine) as runtime:
        await runtime.run(one_agent)
    [result] = results
    return result


async def test_tool_calls_of_one_answer_run_side_by_side_and_their_results_are_turns(
    tmp_path: Path,
) -> None:
    both_run = asyncio.Barrier(2)

    @tool(effects="pure")
    async def meet(number: int) -> int:
        await both_run.wait()
        return number

    engine = native(asks(call("meet", "a", number=1), call("meet", "b", number=2)), "done")
    async with asyncio.timeout(60):
        result = await run_agent(tmp_path, engine, meet, system="Be brief.")
    assert result.value == "done"
    assert result.rounds == 1
    assert result.ended == "answer"
    assert [(use.id, use.result, use.is_error) for use in result.calls] == [
        ("a", "1", False),
        ("b", "2", False),
    ]
    first, second = engine.requests
    assert [spec.name for spec in first.tools] == ["meet"]
    assert first.schema is None
    assert turns(second) == (
        Message("system", "Be brief."),
        Message("user", "Bern?"),
        asks(call("meet", "a", number=1), call("meet", "b", number=2)),
        Message("tool", "1", tool_call_id="a"),
        Message("tool", "2", tool_call_id="b"),
    )
    assert result.turns == (*turns(second), Message("assistant", "done"))


async def test_an_agent_without_a_native_format_asks_for_json(tmp_path: Path) -> None:
    engine = in_json(
        {"tool": "weather", "arguments": {"city": "Bern"}}, {"answer": "it rains, I say"}
    )
    shown: list[str] = []
    result = await run_agent(tmp_path, engine, weather, population, on_text=shown.append)
    assert result.value == "it rains, I say" == "".join(shown)
    first, second = engine.requests
    assert not first.tools
    assert first.schema is not None
    assert [list(shape["properties"]) for shape in first.schema["anyOf"]] == [
        ["answer"],
        ["tool", "arguments"],
        ["tool", "arguments"],
    ]
    assert turns(first)[0].role == "system"
    assert turns(second)[1:] == (
        Message("user", "Bern?"),
        Message("assistant", '{"tool": "weather", "arguments": {"city": "Bern"}}'),
        Message("user", "Result of weather:\nrain in Bern"),
    )
    [use] = result.calls
    assert (use.name, use.result) == ("weather", "rain in Bern")
    assert [turn.role for turn in result.turns] == ["user", "assistant", "tool", "assistant"]


async def test_an_engine_that_refuses_tools_is_asked_for_json_in_the_same_agent(
    tmp_path: Path,
) -> None:
    class Mistaken(ScriptedEngine):
        """Its info promises tools until a request has some."""

        @property
        def info(self) -> Any:
            self._tool_parser = "" if self.requests else "server"
            info = super().info
            self._tool_parser = ""
            return info

    engine = Mistaken(lambda _: '{"answer": "so be it"}')
    result = await run_agent(tmp_path, engine, weather)
    assert result.value == "so be it"
    refused, answered = engine.requests
    assert refused.tools
    assert answered.schema is not None


async def test_results_are_texts_as_they_are_or_json_and_long_ones_are_cut(tmp_path: Path) -> None:
    @tool(effects="pure")
    def long() -> str:
        return "x" * 500

    engine = native(asks(call("population", city="Bern"), call("long")), "done")
    result = await run_agent(tmp_path, engine, population, long, max_result_characters=100)
    first, second = results(engine.requests[-1])
    assert json.loads(first) == {"year": 2020, "people": 4}
    assert second == "x" * 100 + "\n[cut: the first 100 of 500 characters]"
    assert [use.result for use in result.calls] == [first, second]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (call("fly"), "no tool 'fly'; the tools are: weather, population"),
        (ToolCall("", "weather", '{"city": '), "no JSON"),
        (ToolCall("", "weather", "[1]"), "no JSON object"),
        (ToolCall("", "weather", '{"city": ' + "[" * 100_000), "nested"),
        (ToolCall("", "weather", '{"city": ' + "[" * 1200 + "]" * 1200 + "}"), "nested"),
        (call("weather"), "city: Field required"),
        (call("weather", city="Bern", size=1), "size: Extra inputs"),
        (call("population", city="Bern", year="last"), "year: Input should be a valid integer"),
    ],
)
async def test_a_call_that_is_not_valid_gets_a_text_that_says_why(
    tmp_path: Path, asked: ToolCall, says: str
) -> None:
    engine = native(asks(asked, call("weather", city="Oslo")), "done")
    result = await run_agent(tmp_path, engine, weather, population)
    wrong, right = results(engine.requests[-1])
    assert wrong.startswith("Error: ")
    assert says in wrong
    assert right == "rain in Oslo"
    assert [use.is_error for use in result.calls] == [True, False]


async def test_calls_that_are_not_valid_in_too_many_rounds_end_the_agent(tmp_path: Path) -> None:
    wrong, right = asks(call("fly")), asks(call("weather", city="Bern"))
    engine = native(wrong, wrong, right, wrong, wrong, wrong, "never")
    with pytest.raises(ToolCallsInvalid, match=r"3 times in a row.*'fly'"):
        await run_agent(tmp_path, engine, weather, max_invalid=2)
    assert len(engine.requests) == 6


async def test_an_error_of_a_tool_is_its_result_unless_errors_are_to_be_raised(
    tmp_path: Path,
) -> None:
    @tool(effects="pure")
    def break_() -> str:
        raise Boom("it broke")

    @tool(effects="pure")
    async def refuse() -> str:
        raise ToolFailed("refuse", "not today")

    script = (asks(call("break_"), call("refuse")), "done")
    engine = native(*script)
    (tmp_path / "return").mkdir()
    await run_agent(tmp_path / "return", engine, break_, refuse)
    assert results(engine.requests[-1]) == ["Error: Boom: it broke", "Error: not today"]
    (tmp_path / "raise").mkdir()
    with pytest.raises(Boom, match="it broke"):
        await run_agent(
            tmp_path / "raise", native(asks(call("break_"))), break_, on_tool_error="raise"
        )


@in_virtual_time
async def test_a_deadline_and_a_budget_end_the_agent_whatever_tools_catch(tmp_path: Path) -> None:
    @tool(effects="pure")
    async def wait() -> str:
        await asyncio.sleep(NEVER_S)
        return "late"

    @step
    async def ask() -> str:
        return await llm("more?")

    async def limited(kind: Literal["time", "calls"]) -> None:
        if kind == "time":
            async with within("50ms"):
                await agent("Bern?", [wait])
        else:
            async with budget(calls=1):
                await agent("Bern?", [ask])

    for kind, error in (("time", DeadlineExceeded), ("calls", BudgetExceeded)):
        name: Any = kind

        @flow
        async def body(name: Any = name) -> None:
            await limited(name)

        (tmp_path / kind).mkdir()
        engine = native(asks(call("wait" if kind == "time" else "ask")), "never")
        async with timed_runtime(tmp_path / kind, engine) as runtime:
            with pytest.raises(error):
                await runtime.run(body)
        assert len(engine.requests) == 1


async def test_a_limit_of_a_tool_s_own_is_an_error_for_the_model(tmp_path: Path) -> None:
    @step(timeout="20ms")
    async def slow() -> str:
        await asyncio.sleep(NEVER_S)
        return "late"

    engine = native(asks(call("slow")), "so be it")
    result = await run_agent(tmp_path, engine, slow)
    [use] = result.calls
    assert (result.value, use.is_error) == ("so be it", True)
    assert "did not end within its 0.02 s" in use.result


async def test_all_results_together_leave_room_in_the_context(tmp_path: Path) -> None:
    @tool(effects="pure")
    def long() -> str:
        return "word " * 10_000

    both = asks(call("long", "one"), call("long", "two"))
    script = iter([both, both, "done"])
    engine = ScriptedEngine(lambda _: next(script), tool_parser="hermes", max_model_tokens=2_000)
    result = await run_agent(tmp_path, engine, long)
    assert result.value == "done"
    lengths = [len(use.result) for use in result.calls]
    assert sum(lengths) < 2_000 + 400
    assert all("[cut: the first" in use.result for use in result.calls)


def test_a_function_of_any_number_of_arguments_is_no_tool() -> None:
    def total(*numbers: int) -> int:
        return sum(numbers)

    with pytest.raises(ValueError, match=r"give a list in place of \*numbers"):
        agent_tools([total])


async def test_after_its_rounds_the_model_is_asked_to_answer_without_tools(tmp_path: Path) -> None:
    ask = asks(call("weather", city="Bern"))
    engine = native(ask, ask, "what I know so far")
    result = await run_agent(tmp_path, engine, weather, max_rounds=2)
    assert (result.value, result.ended, result.rounds) == ("what I know so far", "max_rounds", 2)
    last = engine.requests[-1]
    assert not last.tools
    assert turns(last)[-1] == Message("user", LAST_REQUEST)
    (tmp_path / "json").mkdir()
    engine = in_json({"tool": "weather", "arguments": {"city": "Bern"}}, {"answer": "enough"})
    result = await run_agent(tmp_path / "json", engine, weather, max_rounds=1)
    assert (result.value, result.ended) == ("enough", "max_rounds")
    schema = engine.requests[-1].schema
    assert schema is not None
    assert list(schema["properties"]) == ["answer"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_until_sees_each_round_and_may_end_the_agent(tmp_path: Path, is_async: bool) -> None:
    seen: list[tuple[str, int]] = []

    def enough(so_far: AgentResult[str]) -> bool:
        seen.append((so_far.value, len(so_far.calls)))
        best_so_far(None)  # it is called within the flow
        return so_far.rounds == 2

    async def enough_async(so_far: AgentResult[str]) -> bool:
        return enough(so_far)

    ask = asks(call("weather", city="Bern"), text="let me look")
    engine = native(ask, ask, "never")
    until = enough_async if is_async else enough
    result = await run_agent(tmp_path, engine, weather, until=until)
    assert seen == [("let me look", 1), ("let me look", 2)]
    assert (result.ended, result.value, result.turns[-1].role) == ("until", "let me look", "tool")
    assert len(engine.requests) == 2


async def test_with_a_schema_the_answer_is_a_value_of_the_type(tmp_path: Path) -> None:
    engine = native(
        asks(call("weather", city="Bern")), "it rains", '{"city": "Bern", "rain": true}'
    )
    result = await run_agent(tmp_path, engine, weather, schema=Weather)
    assert result.value == Weather(city="Bern", rain=True)
    assert turns(engine.requests[-1])[-1] == Message("user", JSON_REQUEST)
    assert engine.requests[-1].schema is not None
    (tmp_path / "json").mkdir()
    engine = in_json(
        {"tool": "weather", "arguments": {"city": "Bern"}},
        {"answer": {"city": "Bern", "rain": True}},
    )
    result = await run_agent(tmp_path / "json", engine, weather, schema=Weather)
    assert result.value == Weather(city="Bern", rain=True)
    assert len(engine.requests) == 2


@pytest.mark.parametrize("written", ['{"answer": {"city": "Be', '{"answer": {"city": 3}}'])
async def test_an_answer_that_does_not_satisfy_the_schema_is_refused(
    tmp_path: Path, written: str
) -> None:
    with pytest.raises(StructuredOutputInvalid):
        await run_agent(tmp_path, in_json(written), weather, schema=Weather)


async def test_an_agent_without_tools_answers_at_once(tmp_path: Path) -> None:
    engine = in_json("all is well")
    assert (await run_agent(tmp_path, engine)).value == "all is well"
    assert engine.requests[0].schema is None
    (tmp_path / "typed").mkdir()
    engine = in_json({"value": 3})
    assert (await run_agent(tmp_path / "typed", engine, schema=int)).value == 3
    assert len(engine.requests) == 1


async def test_repeated_and_missing_ids_of_calls_become_unique(tmp_path: Path) -> None:
    ask = asks(call("weather", "1", city="Bern"), call("weather", "1", city="Oslo"))
    engine = native(ask, ask, asks(call("weather", city="Rome")), "done")
    result = await run_agent(tmp_path, engine, weather)
    ids = [use.id for use in result.calls]
    assert len(set(ids)) == 5
    assert all(ids)
    asked = [made.id for turn in result.turns for made in turn.tool_calls]
    answered = [turn.tool_call_id for turn in result.turns if turn.role == "tool"]
    assert asked == answered == ids


async def test_tokens_of_all_calls_are_counted(tmp_path: Path) -> None:
    engine = native(asks(call("weather", city="Bern"), text="one two"), "three")
    result = await run_agent(tmp_path, engine, weather)
    assert result.usage == Usage(1 + 1 + 2 + 3, 3)


async def test_an_agent_is_a_step_with_its_calls_at_their_places(tmp_path: Path) -> None:
    engine = native(
        asks(call("weather", city="Bern"), call("population", city="Bern")),
        asks(call("weather", city="Oslo")),
        "done",
    )

    @flow
    async def one_agent() -> str:
        return (await agent("Bern?", [weather, population], name="scout")).value

    async with scripted_runtime(tmp_path, engine) as runtime:
        await runtime.run(one_agent)
        record = await the_run(runtime.store)
    paths = {path for path, each in record.journal.items() if each.kind is not StepKind.VALUE}
    assert paths == {
        "scout",
        "scout/model-info",
        "scout/llm",
        "scout/llm#2",
        "scout/llm#3",
        "scout/weather[0]",
        "scout/population[1]",
        "scout/weather[2:0]",
    }


async def test_a_plain_function_is_a_tool_with_external_effects(tmp_path: Path) -> None:
    def send(text: str) -> str:
        return f"sent {text}"

    engine = native(asks(call("send", text="hi")), "done")

    @flow
    async def one_agent() -> None:
        await agent("send hi", [send])

    async with scripted_runtime(tmp_path, engine) as runtime:
        await runtime.run(one_agent)
        record = await the_run(runtime.store)
    assert record.journal["agent/send[0]"].effects == "external"


async def test_steps_and_flows_are_tools_too(tmp_path: Path) -> None:
    @step
    async def look(city: str) -> str:
        """Look at a city."""
        return await llm(f"look at {city}")

    @flow
    async def visit(city: str) -> str:
        return f"visited {city}"

    engine = native(asks(call("look", city="Bern"), call("visit", city="Oslo")), "nice", "done")
    await run_agent(tmp_path, engine, look, visit)
    assert results(engine.requests[-1]) == ["nice", "visited Oslo"]


async def test_an_agent_may_be_a_tool_of_another(tmp_path: Path) -> None:
    @step
    async def expert(question: str) -> str:
        return (await agent(question, [weather])).value

    engine = native(
        asks(call("expert", question="Bern?")), asks(call("weather", city="Bern")), "rain", "done"
    )
    result = await run_agent(tmp_path, engine, expert)
    assert (result.value, result.calls[0].result) == ("done", "rain")


async def test_sampling_goes_to_every_call(tmp_path: Path) -> None:
    engine = native(asks(call("weather", city="Bern")), "done")
    await run_agent(tmp_path, engine, weather, temperature=0.1, seed=3, max_tokens=77, stop="END")
    for request in engine.requests:
        assert (request.temperature, request.seed, request.max_tokens, request.stop) == (
            0.1,
            3,
            77,
            ("END",),
        )


@pytest.mark.parametrize("judge_reads_calls", [True, False])
async def test_an_agent_on_another_engine_asks_in_that_one_s_form(
    tmp_path: Path, judge_reads_calls: bool
) -> None:
    """Not in the form of the default engine, which here is the other one."""
    if judge_reads_calls:
        default, judge = in_json(), native(asks(call("weather", city="Bern")), "done")
    else:
        asked = {"tool": "weather", "arguments": {"city": "Bern"}}
        default, judge = native(), in_json(asked, {"answer": "done"})

    @flow
    async def judged() -> int:
        result = await agent("Bern?", [weather], engine="judge", max_rounds=1)
        return len(result.calls)

    async with scripted_runtime(tmp_path, default, engines={"judge": judge}) as runtime:
        assert (await runtime.run(judged)).value == 1
    assert default.requests == []
    assert bool(judge.requests[0].tools) == judge_reads_calls


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"max_rounds": 0}, "max_rounds"),
        ({"max_rounds": True}, "max_rounds"),
        ({"max_invalid": -1}, "max_invalid"),
        ({"max_result_characters": 0}, "max_result_characters"),
        ({"on_tool_error": "ignore"}, "on_tool_error"),
        ({"prompt": []}, "prompt"),
        ({"schema": "Weather"}, "schema"),
        ({"top_k": 0}, "top_k"),
    ],
)
async def test_an_argument_that_is_out_of_range_is_refused_before_anything_is_asked(
    tmp_path: Path, arguments: Any, says: str
) -> None:
    engine = native("never")
    with pytest.raises((ValueError, InvalidRequest), match=says):
        await run_agent(tmp_path, engine, weather, **arguments)
    assert not engine.requests


async def test_two_tools_with_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two tools have the name 'weather'"):
        await run_agent(tmp_path, native("never"), weather, weather)


async def test_a_tool_in_place_of_a_list_is_refused(tmp_path: Path) -> None:
    @flow
    async def one_agent() -> None:
        await agent("Bern?", weather)  # type: ignore[call-overload]

    async with scripted_runtime(tmp_path, native("never")) as runtime:
        with pytest.raises(ValueError, match="must be a list of tools"):
            await runtime.run(one_agent)


async def test_recorded_texts_show_the_tool_calls(tmp_path: Path) -> None:
    engine = native(asks(call("weather", city="Bern"), text="I look"), "done")

    @flow
    async def one_agent() -> None:
        await agent("Bern?", [weather])

    async with scripted_runtime(tmp_path, engine, record_text=True) as runtime:
        await runtime.run(one_agent)
        record = await the_run(runtime.store)
        first, _, second = record.calls
        async with runtime.store.reading() as tx:
            answer = await tx.payloads.get(first.output_payload or "")
            prompt = await tx.payloads.get(second.prompt_payload or "")
    shown = 'I look\nweather {"city": "Bern"}'
    assert answer.decode() == shown
    assert f"assistant: {shown}\n\ntool: rain in Bern" in prompt.decode()


async def test_outside_a_flow_an_agent_says_so() -> None:
    with pytest.raises(OutsideRun, match="agent"):
        await agent("hi", [weather])


async def test_two_agents_at_once_do_not_mix_their_chats(tmp_path: Path) -> None:
    def script(request: GenerationRequest) -> Any:
        asked = turns(request)[0].text
        return asks(call("weather", city=asked)) if len(turns(request)) == 1 else f"done {asked}"

    engine = ScriptedEngine(script, tool_parser="hermes", token_s=0.001)

    @flow
    async def both() -> list[str]:
        found = await gather(agent("Bern", [weather]), agent("Oslo", [weather]))
        return [f"{each.value}: {each.calls[0].result}" for each in found]

    async with scripted_runtime(tmp_path, engine) as runtime:
        result = await runtime.run(both)
    assert result.value == ["done Bern: rain in Bern", "done Oslo: rain in Oslo"]
