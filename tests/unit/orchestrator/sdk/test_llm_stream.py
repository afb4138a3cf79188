"""llm_stream: pieces as they arrive; leaving early; deadlines; what a resumed run reads."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest

from orchestrator import (
    BudgetExceeded,
    DeadlineExceeded,
    FlowChanged,
    OutsideRun,
    Runtime,
    budget,
    flow,
    gather,
    llm,
    llm_stream,
    step,
    within,
)
from orchestrator.testing import ScriptedEngine
from serving.errors import InvalidRequest, RequestFailed
from serving.generation import Chunk, GenerationRequest
from store.records import Status
from tests.unit.orchestrator.interrupted_runs import die_during_step
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    Boom,
    Recorded,
    recorded,
    scripted_runtime,
    until_generating,
)
from tests.unit.orchestrator.virtual_time import in_virtual_time, timed_runtime

ID = "the-run"


def numbers(request: GenerationRequest) -> str:
    """Another text for each request."""
    return f"one two three of {request.request_id}"


async def all_of(stream: AsyncGenerator[str, None]) -> list[str]:
    return [piece async for piece in stream]


async def first_of(stream: AsyncGenerator[str, None]) -> str:
    async for piece in stream:
        return piece
    raise AssertionError("no text")


@step
async def keep(text: str) -> str:
    return text


@step
async def fail_first(failures: int) -> str:
    if attempts.pop("left", 0):
        raise Boom("the first time")
    return "passed"


attempts: dict[str, int] = {}


async def test_the_pieces_arrive_one_by_one_and_join_to_the_answer_of_llm(runtime: Runtime) -> None:
    async def body() -> tuple[list[str], str]:
        return await all_of(llm_stream("x")), await llm("x")

    pieces, whole = (await runtime.run(flow(body))).value
    assert pieces == ["all", " is", " well"]
    assert whole == "all is well"


async def test_it_is_recorded_as_llm_is(tmp_path: Path) -> None:
    async def streamed() -> str:
        return "".join(await all_of(llm_stream("x", system="s", max_tokens=2)))

    async def whole() -> str:
        return await llm("x", system="s", max_tokens=2)

    runs: list[Recorded] = []
    for folder, body in (("a", streamed), ("b", whole)):
        (tmp_path / folder).mkdir()
        async with scripted_runtime(tmp_path / folder) as runtime:
            result = await runtime.run(flow(name="f")(body).options(run_id=ID))
            assert result.value == "all is"
            assert (result.usage.calls, result.usage.output_tokens) == (1, 2)
            runs.append(await recorded(runtime.store, ID))
    left, right = runs
    [call], [other] = left.calls, right.calls
    assert (call.status, call.output_tokens, call.finish_reason) == (Status.COMPLETED, 2, "length")
    assert (call.step_path, call.identity, call.stage) == (
        other.step_path,
        other.identity,
        other.stage,
    )
    assert [s.arguments for s in left.journal.values()] == [
        s.arguments for s in right.journal.values()
    ]
    assert left.journal["llm"].status is Status.COMPLETED


@pytest.mark.parametrize("was_streamed", [True, False])
async def test_a_resumed_run_gets_the_recorded_text_in_one_piece_of_llm_or_llm_stream(
    tmp_path: Path, was_streamed: bool
) -> None:
    pieces: list[str] = []
    attempts["left"] = 1
    streams = was_streamed

    async def body() -> str:
        pieces.clear()
        if streams:
            pieces.extend(await all_of(llm_stream("x")))
        else:
            pieces.append(await llm("x"))
        await fail_first(1)
        return "".join(pieces)

    engine = ScriptedEngine(numbers)
    async with scripted_runtime(tmp_path, engine) as runtime:
        run = flow(name="f")(body).options(run_id=ID)
        with pytest.raises(Boom):
            await runtime.run(run)
        text, streams = "".join(pieces), not streams
        assert (await runtime.run(run)).value == text
    assert pieces == [text]
    assert len(engine.requests) == 1


@asynccontextmanager
async def slow_runtime(tmp_path: Path) -> AsyncIterator[tuple[Runtime, ScriptedEngine]]:
    engine = ScriptedEngine(numbers, token_s=0.01)
    async with scripted_runtime(tmp_path, engine) as runtime:
        yield runtime, engine


async def leaves_by_break() -> str:
    async for piece in llm_stream("x"):
        return piece
    return ""


async def leaves_by_aclose() -> str:
    async with aclosing(llm_stream("x")) as pieces:
        return await anext(pieces)


async def leaves_by_an_error() -> str:
    try:
        async for piece in llm_stream("x"):
            raise Boom(piece)
    except Boom as error:
        return str(error)
    return ""


async def leaves_a_variable() -> str:
    stream = llm_stream("x")
    piece = await anext(stream)
    del stream
    return piece


LEAVING = [leaves_by_break, leaves_by_aclose, leaves_by_an_error, leaves_a_variable]


@pytest.mark.parametrize("leaves", LEAVING)
async def test_leaving_early_aborts_the_call_and_records_it_as_cancelled(
    tmp_path: Path, leaves: Callable[[], object]
) -> None:
    async with slow_runtime(tmp_path) as (runtime, engine):
        result = await runtime.run(flow(name="f")(leaves).options(run_id=ID))
        record = await recorded(runtime.store, ID)
    assert result.value == "one"
    assert engine.aborted == [request.request_id for request in engine.requests]
    assert [call.status for call in record.calls] == [Status.CANCELLED]
    assert record.still_running() == []
    assert record.run.status is Status.COMPLETED


@pytest.mark.parametrize("is_slow", [True, False])
@pytest.mark.parametrize("leaves", LEAVING)
async def test_a_resumed_run_reads_as_much_of_an_answer_that_it_left_as_before(
    tmp_path: Path, leaves: Callable[[], object], is_slow: bool
) -> None:
    """Also if the engine had finished the answer when the flow left."""
    attempts["left"] = 1
    texts: list[str] = []

    async def body() -> str:
        stream_left = leaves()
        texts.append(await keep(await stream_left))  # type: ignore[misc]
        return texts[-1] + await fail_first(1)

    engine = ScriptedEngine(numbers, token_s=0.01 if is_slow else 0.0)
    async with scripted_runtime(tmp_path, engine) as runtime:
        run = flow(name="f")(body).options(run_id=ID)
        with pytest.raises(Boom):
            await runtime.run(run)
        assert (await runtime.run(run)).value == "onepassed"
    assert texts == ["one", "one"]
    assert len(engine.requests) == 1


async def test_what_was_read_is_recorded_before_the_next_step_begins(tmp_path: Path) -> None:
    """So a run that is killed within that step finds the part on which the step depends."""
    during: list[Recorded] = []

    async with slow_runtime(tmp_path) as (runtime, engine):

        @step(name="send")
        async def send(text: str) -> str:
            during.append(await recorded(runtime.store, ID))
            if len(during) == 1:
                raise Boom("as if killed")
            return text

        async def body() -> str:
            return await send(await leaves_by_break())

        run = flow(name="f")(body)
        await die_during_step(runtime, run, "send")
        journal = during[0].journal
        assert journal["llm"].status is Status.COMPLETED
        assert journal["llm"].finished_s <= journal["send"].started_s  # type: ignore[operator]
        assert (await runtime.resume(ID, run)).value == "one"
        assert len(engine.requests) == 1


async def test_branches_that_leave_answers_and_are_cancelled_do_not_wait_for_each_other(
    runtime: Runtime,
) -> None:
    async def branch(index: int) -> str:
        return await keep(await leaves_by_break()) + str(index)

    async def body() -> tuple[list[str], str]:
        texts = await gather(*(branch(index) for index in range(5)))
        cut_off = asyncio.create_task(branch(5))
        await asyncio.sleep(0)
        cut_off.cancel()
        with suppress(asyncio.CancelledError):
            await cut_off
        return list(texts), await keep("end")

    texts, end = (await runtime.run(flow(body))).value
    assert (texts, end) == ([f"all{index}" for index in range(5)], "end")


async def test_an_answer_that_the_flow_reads_further_in_a_resumed_run_is_flow_changed(
    tmp_path: Path,
) -> None:
    attempts["left"] = 1
    reads = 1

    async def body() -> str:
        text = ""
        async with aclosing(llm_stream("x")) as pieces:
            for _ in range(reads):
                text += await anext(pieces, "")
        await keep("constant")
        return text + await fail_first(1)

    async with slow_runtime(tmp_path) as (runtime, _):
        run = flow(name="f")(body).options(run_id=ID)
        with pytest.raises(Boom):
            await runtime.run(run)
        reads = 2
        with pytest.raises(FlowChanged, match="to read all of its answer"):
            await runtime.run(run)


async def test_llm_where_an_answer_was_left_early_is_flow_changed(tmp_path: Path) -> None:
    attempts["left"] = 1
    streams = True

    async def body() -> str:
        text = await leaves_by_break() if streams else await llm("x")
        await keep("constant")
        return text + await fail_first(1)

    async with slow_runtime(tmp_path) as (runtime, _):
        run = flow(name="f")(body).options(run_id=ID)
        with pytest.raises(Boom):
            await runtime.run(run)
        streams = False
        with pytest.raises(FlowChanged, match="to read all of its answer"):
            await runtime.run(run)


async def test_an_answer_that_was_left_by_the_error_that_ended_the_run_is_asked_for_again(
    tmp_path: Path,
) -> None:
    fails = True

    async def body() -> str:
        text = ""
        async for piece in llm_stream("x"):
            text += piece
            if fails:
                raise Boom("the reader has gone")
        return text

    async with slow_runtime(tmp_path) as (runtime, engine):
        run = flow(name="f")(body).options(run_id=ID)
        with pytest.raises(Boom):
            await runtime.run(run)
        fails = False
        result = await runtime.run(run)
        assert result.value.startswith("one two three of")
        assert len(engine.requests) == 2
        record = await recorded(runtime.store, ID)
    assert [call.status for call in record.calls] == [Status.CANCELLED, Status.COMPLETED]
    assert record.journal["llm"].status is Status.COMPLETED


async def test_an_answer_that_was_read_whole_after_a_cancelled_attempt_is_not_asked_for_again(
    tmp_path: Path,
) -> None:
    is_complete = False

    async def body() -> str:
        text = "".join(await all_of(llm_stream("x")))
        if not is_complete:
            raise Boom("before anything else begins")
        return text

    run = flow(name="f")(body).options(run_id=ID)
    stuck = ScriptedEngine(numbers, token_s=NEVER_S)
    async with scripted_runtime(tmp_path, stuck) as runtime:
        handle = runtime.start(run)
        await until_generating(stuck)
        await handle.cancel()
    async with slow_runtime(tmp_path) as (runtime, engine):
        with pytest.raises(Boom):
            await runtime.run(run)
        is_complete = True
        await runtime.run(run)
        assert len(engine.requests) == 1


async def test_steps_after_an_answer_that_was_left_do_not_wait_in_a_resumed_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The outcome of a left answer comes before those of later steps, however fast these are."""
    attempts["left"] = 1

    async def body() -> list[str]:
        texts = []
        for _ in range(5):
            text = await leaves_by_break()
            texts += [text, await keep(text)]
        await fail_first(1)
        return texts

    async with slow_runtime(tmp_path) as (runtime, _):
        run = flow(name="f")(body).options(run_id=ID)
        with pytest.raises(Boom):
            await runtime.run(run)
        numbered = (await recorded(runtime.store, ID)).journal
        order = sorted(
            (each.outcome_number, path)
            for path, each in numbered.items()
            if each.outcome_number is not None and path != "fail-first"
        )
        assert [path.partition("#")[0] for _, path in order] == ["llm", "keep"] * 5
        assert (await runtime.run(run)).value == ["one"] * 10
    assert "no longer wait" not in caplog.text


