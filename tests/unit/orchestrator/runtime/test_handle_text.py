"""The text of a run's LLM calls, by its handle: in order, for all who ask, if somebody does."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import RunHandle, Runtime, choose, flow, gather, llm, llm_stream, step
from orchestrator.events import CallFinished, CallStarted, Event, RunFinished, TextGenerated
from orchestrator.testing import ScriptedEngine
from serving.generation import Completion, GenerationRequest
from store.records import Status
from tests.strategies import examples
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    Boom,
    answer_ok,
    ask,
    law,
    scripted_runtime,
    until_generating,
)

ID = "the-run"


class Watched(ScriptedEngine):
    """An engine that counts the calls that are made as a whole."""

    num_whole = 0

    async def generate(self, request: GenerationRequest) -> Completion:
        self.num_whole += 1
        return await super().generate(request)


@step
async def write(word: str) -> str:
    return await llm(f"write {word}")


@step(name="a/[strange]#name")
async def strange() -> str:
    return await llm("strange")


def echo(request: GenerationRequest) -> str:
    assert not isinstance(request.prompt, str)
    return f"<{request.prompt[-1].content}>"


async def texts(handle: RunHandle[object], step: str | None = None) -> str:
    return "".join([piece async for piece in handle.text(step)])


async def all_events(handle: RunHandle[object], *, text: bool = True) -> list[Event]:
    return [event async for event in handle.events(text=text)]


async def test_the_pieces_come_between_the_start_and_the_end_of_their_call(
    runtime: Runtime,
) -> None:
    handle = runtime.start(flow(ask))
    events = await all_events(handle)
    [started] = [event for event in events if isinstance(event, CallStarted)]
    [finished] = [event for event in events if isinstance(event, CallFinished)]
    pieces = [event for event in events if isinstance(event, TextGenerated)]
    assert [piece.text for piece in pieces] == ["all", " is", " well"]
    for piece in pieces:
        assert events.index(started) < events.index(piece) < events.index(finished)
        assert (piece.run_id, piece.node, piece.path) == (handle.id, started.node, started.path)
        assert started.at_s <= piece.at_s <= finished.at_s
    assert isinstance(events[-1], RunFinished)


async def test_a_run_whose_text_nobody_asks_for_does_not_stream_and_has_no_such_events(
    tmp_path: Path,
) -> None:
    engine, emitted = Watched(answer_ok), list[Event]()
    async with scripted_runtime(tmp_path, engine, on_event=emitted.append) as runtime:
        handle = runtime.start(flow(ask))
        events = await all_events(handle, text=False)
        assert engine.num_whole == 1
        asked = runtime.start(flow(ask))
        assert await texts(asked) == "all is well"
        assert engine.num_whole == 1
        await runtime.run(flow(ask))
        assert engine.num_whole == 2
        assert await all_events(asked, text=False) == [
            event for event in await all_events(asked) if not isinstance(event, TextGenerated)
        ]
    for event in (*events, *emitted):
        assert not isinstance(event, TextGenerated)


async def test_only_the_text_of_calls_within_the_named_step(tmp_path: Path) -> None:
    @flow(name="inner")
    async def inner() -> str:
        return await write("d")

    async def body() -> None:
        await llm("outside")
        await write("a")
        await gather(write("b"), ask("other"))
        await asyncio.gather(write("c"))
        await inner()
        await strange()
        await choose("which?", ["yes", "no"])

    async with scripted_runtime(tmp_path, ScriptedEngine(echo)) as runtime:
        handle = runtime.start(flow(name="f")(body))
        await texts(handle)
        assert await texts(handle, "write") == "<write a><write b><write c><write d>"
        assert await texts(handle, "inner") == "<write d>"
        assert await texts(handle, "a/[strange]#name") == "<strange>"
        assert await texts(handle, "llm") == await texts(handle, "no such step") == ""
        for text in ("<outside>", "<other>", "<which?"):
            assert text in await texts(handle)
        with pytest.raises(TypeError, match="name of a step"):
            handle.text(write)  # type: ignore[arg-type]


@settings(law, max_examples=examples(20))
@given(turns=st.lists(st.integers(0, 6), min_size=1, max_size=40))
def test_every_reader_gets_every_piece_once_and_in_order(turns: list[int]) -> None:
    """However slow it is, and also if another one stops early."""

    async def read(handle: RunHandle[object], first: int) -> list[Event]:
        seen = []
        async for event in handle.events(text=True):
            seen.append(event)
            for _ in range(turns[(first + len(seen)) % len(turns)]):
                await asyncio.sleep(0)
        return seen

    async def stop_early(handle: RunHandle[object]) -> None:
        async with aclosing(handle.text()) as pieces:
            async for _ in pieces:
                break

    async def body() -> None:
        await gather(write("a"), write("b"))
        await write("c")

    async def run() -> None:
        with TemporaryDirectory() as folder:
            async with scripted_runtime(Path(folder), ScriptedEngine(echo)) as runtime:
                handle: RunHandle[object] = runtime.start(flow(name="f")(body))
                *readings, _ = await asyncio.gather(
                    *(read(handle, first) for first in range(3)), stop_early(handle)
                )
                late = await all_events(handle)
        assert readings == [late] * 3
        of_call: dict[int, str] = {}
        for event in late:
            if isinstance(event, TextGenerated):
                of_call[event.node] = of_call.get(event.node, "") + event.text
        assert sorted(of_call.values()) == ["<write a>", "<write b>", "<write c>"]

    asyncio.run(run())


async def test_a_call_that_began_before_anybody_asked_gives_its_text_at_its_end(
    tmp_path: Path,
) -> None:
    engine = Watched(answer_ok, token_s=0.01)

    async def body() -> None:
        await llm("whole")
        await llm("streamed", on_text=own.append)

    own: list[str] = []
    async with scripted_runtime(tmp_path, engine) as runtime:
        handle = runtime.start(flow(name="f")(body))
        await until_generating(engine)
        assert [piece async for piece in handle.text()] == ["all is well", "all", " is", " well"]
        assert own == ["all", " is", " well"]


async def test_a_call_that_its_caller_streams_gives_nothing_twice_to_one_who_asks_meanwhile(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(answer_ok, token_s=0.01)
    first = asyncio.Event()

    async def body() -> str:
        return await llm("x", on_text=lambda _: first.set())

    async with scripted_runtime(tmp_path, engine) as runtime:
        handle = runtime.start(flow(name="f")(body))
        await first.wait()
        assert await texts(handle) == "all is well"


async def test_the_iterators_end_with_a_run_that_fails_and_awaiting_it_raises(
    runtime: Runtime,
) -> None:
    async def body() -> None:
        await ask()
        raise Boom("why")

    handle = runtime.start(flow(name="f")(body))
    assert await texts(handle) == "all is well"
    with pytest.raises(Boom):
        await handle
    assert isinstance((await all_events(handle))[-1], RunFinished)


async def test_the_iterators_end_with_a_run_that_is_cancelled(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok, token_s=NEVER_S)
    async with scripted_runtime(tmp_path, engine) as runtime:
        handle = runtime.start(flow(ask))
        reading = asyncio.create_task(texts(handle))
        await until_generating(engine)
        await handle.cancel()
        assert await reading == ""
        assert handle.status is Status.CANCELLED


async def test_a_resumed_run_gives_recorded_text_in_one_piece_and_new_text_as_it_arrives(
    tmp_path: Path,
) -> None:
    failures = [Boom("once")]

    async def body() -> str:
        first = await llm("x")
        async for _ in llm_stream("y"):
            pass
        if failures:
            raise failures.pop()
        return first + await llm("z")

    async with scripted_runtime(tmp_path) as runtime:
        run = flow(name="f")(body).options(run_id=ID)
        former = runtime.start(run)
        with pytest.raises(Boom):
            await former
        handle = runtime.start(run)
        events = await all_events(handle)
        pieces = [event for event in events if isinstance(event, TextGenerated)]
        assert [piece.text for piece in pieces] == ["all is well"] * 2 + ["all", " is", " well"]
        assert [piece.path for piece in pieces] == ["llm", "llm#2"] + ["llm#3"] * 3
        assert [piece.node for piece in pieces] == [0, 1, 2, 2, 2]
        completed = runtime.start(run)
        assert await texts(completed) == ""
        assert (await completed).value == "all is wellall is well"


async def test_displays_ignore_text(runtime: Runtime) -> None:
    from orchestrator.display.progress import RunProgress

    handle = runtime.start(flow(ask))
    progress = RunProgress()
    for event in await all_events(handle):
        progress.update(event)
    assert (progress.num_done, progress.output_tokens) == (1, 3)
    assert handle.log is not None
    log, before = handle.log, handle.log.timeline()
    log.add(TextGenerated(handle.id, 0, "ask/llm", "text", 0.0))
    assert log.timeline() == before
