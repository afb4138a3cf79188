"""Calls on several engines of one runtime."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import (
    BudgetExceeded,
    Runtime,
    Settings,
    UnknownEngine,
    UnknownModel,
    best_so_far,
    budget,
    choose,
    flow,
    gather,
    llm,
    llm_stream,
    model_info,
    open_runtime,
    step,
    timeline,
)
from orchestrator.events import CallStarted, Event
from orchestrator.testing import ScriptedEngine
from serving.errors import (
    EngineClosed,
    EngineDied,
    ModelNotServed,
    RemoteUnavailable,
    ServingError,
)
from serving.generation import Engine, EngineInfo, GenerationRequest
from store.errors import StoreError
from store.records import Status
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import (
    Recorded,
    answer_ok,
    recorded,
    store_url,
    the_run,
)
from tests.unit.orchestrator.run_samples import ID


class Named(ScriptedEngine):
    """An engine that answers its own name; `noise`: with random weights."""

    def __init__(self, model: str, *, noise: bool = False) -> None:
        super().__init__(lambda _: f"by {model}", model=model)
        self._noise = noise

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, random_weights=self._noise)


class Server(Named):
    """An engine that serves several models; which is its own is known once it has started."""

    def __init__(self, *models: str) -> None:
        super().__init__(models[0])
        self.others = {model: Named(model) for model in models[1:]}
        self.is_down = False

    @property
    def info(self) -> EngineInfo:
        return super().info if self.num_starts else replace(super().info, model="")

    async def start(self) -> None:
        if self.is_down:
            raise RemoteUnavailable("http://judge", "connection refused")
        await super().start()

    async def models(self) -> tuple[str, ...]:
        return (self._model, *self.others)

    async def of_model(self, model: str) -> Engine:
        if model == self._model:
            return self
        if model not in self.others:
            raise ModelNotServed("http://judge", model, await self.models())
        return self.others[model]


class Dead(Named):
    """An engine that has died."""

    async def start(self) -> None:
        raise EngineDied("out of memory")


@asynccontextmanager
async def runtime_with(
    folder: Path,
    engines: Mapping[str, Engine],
    *,
    default: ScriptedEngine | None = None,
    events: list[Event] | None = None,
) -> AsyncIterator[Runtime]:
    settings = Settings(store=store_url(folder), fit_every=0)
    async with open_runtime(
        settings,
        engine=default or Named("small"),
        engines=engines,
        on_event=None if events is None else events.append,
    ) as runtime:
        yield runtime


@step
async def review(text: str) -> str:
    return await llm(text, engine="judge")


@flow
async def reviewed() -> list[str]:
    draft = await llm("write")
    return [draft, await review(draft)]


async def test_a_call_goes_to_the_engine_that_it_names(tmp_path: Path) -> None:
    default, judge, events = Named("small"), Named("large"), list[Event]()
    async with runtime_with(tmp_path, {"judge": judge}, default=default, events=events) as runtime:
        assert (await runtime.run(reviewed)).value == ["by small", "by large"]
        run = await the_run(runtime.store)
    assert [len(default.requests), len(judge.requests)] == [1, 1]
    assert [(call.engine, call.engine_name, call.model) for call in run.calls] == [
        ("scripted", "", "small"),
        ("scripted", "judge", "large"),
    ]
    started = [event for event in events if isinstance(event, CallStarted)]
    assert [(event.engine, event.engine_name, event.model) for event in started] == [
        (call.engine, call.engine_name, call.model) for call in run.calls
    ]
    assert [call.identity for call in run.calls] == ["small:reviewed", "large:review"]


async def test_named_engines_start_with_their_first_call_and_are_closed_with_the_runtime(
    tmp_path: Path,
) -> None:
    default, judge, unused = Named("small"), Named("large"), Named("other")
    engines = {"judge": judge, "unused": unused}
    async with runtime_with(tmp_path, engines, default=default) as runtime:
        assert (default.num_starts, judge.num_starts, unused.num_starts) == (0, 0, 0)
        await runtime.run(reviewed)
        assert judge.num_starts
        assert not unused.num_starts
    assert [engine.is_closed for engine in (default, judge, unused)] == [True] * 3


async def test_a_call_in_progress_on_a_named_engine_ends_with_the_runtime(tmp_path: Path) -> None:
    slow = ScriptedEngine(answer_ok, token_s=3600, model="slow")

    @flow
    async def waiting() -> str:
        return await llm("wait", engine="judge")

    async with runtime_with(tmp_path, {"judge": slow}) as runtime:
        handle = runtime.start(waiting)
        while not slow.num_running:  # noqa: ASYNC110 - it has no event to wait for
            await asyncio.sleep(0.001)
    with pytest.raises(EngineClosed):
        await handle
    async with runtime_with(tmp_path, {}) as runtime:
        [call] = (await the_run(runtime.store)).calls
    assert (call.status, call.error_type) == (Status.FAILED, "EngineClosed")


async def asking_for(runtime: Runtime, **where: str) -> str:
    @flow
    async def asking() -> str:
        return await llm("hello", **where)  # type: ignore[call-overload, no-any-return]

    return (await runtime.run(asking)).value


async def test_a_stream_comes_from_the_engine_that_it_names(tmp_path: Path) -> None:
    @flow
    async def streaming() -> list[str]:
        return [piece async for piece in llm_stream("hello", engine="judge", deadline="20s")]

    async with runtime_with(tmp_path, {"judge": Named("large")}) as runtime:
        assert (await runtime.run(streaming)).value == ["by", " large"]
        [call] = (await the_run(runtime.store)).calls
    assert (call.engine_name, call.model, call.status) == ("judge", "large", Status.COMPLETED)


async def test_an_unknown_name_is_an_error_that_lists_the_engines(tmp_path: Path) -> None:
    async with runtime_with(tmp_path, {"judge": Named("large"), "tiny": Named("t")}) as runtime:
        for name in ("jugde", "", "small"):
            with pytest.raises(UnknownEngine, match="the named ones are judge, tiny"):
                await asking_for(runtime, engine=name)


@pytest.mark.parametrize("argument", ["engine", "model"])
@pytest.mark.parametrize("value", [3, ["judge"], Named("large"), b"judge"])
async def test_an_engine_is_named_by_a_text(tmp_path: Path, argument: str, value: object) -> None:
    async with runtime_with(tmp_path, {"judge": Named("large")}) as runtime:
        with pytest.raises(ValueError, match=f"{argument}= names one"):
            await asking_for(runtime, **{argument: value})  # type: ignore[arg-type]


async def test_a_model_is_found_among_all_engines(tmp_path: Path) -> None:
    engines = {"judge": Named("large"), "server": Server("a", "b")}
    async with runtime_with(tmp_path, engines) as runtime:
        for model, answer in [
            ("small", "by small"),
            ("large", "by large"),
            ("a", "by a"),
            ("b", "by b"),
        ]:
            assert await asking_for(runtime, model=model) == answer
        with pytest.raises(UnknownModel, match="'c': served are small, large, a, b"):
            await asking_for(runtime, model="c")


async def test_a_model_with_an_engine_is_one_that_this_engine_serves(tmp_path: Path) -> None:
    engines = {"judge": Named("large"), "server": Server("a", "b")}
    async with runtime_with(tmp_path, engines) as runtime:
        assert await asking_for(runtime, engine="server") == "by a"
        assert await asking_for(runtime, engine="server", model="b") == "by b"
        assert await asking_for(runtime, engine="judge", model="large") == "by large"
        for engine, model in [("server", "large"), ("judge", "a")]:
            with pytest.raises(ModelNotServed, match=model):
                await asking_for(runtime, engine=engine, model=model)


async def test_an_engine_that_cannot_start_fails_its_own_calls_only(tmp_path: Path) -> None:
    server = Server("a")
    server.is_down = True

    async def error_or_answer(engine: str | None) -> str:
        try:
            return await llm("hello", engine=engine)
        except ServingError as error:
            return str(error)

    @flow
    async def trying() -> list[str]:
        return list(await gather(*(error_or_answer(name) for name in (None, "server", "dead"))))

    engines = {"server": server, "dead": Dead("d")}
    async with runtime_with(tmp_path, engines) as runtime:
        answers = (await runtime.run(trying)).value
        assert answers[0] == "by small"
        assert "connection refused" in answers[1]
        assert "out of memory" in answers[2]
        calls = (await the_run(runtime.store)).calls
        assert sorted((call.engine_name, call.status) for call in calls) == [
            ("", Status.COMPLETED),
            ("dead", Status.FAILED),
            ("server", Status.FAILED),
        ]
        server.is_down = False
        assert await asking_for(runtime, engine="server") == "by a"


async def test_a_server_that_is_down_hides_no_model_of_another_engine(tmp_path: Path) -> None:
    down = Server("a", "x")
    down.is_down = True
    async with runtime_with(tmp_path, {"down": down, "up": Server("b", "x")}) as runtime:
        assert await asking_for(runtime, model="x") == "by x"
        with pytest.raises(RemoteUnavailable):  # it may serve this one
            await asking_for(runtime, model="y")


async def test_the_error_of_an_engine_that_a_flow_caught_is_replayed(tmp_path: Path) -> None:
    server, fail_once = Server("a"), RaiseOnce()
    server.is_down = True

    @flow
    async def falling_back() -> str:
        try:
            answer = await llm("hard", engine="server")
        except RemoteUnavailable:
            answer = await llm("hard")
        fail_once()
        return answer

    async with runtime_with(tmp_path, {"server": server}) as runtime:
        await run_until_interrupted(runtime, falling_back)
        server.is_down = False
        assert (await runtime.resume(ID, falling_back)).value == "by small"
    assert not server.requests


async def test_answers_of_named_engines_are_replayed_without_the_engines(tmp_path: Path) -> None:
    fail_once = RaiseOnce()

    @flow
    async def interrupted() -> list[str]:
        answers = [await llm("a", engine="judge"), await llm("b", model="large")]
        answers.append((await choose("which?", ["x", "y"], engine="judge")).text)
        fail_once()
        return answers

    judge = ScriptedEngine(lambda request: "B" if request.choices else "yes", model="large")
    async with runtime_with(tmp_path, {"judge": judge}) as runtime:
        await run_until_interrupted(runtime, interrupted)
    async with runtime_with(tmp_path, {}) as runtime:
        result = await runtime.resume(ID, interrupted)
        assert result.value == ["yes", "yes", "y"]
    assert len(judge.requests) == 3


async def test_a_resumed_run_warns_of_each_engine_that_is_another_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fail_once = RaiseOnce()

    @flow
    async def interrupted() -> str:
        fail_once()
        return await llm("a", engine="judge")

    engines = {"judge": Named("large"), "other": Named("o"), "same": Named("s")}
    async with runtime_with(tmp_path, engines) as runtime:
        await run_until_interrupted(runtime, interrupted)
        run = await recorded(runtime.store, ID)
        assert run.run.attributes["engines"] == {
            "judge": {"engine": "scripted", "model": "large"},
            "other": {"engine": "scripted", "model": "o"},
            "same": {"engine": "scripted", "model": "s"},
        }
    engines = {"judge": Named("larger"), "same": Named("s")}
    async with runtime_with(tmp_path, engines) as runtime:
        with caplog.at_level(logging.WARNING):
            assert (await runtime.resume(ID, interrupted)).value == "by larger"
    assert [record.getMessage() for record in caplog.records] == [
        f"run {ID} began with scripted (large) as engine judge, and continues with scripted"
        " (larger)",
        f"run {ID} began with an engine other, which is missing now",
    ]


async def test_random_weights_of_a_named_engine_are_logged_and_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with runtime_with(tmp_path, {"judge": Named("large", noise=True)}) as runtime:
            result = await runtime.run(reviewed)
            await runtime.run(reviewed)
            run = await recorded(runtime.store, result.run_id)
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning == "engine judge: model large has random weights: its text is meaningless"
    assert [call.random_weights for call in run.calls] == [False, True]
    assert not run.run.random_weights


async def test_a_timeline_names_the_engine_of_a_call_and_all_models(tmp_path: Path) -> None:
    async with runtime_with(tmp_path, {"judge": Named("large", noise=True)}) as runtime:
        result = await runtime.run(reviewed)
        shown = timeline(result.run_id, store=store_url(tmp_path))
    assert "review @judge" in shown.text()
    for picture in (shown.svg, timeline_of(result.log)):
        assert "models small, large" in picture
        assert "of one model: random weights" in picture


def timeline_of(log: object) -> str:
    return str(log.timeline().svg)  # type: ignore[attr-defined]


async def test_model_info_describes_the_model_of_an_engine(tmp_path: Path) -> None:
    @flow
    async def asking() -> list[str]:
        infos = [
            await model_info(),
            await model_info("judge"),
            await model_info(model="b"),
            await model_info("server", model="b"),
        ]
        return [info.name for info in infos]

    engines = {"judge": Named("large"), "server": Server("a", "b")}
    async with runtime_with(tmp_path, engines) as runtime:
        assert (await runtime.run(asking)).value == ["small", "large", "b", "b"]


async def test_a_cached_result_is_not_used_if_the_model_of_a_named_engine_is_another(
    tmp_path: Path,
) -> None:
    judges = [Named("large"), Named("large"), Named("larger")]
    answers = []
    for judge in judges:
        async with runtime_with(tmp_path, {"judge": judge}) as runtime:
            answers.append((await runtime.run(flow(cached_review))).value)
    assert answers == ["by large", "by large", "by larger"]
    assert [len(judge.requests) for judge in judges] == [1, 0, 1]


@step(cache=True)
async def cached_review(text: str = "a text") -> str:
    return await llm(text, engine="judge")


async def test_a_budget_counts_the_tokens_of_all_engines(tmp_path: Path) -> None:
    @flow
    async def spending() -> list[str]:
        answers = list[str]()
        try:
            async with budget(tokens=8):  # a call takes 1 token of prompt and 2 of answer
                while True:
                    answers.append(await llm("word", engine=[None, "judge"][len(answers) % 2]))
                    best_so_far(answers)
        except BudgetExceeded as spent:
            answers.append(f"{spent.args[1]} tokens")
        return answers

    async with runtime_with(tmp_path, {"judge": Named("large")}) as runtime:
        answers = (await runtime.run(spending)).value
    assert answers == ["by small", "by large", "by small", "9 tokens"]


async def test_a_call_that_a_budget_refuses_starts_no_engine(tmp_path: Path) -> None:
    @flow
    async def spending() -> None:
        async with budget(calls=0):
            await llm("word", engine="judge")

    judge = Named("large")
    async with runtime_with(tmp_path, {"judge": judge}) as runtime:
        with pytest.raises(BudgetExceeded):
            await runtime.run(spending)
    assert not judge.num_starts


async def test_two_first_calls_of_an_engine_share_it(tmp_path: Path) -> None:
    @flow
    async def both() -> tuple[str, ...]:
        return await gather(*(llm(f"{n}", model="b") for n in range(5)))

    server = Server("a", "b")
    async with runtime_with(tmp_path, {"server": server}) as runtime:
        assert (await runtime.run(both)).value == ("by b",) * 5


@pytest.mark.parametrize("name", ["", "the judge", "-x", "x" * 65])
async def test_what_cannot_name_an_engine_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name an engine"):
        async with runtime_with(tmp_path, {name: Named("large")}):
            pass


async def test_engines_are_closed_if_the_store_cannot_be_opened(tmp_path: Path) -> None:
    default, judge = Named("small"), Named("large")
    settings = Settings(store=f"sqlite:///{tmp_path}")
    with pytest.raises(StoreError):
        async with open_runtime(settings, engine=default, engines={"judge": judge}):
            pass
    assert (default.is_closed, judge.is_closed) == (True, True)


def calls_of(run: Recorded) -> list[tuple[str | None, str | None]]:
    return [(call.engine_name, call.model) for call in run.calls]


async def test_the_engines_of_the_settings_are_those_of_the_runtime(tmp_path: Path) -> None:
    """A remote engine is not asked before its first call."""
    settings = Settings.model_validate(
        {
            "store": store_url(tmp_path),
            "engines": {"judge": {"engine": "http://127.0.0.1:1/v1", "model": "large"}},
        }
    )

    @flow
    async def trying() -> str:
        try:
            return await llm("x", engine="judge")
        except RemoteUnavailable as error:
            return type(error).__name__

    async with open_runtime(settings, engine=Named("small")) as runtime:
        assert (await runtime.run(trying)).value == "RemoteUnavailable"
        run = await the_run(runtime.store)
    assert calls_of(run) == [("judge", "large")]
    assert run.calls[0].identity == "large:trying"


def test_a_request_has_no_engine_of_its_own() -> None:
    """The choice of an engine is not part of what is sent, nor of what identifies a call."""
    assert not {"engine", "model"} & set(GenerationRequest.__dataclass_fields__)