async def test_cancelling_the_reader_aborts_the_call_and_a_resumed_run_makes_it_again(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(numbers, token_s=NEVER_S)
    async with scripted_runtime(tmp_path, engine) as runtime:
        run = flow(name="f")(lambda: all_of(llm_stream("x"))).options(run_id=ID)
        handle = runtime.start(run)
        await until_generating(engine)
        await handle.cancel()
        assert engine.num_running == 0
        record = await recorded(runtime.store, ID)
        assert record.still_running() == []
        assert record.journal["llm"].status is Status.CANCELLED
    async with scripted_runtime(tmp_path, ScriptedEngine(numbers)) as runtime:
        assert "".join((await runtime.run(run)).value).startswith("one two")


async def test_a_run_that_is_cancelled_between_two_pieces_makes_the_call_again(
    tmp_path: Path,
) -> None:
    reached = asyncio.Event()

    async def body() -> str:
        text = ""
        async for piece in llm_stream("x"):
            text += piece
            if not reached.is_set():
                reached.set()
                await asyncio.sleep(NEVER_S)
        return text

    async with slow_runtime(tmp_path) as (runtime, engine):
        run = flow(name="f")(body).options(run_id=ID)
        handle = runtime.start(run)
        await reached.wait()
        await handle.cancel()
        record = await recorded(runtime.store, ID)
        assert record.journal["llm"].status is Status.CANCELLED
        assert (await runtime.run(run)).value.startswith("one two three of")
        assert len(engine.requests) == 2


@pytest.mark.parametrize("sleeps", [True, False])
@in_virtual_time
async def test_a_limit_ends_the_call_while_it_is_waited_for_and_between_two_pieces(
    tmp_path: Path, sleeps: bool
) -> None:
    async def body() -> str:
        try:
            async with within(0.05):
                async for _ in llm_stream("x"):
                    await asyncio.sleep(NEVER_S if sleeps else 0)
        except DeadlineExceeded:
            return "cut off"
        return "complete"

    engine = ScriptedEngine(numbers, token_s=0.01 if sleeps else 0.04)
    async with timed_runtime(tmp_path, engine) as runtime:
        result = await runtime.run(flow(name="f")(body).options(run_id=ID))
        record = await recorded(runtime.store, ID)
    assert result.value == "cut off"
    assert [call.status for call in record.calls] == [Status.CANCELLED]
    assert record.journal["llm"].status is Status.CANCELLED


@pytest.mark.parametrize("size", [1, 2000])  # a long text is stored apart
@pytest.mark.parametrize("streams", [True, False])
@in_virtual_time
async def test_a_resumed_run_gets_the_text_that_came_before_a_limit_cut_the_call_off(
    tmp_path: Path, streams: bool, size: int
) -> None:
    attempts["left"] = 1
    texts: list[str] = []

    def take(piece: str) -> None:
        texts[-1] += piece

    async def body() -> str:
        texts.append("")
        try:
            async with within(0.2):
                if streams:
                    async for piece in llm_stream("x"):
                        take(piece)
                else:
                    await llm("x", on_text=take)
        except DeadlineExceeded:
            return await keep(texts[-1]) + await fail_first(1)
        return "complete"

    class Stuck(ScriptedEngine):
        async def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
            yield Chunk("long " * size)
            await asyncio.sleep(NEVER_S)

    engine = Stuck(numbers)
    async with timed_runtime(tmp_path, engine) as runtime:
        run = flow(name="f")(body).options(run_id=ID)
        with pytest.raises(Boom):
            await runtime.run(run)
        before = (await recorded(runtime.store, ID)).journal["llm"]
        for _ in range(2):
            attempts["left"] = 1
            with pytest.raises(Boom):
                await runtime.run(run)
        assert (await runtime.run(run)).value == f"{texts[0]}passed"
        assert (await recorded(runtime.store, ID)).journal["llm"] == before
    assert texts == ["long " * size] * 4


@pytest.mark.parametrize("breaks", [True, False])
@in_virtual_time
async def test_a_resumed_run_gets_what_a_slow_reader_had_read_at_its_limit(
    tmp_path: Path, breaks: bool
) -> None:
    """Not the pieces that had come besides, nor the engine's error after them."""
    attempts["left"] = 1

    async def body() -> str:
        text = ""
        try:
            async with within(0.2):
                async for piece in llm_stream("x"):
                    text += piece
                    await asyncio.sleep(NEVER_S)
        except DeadlineExceeded:
            return await keep(text) + await fail_first(1)
        return "complete"

    engine = (BreaksAfterTwo if breaks else ScriptedEngine)(numbers)
    async with timed_runtime(tmp_path, engine) as runtime:
        run = flow(name="f")(body).options(run_id=ID)
        with pytest.raises(Boom):
            await runtime.run(run)
        assert (await runtime.run(run)).value == "onepassed"


async def test_the_engine_gets_the_deadline_of_the_call(runtime: Runtime) -> None:
    async def body() -> list[str]:
        return await all_of(llm_stream("x"))

    await runtime.run(flow(deadline="1m")(body))
    assert isinstance(runtime.engine, ScriptedEngine)
    [request] = runtime.engine.requests
    assert 0 < request.slo.deadline_s <= 60  # type: ignore[operator]


async def test_a_spent_budget_refuses_the_call(runtime: Runtime) -> None:
    async def body() -> str:
        try:
            async with budget(calls=1):
                await all_of(llm_stream("x"))
                await all_of(llm_stream("y"))
        except BudgetExceeded:
            return "refused"
        return "allowed"

    assert (await runtime.run(flow(body))).value == "refused"


@pytest.mark.parametrize("token_s", [0.0, 0.01])  # whether the engine has answered meanwhile
async def test_answers_that_are_left_count_in_budgets_and_in_the_usage_of_the_run(
    tmp_path: Path, token_s: float
) -> None:
    """And a resumed run counts the same."""
    attempts["left"] = 1
    used: list[tuple[int, int]] = []

    async def body() -> int:
        num_begun = 0
        with suppress(BudgetExceeded):
            async with budget(tokens=30) as spent:
                while num_begun < 50:
                    num_begun += 1
                    await leaves_by_break()
        used.append((spent.tokens, spent.calls))
        await fail_first(1)
        return num_begun

    engine = ScriptedEngine(numbers, token_s=token_s)
    async with scripted_runtime(tmp_path, engine) as runtime:
        run = flow(name="f")(body).options(run_id=ID)
        with pytest.raises(Boom):
            await runtime.run(run)
        result = await runtime.run(run)
        calls = (await recorded(runtime.store, ID)).calls
        loaded = await runtime.run(run)
    assert used[0] == used[1]
    tokens, num_calls = used[0]
    assert (tokens, num_calls) == (result.usage.tokens, result.usage.calls)
    assert tokens == sum((call.prompt_tokens or 0) + (call.output_tokens or 0) for call in calls)
    assert loaded.usage == result.usage
    assert tokens >= 30
    assert result.value == num_calls + 1 < 30
    assert len(engine.requests) == num_calls


class BreaksAfterTwo(ScriptedEngine):
    """Fails after two words of each answer to "x"."""

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        async for index, chunk in aenumerate(super().stream(request)):
            if index == 2 and request.prompt[-1].content == "x":  # type: ignore[union-attr]
                raise RequestFailed(request.request_id, "it broke")
            yield chunk


async def aenumerate(parts: AsyncIterator[Chunk]) -> AsyncIterator[tuple[int, Chunk]]:
    index = 0
    async for part in parts:
        yield index, part
        index += 1


async def streams_until_it_breaks() -> str:
    text = ""
    with suppress(RequestFailed):
        async for piece in llm_stream("x"):
            text += piece
    return text


async def takes_text_until_it_breaks() -> str:
    texts: list[str] = []
    with suppress(RequestFailed):
        await llm("x", on_text=texts.append)
    return "".join(texts)


@pytest.mark.parametrize("is_slow", [True, False])
@pytest.mark.parametrize(
    ("reads", "text"),
    [
        (streams_until_it_breaks, "one two"),
        (takes_text_until_it_breaks, "one two"),
        (leaves_by_break, "one"),
    ],
)
async def test_a_resumed_run_gets_the_text_that_came_before_an_error(
    tmp_path: Path, reads: Callable[[], Awaitable[str]], text: str, is_slow: bool
) -> None:
    attempts["left"] = 1

    async def body() -> str:
        part = await reads()
        return await llm(f"go on after {part}") + await keep(part) + await fail_first(1)

    engine = BreaksAfterTwo(numbers, token_s=0.01 if is_slow else 0.0)
    async with scripted_runtime(tmp_path, engine) as runtime:
        run = flow(name="f")(body).options(run_id=ID)
        with pytest.raises(Boom):
            await runtime.run(run)
        assert (await runtime.run(run)).value.endswith(f"{text}passed")
    assert len(engine.requests) == 2


async def test_an_error_of_the_engine_comes_after_the_text_before_it(tmp_path: Path) -> None:
    class Failing(ScriptedEngine):
        async def stream(self, request: GenerationRequest):  # type: ignore[no-untyped-def]
            async for chunk in super().stream(request):
                yield chunk
                raise RequestFailed(request.request_id, "it broke")

    seen: list[str] = []

    async def body() -> None:
        async for piece in llm_stream("x"):
            seen.append(piece)  # noqa: PERF401 - kept also if the next one raises

    async with scripted_runtime(tmp_path, Failing(numbers)) as runtime:
        with pytest.raises(RequestFailed, match="it broke"):
            await runtime.run(flow(name="f")(body).options(run_id=ID))
        record = await recorded(runtime.store, ID)
    assert seen == ["one"]
    assert [call.status for call in record.calls] == [Status.FAILED]


async def test_a_slow_reader_gets_every_piece_and_the_call_ends_when_the_engine_has_answered(
    tmp_path: Path,
) -> None:
    async def body() -> list[str]:
        pieces = []
        async for piece in llm_stream("x"):
            pieces.append(piece)
            await asyncio.sleep(0.02)
        return pieces

    async with scripted_runtime(tmp_path) as runtime:
        result = await runtime.run(flow(name="f")(body).options(run_id=ID))
        record = await recorded(runtime.store, ID)
    assert result.value == ["all", " is", " well"]
    [call] = record.calls
    assert call.finished_s is not None
    assert record.journal["llm"].finished_s > call.finished_s  # type: ignore[operator]


async def test_an_empty_answer_has_no_pieces(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path, ScriptedEngine(lambda _: "")) as runtime:

        async def body() -> list[str]:
            return await all_of(llm_stream("x"))

        assert (await runtime.run(flow(body))).value == []


async def test_branches_and_tasks_that_stream_are_told_apart_as_with_llm(tmp_path: Path) -> None:
    attempts["left"] = 1
    streams = True

    async def ask(prompt: str) -> str:
        texts = []
        for number in range(2):
            prompt_here = f"{prompt}{number}"
            if streams:
                texts.append("".join(await all_of(llm_stream(prompt_here))))
            else:
                texts.append(await llm(prompt_here))
        return " ".join(texts)

    async def body() -> list[str]:
        branches = await gather(ask("a"), ask("b"))
        tasks = await asyncio.gather(ask("c"), ask("d"))
        await fail_first(1)
        return [*branches, *tasks]

    engine = ScriptedEngine(lambda request: f"to {request.prompt[-1].content}")  # type: ignore[union-attr]
    async with scripted_runtime(tmp_path, engine) as runtime:
        run = flow(name="f")(body).options(run_id=ID)
        with pytest.raises(Boom):
            await runtime.run(run)
        record = await recorded(runtime.store, ID)
        streams = False
        assert (await runtime.run(run)).value == [f"to {x}0 to {x}1" for x in "abcd"]
    assert len(engine.requests) == 8
    assert record.edges >= {(0, 2), (1, 3)} or record.edges >= {(0, 3), (1, 2)}


async def test_calls_after_a_streamed_one_depend_on_it(tmp_path: Path) -> None:
    async def body() -> None:
        await all_of(llm_stream("x"))
        await llm("y")
        await all_of(llm_stream("z"))

    async with scripted_runtime(tmp_path) as runtime:
        await runtime.run(flow(name="f")(body).options(run_id=ID))
        record = await recorded(runtime.store, ID)
    assert record.edges == {(0, 1), (1, 2)}
    assert [call.stage for call in record.calls] == [0, 1, 2]


async def test_a_stream_that_is_kept_open_ends_with_its_run(tmp_path: Path) -> None:
    kept: list[AsyncGenerator[str, None]] = []

    async def body() -> str:
        kept.append(llm_stream("x"))
        return await anext(kept[0])

    engine = ScriptedEngine(numbers, token_s=0.02)
    async with scripted_runtime(tmp_path, engine) as runtime:
        assert (await runtime.run(flow(name="f")(body).options(run_id=ID))).value == "one"
        assert engine.num_running == 0
        assert (await recorded(runtime.store, ID)).still_running() == []
        kept.clear()
        gc.collect()


async def test_wrong_uses_are_refused_and_begin_nothing(runtime: Runtime) -> None:
    for wrong in ({"schema": int}, {"n": 2}, {"on_text": print}, {"logprobs": 1}, {"tempo": 1}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            llm_stream("x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(OutsideRun, match="llm_stream"):
        await first_of(llm_stream("x"))

    async def body() -> None:
        with pytest.raises(InvalidRequest, match="min_p"):
            await first_of(llm_stream("x", min_p=2.0))
        with pytest.raises(ValueError, match="prompt"):
            await first_of(llm_stream(7))  # type: ignore[arg-type]
        stream = llm_stream("x")
        reader = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task"):
            await anext(stream)
        assert await reader == "all"
        await stream.aclose()
        await stream.aclose()
        assert await anext(stream, "over") == "over"
        never_begun = llm_stream("x")
        await never_begun.aclose()
        assert await anext(never_begun, "over") == "over"
        with pytest.raises(Boom):
            await llm_stream("x").athrow(Boom("thrown"))

    await runtime.run(flow(body))
