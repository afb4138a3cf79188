"""Forks: what a run recorded up to a step is used again, and what comes after is executed."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from orchestrator import (
    DeadlineExceeded,
    EffectsAfterFork,
    FlowChanged,
    Happened,
    InvalidDuration,
    InvalidRunId,
    NoForkPoint,
    OutcomeUnknown,
    Question,
    RunNotForkable,
    Runtime,
    Settings,
    flow,
    gather,
    input_required,
    llm,
    llm_stream,
    open_runtime,
    random,
    remaining,
    step,
    tool,
    within,
)
from orchestrator.testing import ScriptedEngine
from serving.generation import GenerationRequest
from store.errors import RunExists, RunNotFound
from store.records import Status
from tests.unit.orchestrator.interrupted_runs import (
    Failing,
    RaiseOnce,
    die_during_step,
)
from tests.unit.orchestrator.orchestrator_samples import (
    Boom,
    ask,
    recorded,
    scripted_runtime,
)
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.sdk.human_input_samples import questions_of
from tests.unit.orchestrator.virtual_time import run_in_virtual_time, timed_runtime
from tests.unit.store.store_places import DATABASES, fresh_store_url


def prompt_of(request: GenerationRequest) -> str:
    """The last message of a request: the script of an engine that repeats what it is asked."""
    assert not isinstance(request.prompt, str)
    content = request.prompt[-1].content
    assert isinstance(content, str)
    return content


@flow(deadline="60s")
async def article(topic: str, style: str = "dry") -> list[str]:
    plan = await ask(f"plan {topic}")
    parts = await gather(ask(f"first of {topic}"), ask(f"second of {topic}"))
    return [plan, *parts, await llm(f"join {topic} {style}")]


PATHS = ["ask/llm", "ask", "ask[0]/llm", "ask[1]/llm", "ask[0]", "ask[1]", "llm"]
"""The steps of an article in the order of their outcomes, where the branches take equal time."""


async def outcomes(runtime: Runtime, run_id: str) -> list[str]:
    """The paths of a run's steps in the order of their outcomes."""
    journal = (await recorded(runtime.store, run_id)).journal.values()
    numbered = [step for step in journal if step.outcome_number is not None]
    return [step.path for step in sorted(numbered, key=lambda each: each.outcome_number or 0)]


async def num_calls(runtime: Runtime) -> int:
    assert isinstance(runtime.engine, ScriptedEngine)
    return len(runtime.engine.requests)


@pytest.mark.parametrize(
    ("at", "live"), [("ask/llm", 3), ("ask", 3), ("ask[0]/llm", 2), ("ask[1]", 1), ("llm", 0)]
)
async def test_outcomes_up_to_the_step_are_kept_and_the_rest_is_executed(
    tmp_path: Path, at: str, live: int
) -> None:
    async with scripted_runtime(tmp_path, ScriptedEngine(prompt_of)) as runtime:
        original = await runtime.run(article.options(run_id=ID), "cats")
        before = await recorded(runtime.store, ID)
        assert await outcomes(runtime, ID) == PATHS
        fork = await runtime.fork(ID, article, at=at, arguments={"topic": "dogs"})
        assert await num_calls(runtime) == 4 + live
        expected = [text.replace("cats", "dogs") for text in original.value]
        assert fork.value == [*original.value[: 4 - live], *expected[4 - live :]]
        after, forked = [await recorded(runtime.store, each) for each in (ID, fork.run_id)]
        assert replace(after, pattern_records=()) == replace(before, pattern_records=())
        assert sorted(await outcomes(runtime, fork.run_id)) == sorted(PATHS)
        assert (fork.run_id != ID, fork.deadline_s, fork.usage.calls) == (True, 60, 4)
        assert forked.still_running() == []
        assert forked.edges == before.edges
        assert forked.pattern.edges == before.pattern.edges
        assert {call.status for call in forked.calls} == {Status.COMPLETED}


async def test_the_record_says_where_a_fork_comes_from(runtime: Runtime) -> None:
    options: dict[str, Any] = {"run_id": ID, "user": "alice", "tags": {"team": "sea"}}
    await runtime.run(article.options(**options), "cats")
    result = await runtime.fork(ID, article.options(tags={"try": "2"}), at="ask", new_id="second")
    assert result.run_id == "second"
    run = (await recorded(runtime.store, "second")).run
    assert run.attributes == {
        "tags": {"team": "sea", "try": "2"},
        "forked_from": {"run": ID, "at": "ask", "outcome_number": 1},
    }
    info = await runtime.get("second")
    assert (info.forked_from, info.user, info.status) == (ID, "alice", "completed")
    assert (await runtime.get(ID)).forked_from is None
    [newest, _] = await runtime.runs()
    assert newest.id == "second"


async def test_changed_arguments_are_those_of_the_fork(tmp_path: Path) -> None:
    raise_once = RaiseOnce()

    @flow
    async def letter(to: str, words: list[str], secret: SecretStr, end: str = "bye") -> list[str]:
        first = await llm(to)
        if to == "Bob":
            raise_once()
        return [first, await llm(" ".join(words)), secret.get_secret_value(), end]

    async with scripted_runtime(tmp_path, ScriptedEngine(prompt_of)) as runtime:
        await runtime.run(letter.options(run_id=ID), "Al", ["a"], SecretStr("x"))
        with pytest.raises(RunNotForkable, match="not recorded of its arguments: secret; give"):
            await runtime.fork(ID, letter, at="llm")
        with pytest.raises(TypeError, match="no parameter too, two: the flow's parameters are to,"):
            await runtime.fork(ID, letter, at="llm", arguments={"two": 2, "too": 2})
        changed = {"to": "Bob", "words": ["b", "c"], "secret": SecretStr("y")}
        with pytest.raises(Boom):
            await runtime.fork(ID, letter, at="llm", new_id="fork", arguments=changed)
        same = letter.options(run_id="fork")
        resumed = await runtime.run(same, "Bob", ["b", "c"], SecretStr("z"))
        assert resumed.value == ["Al", "b c", "z", "bye"]


def test_a_branch_has_in_a_fork_what_it_had_when_the_outcome_came(tmp_path: Path) -> None:
    """Each branch makes three calls; those of one take twice as long as those of the other."""
    begun: list[str] = []

    @tool(effects="pure")
    async def work(name: str, seconds: float) -> str:
        begun.append(name)
        await asyncio.sleep(seconds)
        return name

    @step
    async def branch(name: str, seconds: float) -> list[str]:
        return [await work(f"{name}{number}", seconds) for number in range(3)]

    @flow
    async def both() -> list[list[str]]:
        return list(await gather(branch("slow", 2), branch("fast", 1)))

    async def forked(at: str) -> list[str]:
        folder = tmp_path / at.replace("/", "-")
        folder.mkdir()
        async with timed_runtime(folder) as runtime:
            original = await runtime.run(both.options(run_id=ID))
            begun.clear()
            fork = await runtime.fork(ID, both, at=at)
            assert fork.value == original.value
            return sorted(begun)

    def again(at: str) -> list[str]:
        return run_in_virtual_time(forked(at))

    everything = [f"{name}{number}" for name in ("fast", "slow") for number in range(3)]
    assert again("branch[1]/work") == [each for each in everything if each != "fast0"]
    # Also kept: the first of the slow branch. Its second was in progress, and begins anew.
    assert again("branch[1]/work#3") == ["slow1", "slow2"]
    assert again("branch[1]") == ["slow1", "slow2"]
    assert again("branch[0]/work#2") == ["slow2"]
    assert again("branch[0]") == []


async def test_values_before_the_outcome_are_kept_and_later_ones_are_new(runtime: Runtime) -> None:
    @step
    async def inner() -> list[float]:
        before = random()
        await ask("inside")
        return [before, random()]

    @flow
    async def drawing() -> list[float]:
        first = random()
        await ask("one")
        second = random()
        return [first, second, *await inner(), random()]

    was = (await runtime.run(drawing.options(run_id=ID))).value

    async def num_equal(at: str) -> int:
        value = (await runtime.fork(ID, drawing, at=at)).value
        equal = [each == before for each, before in zip(value, was, strict=True)]
        assert equal == sorted(equal, reverse=True)
        return sum(equal)

    paths = ["ask/llm", "ask", "inner/ask/llm", "inner/ask", "inner"]
    assert await outcomes(runtime, ID) == paths
    # The value after `ask` was drawn when its outcome had reached the flow.
    assert [await num_equal(at) for at in paths] == [1, 1, 3, 3, 4]


def test_values_of_a_branch_beside_are_kept_if_they_were_recorded_before(tmp_path: Path) -> None:
    @step
    async def draw(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return random()

    async def drawing(seconds: float) -> list[float]:
        first = random()
        await work(seconds)
        return [first, random()]

    @step
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @flow
    async def both() -> list[list[float]]:
        return list(await gather(drawing(1), drawing(2), drawing(3)))

    async def run() -> list[list[bool]]:
        async with timed_runtime(tmp_path) as runtime:
            was = (await runtime.run(both.options(run_id=ID))).value
            now = (await runtime.fork(ID, both, at="work[1]")).value
            return [
                [one == two for one, two in zip(*pair, strict=True)]
                for pair in zip(was, now, strict=True)
            ]

    assert run_in_virtual_time(run()) == [[True, True], [True, False], [True, False]]


@flow(deadline=60)
async def timed() -> list[float]:
    await pause(20)
    async with within(30):
        await pause(10)
        left = remaining()
        await pause(5)
    return [left, remaining()]


@step
async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


@pytest.mark.parametrize(
    ("deadline", "deadline_s", "left"), [(None, 60, [20, 25]), ("90s", 110, [20, 75])]
)
def test_a_fork_has_used_the_time_until_the_step(
    tmp_path: Path, deadline: str | None, deadline_s: float, left: list[float]
) -> None:
    """The limit within keeps its own end, as in a resumed run."""

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            await runtime.run(timed.options(run_id=ID))
            await asyncio.sleep(1000)
            fork = await runtime.fork(ID, timed, at="pause", deadline=deadline)
            assert fork.value == pytest.approx(left, abs=0.1)
            assert fork.deadline_s == pytest.approx(deadline_s, abs=0.1)
            assert fork.elapsed_s == pytest.approx(35, abs=0.1)
            record = (await recorded(runtime.store, fork.run_id)).run
            assert record.finished_at is not None
            took = record.finished_at - record.started_at
            assert took.total_seconds() == pytest.approx(35, abs=0.1)

    run_in_virtual_time(run())


def test_a_fork_that_is_resumed_counts_on_from_its_own_start(tmp_path: Path) -> None:
    raise_once = RaiseOnce()

    @flow(deadline=60)
    async def halting() -> float:
        await pause(20)
        await pause(5)
        if not first:
            raise_once()
        return remaining()

    first = [True]

    async def run() -> float:
        async with timed_runtime(tmp_path) as runtime:
            await runtime.run(halting.options(run_id=ID))
            first.clear()
            await asyncio.sleep(100)
            with pytest.raises(Boom):
                await runtime.fork(ID, halting, at="pause", new_id="fork")
            await asyncio.sleep(10)
            return (await runtime.resume("fork", halting)).value

    assert run_in_virtual_time(run()) == pytest.approx(60 - 20 - 5 - 10, abs=0.1)


def test_a_limit_that_had_passed_before_the_step_passes_again(tmp_path: Path) -> None:
    begun: Counter[str] = Counter()

    @step
    async def search(name: str, seconds: float) -> str:
        begun[name] += 1
        await asyncio.sleep(seconds)
        return name

    @flow
    async def patient(name: str) -> list[str]:
        found = [await search(name, 1)]
        try:
            async with within(5):
                found.append(await search(f"slow {name}", 50))
        except DeadlineExceeded:
            found.append("gave up")
        return [*found, await search(f"third {name}", 1), await search("fourth", 1)]

    async def run() -> list[str]:
        async with timed_runtime(tmp_path) as runtime:
            await runtime.run(patient.options(run_id=ID), "one")
            begun.clear()
            fork = await runtime.fork(ID, patient, at="search#3", arguments={"name": "two"})
            return fork.value

    assert run_in_virtual_time(run()) == ["one", "gave up", "third one", "fourth"]
    assert begun == {"fourth": 1}


class World:
    """Effects on the outside world, and tools that have them."""

    def __init__(self) -> None:
        self.effects: list[str] = []

        @tool(effects="external")
        async def send(name: str) -> str:
            self.effects.append(name)
            return f"sent {name}"

        @tool(effects="env")
        async def write(name: str) -> str:
            self.effects.append(name)
            return f"wrote {name}"

        self.send, self.write = send, write


async def test_effects_after_the_step_are_done_again_only_if_that_is_allowed(
    runtime: Runtime,
) -> None:
    world = World()

    @flow
    async def sending() -> list[str]:
        return [
            await world.send("first"),
            await ask(),
            await world.write("file"),
            *await gather(world.send("second"), world.send("third")),
        ]

    await runtime.run(sending.options(run_id=ID))
    world.effects.clear()
    with pytest.raises(EffectsAfterFork) as raised:
        await runtime.fork(ID, sending, at="ask", new_id="fork")
    assert raised.value.args == (ID, "ask", ("send[0]", "send[1]"))
    assert "--allow-effects" in str(raised.value)
    assert (world.effects, len(await runtime.runs())) == ([], 1)
    await runtime.fork(ID, sending, at="ask", allow_effects=True)
    assert sorted(world.effects) == ["file", "second", "third"]
    await runtime.fork(ID, sending, at="send[1]")
    assert len(world.effects) == 3


@pytest.mark.parametrize("status", ["running", "cancelled"])
async def test_an_effect_with_an_unknown_outcome_counts_as_one_that_took_place(
    runtime: Runtime, status: str
) -> None:
    world, raise_once = World(), RaiseOnce()

    @flow
    async def sending(name: str = "it") -> str:
        await ask()
        sent = await world.send(name)
        raise_once()
        return sent

    await die_during_step(runtime, sending, "send")
    async with runtime.store._writer.begin() as connection:
        statement = "UPDATE steps SET outcome_number = NULL, status = :status WHERE path = 'send'"
        await connection.execute(text(statement), {"status": status})
    with pytest.raises(EffectsAfterFork, match=r"may have had.*: send\."):
        await runtime.fork(ID, sending, at="ask")
    fork = await runtime.fork(ID, sending, at="ask", allow_effects=True)
    assert (fork.value, world.effects) == ("sent it", ["it", "it"])


async def test_an_effect_that_failed_before_the_step_is_reconciled_in_a_fork(
    runtime: Runtime,
) -> None:
    """It may have taken place; which one it was is known although arguments are not compared."""
    tries, asked_for = Failing(1), list[str]()

    async def look(name: str) -> Happened | None:
        asked_for.append(name)
        return Happened(f"found {name}")

    @tool(effects="external", reconcile=look)
    async def send(name: str) -> str:
        tries()
        return f"sent {name}"

    @flow
    async def sending(name: str) -> list[str]:
        with suppress(Boom):
            await send("it")
        return [await send(name), await ask(name), await send("it")]

    was = await runtime.run(sending.options(run_id=ID), "other")
    assert was.value == ["sent other", "all is well", "found it"]
    asked_for.clear()
    options: dict[str, Any] = {"arguments": {"name": "changed"}, "allow_effects": True}
    fork = await runtime.fork(ID, sending, at="ask", **options)
    assert fork.value == ["sent other", "all is well", "found it"]
    assert asked_for == ["it"]


async def test_an_effect_whose_outcome_was_unknown_before_the_step_is_not_repeated(
    runtime: Runtime,
) -> None:
    raise_once = RaiseOnce()
    sent: list[str] = []

    @tool(effects="external")
    async def send(name: str) -> str:
        sent.append(name)
        raise_once()
        return name

    @flow
    async def sending(name: str) -> list[str]:
        found = []
        for each in (name, "two"):
            try:
                found.append(await send(each))
            except OutcomeUnknown:
                found.append("unknown")
        return [*found, await ask()]

    with pytest.raises(Boom):
        await runtime.run(sending.options(run_id=ID), "one")
    async with runtime.store._writer.begin() as connection:
        statement = "UPDATE steps SET status = 'running', ended_run = false, outcome_number = NULL"
        await connection.execute(text(statement))
    assert (await runtime.resume(ID, sending)).value == ["unknown", "two", "all is well"]
    assert (await runtime.fork(ID, sending, at="ask")).value[:2] == ["unknown", "two"]
    assert sent == ["one", "two"]


async def test_a_run_in_progress_is_forked_and_goes_on(tmp_path: Path) -> None:
    engine = ScriptedEngine(prompt_of, token_s=0.0)
    may_end = asyncio.Event()

    @step
    async def wait() -> str:
        if not may_end.is_set():
            waiting.set()
            await may_end.wait()
        return "waited"

    waiting = asyncio.Event()

    @flow
    async def slow(name: str) -> list[str]:
        return [await ask(name), await wait(), random_text(random())]

    async with scripted_runtime(tmp_path, engine) as runtime:
        running = asyncio.create_task(runtime.run(slow.options(run_id=ID), "cats"))
        await waiting.wait()
        forks = [asyncio.create_task(runtime.fork(ID, slow, at="ask")) for _ in range(2)]
        while len(await runtime.runs()) < 3:  # noqa: ASYNC110 - it has no event to wait for
            await asyncio.sleep(0.001)
        may_end.set()
        values = [each.value for each in await asyncio.gather(running, *forks)]
    assert [value[:2] for value in values] == [["cats", "waited"]] * 3
    assert len({value[2] for value in values}) == 3
    assert len(engine.requests) == 1


def random_text(number: float) -> str:
    return f"{number}"


async def test_a_failed_run_is_forked_before_and_at_the_step_that_failed(tmp_path: Path) -> None:
    @step
    async def check(text: str) -> str:
        if text == "plan catscats":
            raise Boom(text)
        return f"checked {text}"

    @flow
    async def checked(topic: str) -> str:
        return await check(await ask(f"plan {topic}") + topic)

    async with scripted_runtime(tmp_path, ScriptedEngine(prompt_of)) as runtime:
        with pytest.raises(Boom):
            await runtime.run(checked.options(run_id=ID), "cats")
        changed = {"topic": "dogs"}
        before = await runtime.fork(ID, checked, at="ask/llm", arguments=changed)
        assert before.value == "checked plan catsdogs"
        with pytest.raises(Boom):  # it is tried again, and fails again
            await runtime.fork(ID, checked, at="check", new_id="again")
        assert await num_calls(runtime) == 1
        assert (await recorded(runtime.store, "again")).run.status is Status.FAILED
        # A changed code of the step may succeed.
        fixed = flow(name="checked")(fixed_body)
        assert (await runtime.fork(ID, fixed, at="check")).value == "fixed plan catscats"


async def fixed_body(topic: str) -> str:
    @step(name="check")
    async def check(text: str) -> str:
        return f"fixed {text}"

    return await check(await ask(f"plan {topic}") + topic)


async def test_a_fork_is_forked_interrupted_and_resumed_as_any_run(tmp_path: Path) -> None:
    raise_once = RaiseOnce()
    raise_once.error = None

    @flow
    async def chain(name: str) -> list[str]:
        first = [await ask(f"{number} {name}") for number in range(3)]
        raise_once()
        return [*first, await ask(f"last {name}")]

    async with scripted_runtime(tmp_path, ScriptedEngine(prompt_of)) as runtime:
        await runtime.run(chain.options(run_id=ID), "a")
        await runtime.fork(ID, chain, at="ask#2", new_id="b", arguments={"name": "b"})
        raise_once.error = Boom("once")
        with pytest.raises(Boom):
            await runtime.fork("b", chain, at="ask", new_id="c", arguments={"name": "c"})
        assert await num_calls(runtime) == 4 + 2 + 2
        assert (await runtime.resume("c", chain)).value == ["0 a", "1 c", "2 c", "last c"]
        assert await num_calls(runtime) == 4 + 2 + 2 + 1


async def test_of_the_steps_that_a_fork_executes_arguments_are_compared(runtime: Runtime) -> None:
    attempts: list[int] = []

    @step
    async def work(number: int) -> int:
        return number

    @flow
    async def unsteady() -> int:
        attempts.append(0)
        await work(len(attempts))
        await work(len(attempts))
        if len(attempts) == 2:
            raise Boom("once")
        return len(attempts)

    await runtime.run(unsteady.options(run_id=ID))
    with pytest.raises(Boom):
        await runtime.fork(ID, unsteady, at="work", new_id="fork")
    with pytest.raises(FlowChanged, match="work#2 with other arguments"):
        await runtime.resume("fork", unsteady)


async def test_answers_up_to_the_step_are_kept_and_later_questions_are_asked(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.sdk.human_input.POLL_S", 0.01)

    @flow
    async def asking() -> list[str]:
        first = await input_required("first?")
        await ask()
        return [first, await input_required("second?")]

    running = asyncio.create_task(runtime.run(asking.options(run_id=ID)))
    for number, reply in enumerate(("one", "two"), start=1):
        await questions_of(runtime.store, number)
        await runtime.answer(ID, reply)
    assert (await running).value == ["one", "two"]
    for at in ("input", "ask"):
        fork = asyncio.create_task(runtime.fork(ID, asking, at=at, new_id=at))
        questions = await open_questions(runtime, at)
        assert [question.text for question in questions] == ["second?"]
        await runtime.answer(at, "three")
        assert (await fork).value == ["one", "three"]
    assert (await runtime.fork(ID, asking, at="input#2")).value == ["one", "two"]


async def open_questions(runtime: Runtime, run_id: str) -> tuple[Question, ...]:
    """The questions of a run, once it has asked one."""
    while True:
        with suppress(RunNotFound):
            if questions := (await runtime.get(run_id)).questions:
                return questions
        await asyncio.sleep(0.001)


def test_the_wait_for_an_answer_counts_unless_it_stops_the_clock(tmp_path: Path) -> None:
    async def elapsed_s(stops_clock: bool) -> float:
        @flow
        async def asking() -> str:
            await pause(3)
            return await input_required("well?", stops_clock=stops_clock)

        folder = tmp_path / str(stops_clock)
        folder.mkdir()
        async with timed_runtime(folder) as runtime:
            running = runtime.start(asking.options(run_id=ID))
            await running.begun()
            await asyncio.sleep(10)
            await runtime.answer(ID, "yes")
            await running
            return (await runtime.fork(ID, asking, at="input")).elapsed_s

    assert run_in_virtual_time(elapsed_s(stops_clock=True)) == pytest.approx(3, abs=0.1)
    assert run_in_virtual_time(elapsed_s(stops_clock=False)) == pytest.approx(10, abs=1)


async def test_an_answer_that_was_left_early_is_kept_as_far_as_it_was_read(tmp_path: Path) -> None:
    @flow
    async def reading() -> list[str]:
        async with aclosing(llm_stream("count")) as pieces:
            async for piece in pieces:
                first = piece
                break
        return [first, await llm("then")]

    engine = ScriptedEngine(lambda _: "one two three", token_s=0.01)
    async with scripted_runtime(tmp_path, engine) as runtime:
        was = await runtime.run(reading.options(run_id=ID))
        assert len(was.value[0]) < len("one two three")
        fork = await runtime.fork(ID, reading, at="llm")
    assert fork.value == was.value
    assert len(engine.requests) == 3


async def test_a_task_of_asyncio_with_other_arguments_begins_anew(tmp_path: Path) -> None:
    @flow
    async def tasks(name: str) -> list[str]:
        first = await ask("same")
        found = await asyncio.gather(ask(f"one {name}"), ask("two"))
        return [first, *found]

    async with scripted_runtime(tmp_path, ScriptedEngine(prompt_of)) as runtime:
        await runtime.run(tasks.options(run_id=ID), "a")
        last = (await outcomes(runtime, ID))[-1]
        fork = await runtime.fork(ID, tasks, at=last, arguments={"name": "b"})
        assert fork.value == ["same", "one b", "two"]
        assert await num_calls(runtime) == 3 + 1


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("", "it has no such step; with an outcome: ask/llm, ask, ask"),
        ("nothing", "it has no such step; with an outcome: ask/llm, ask, ask"),
        ("ask#", "it has no such step"),
        ("ask[", r"several steps begin or end so: ask\[0\]/llm, ask\[1\]/llm, ask\[0\], ask\[1\]$"),
        ("/llm", "several steps begin or end so: ask/llm, "),
        ("gather-2", "it has no outcome yet, or is a recorded value; steps with an outcome: ask"),
    ],
)
async def test_a_step_that_is_none_or_several_is_an_error_that_lists_steps(
    runtime: Runtime, at: str, message: str
) -> None:
    await runtime.run(article.options(run_id=ID), "cats")
    with pytest.raises(NoForkPoint, match=message):
        await runtime.fork(ID, article, at=at)
    assert len(await runtime.runs()) == 1


@pytest.mark.parametrize("at", ["ask[1]/", "[1]/llm"])
async def test_a_step_is_found_by_the_beginning_or_end_of_its_path(
    runtime: Runtime, at: str
) -> None:
    await runtime.run(article.options(run_id=ID), "cats")
    fork = await runtime.fork(ID, article, at=at)
    origin = (await recorded(runtime.store, fork.run_id)).run.forked_from
    assert origin is not None
    assert origin["at"] == "ask[1]/llm"


async def test_a_run_without_what_a_fork_needs_is_refused(tmp_path: Path) -> None:
    @flow
    async def other(topic: str) -> str:
        return topic

    @flow(name="article")
    async def changed(topic: str, style: str = "dry") -> str:
        return await llm(topic)

    async with scripted_runtime(tmp_path, durable=False) as runtime:
        await runtime.run(article.options(run_id="not-durable"), "cats")
    async with scripted_runtime(tmp_path) as runtime:
        await runtime.run(article.options(run_id=ID), "cats")
        with pytest.raises(RunNotFound):
            await runtime.fork("nothing", article, at="ask")
        with pytest.raises(RunNotForkable, match="its arguments were not recorded"):
            await runtime.fork("not-durable", article, at="ask")
        with pytest.raises(RunNotForkable, match="a run of article, not of other"):
            await runtime.fork(ID, other, at="ask")
        with pytest.raises(RunExists):
            await runtime.fork(ID, article, at="ask", new_id=ID)
        for new_id in ("", "../x"):
            with pytest.raises(InvalidRunId):
                await runtime.fork(ID, article, at="ask", new_id=new_id)
        for deadline in ("soon", 0):
            with pytest.raises(InvalidDuration):
                await runtime.fork(ID, article, at="ask", deadline=deadline)
        assert len(await runtime.runs()) == 2
        with pytest.raises(FlowChanged):
            await runtime.fork(ID, changed, at="ask")


async def test_a_fork_that_cannot_be_written_whole_is_not_there(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_stages(*_: object) -> None:
        raise Boom("no stages")

    await runtime.run(article.options(run_id=ID), "cats")
    with monkeypatch.context() as patched:
        patched.setattr("store.stages.Stages.add_all", no_stages)
        with pytest.raises(Boom):
            await runtime.fork(ID, article, at="ask", new_id="fork")
    assert [run.id for run in await runtime.runs()] == [ID]
    assert (await runtime.fork(ID, article, at="ask", new_id="fork")).run_id == "fork"


async def test_a_fork_outlives_the_run_that_it_comes_from(runtime: Runtime) -> None:
    @step
    async def long() -> str:
        return "long " * 1000

    raise_once = RaiseOnce()
    raise_once.error = None

    @flow
    async def writing() -> int:
        size = len(await long())
        await ask()
        raise_once()
        return size

    await runtime.run(writing.options(run_id=ID))
    raise_once.error = Boom("once")
    with pytest.raises(Boom):
        await runtime.fork(ID, writing, at="long", new_id="fork")
    ended = (await recorded(runtime.store, ID)).run.finished_at
    assert ended is not None
    later = datetime.now(UTC) + timedelta(days=1)
    async with runtime.store._writer.begin() as connection:
        await connection.execute(
            text("UPDATE runs SET finished_at = NULL, status = 'running' WHERE id = 'fork'")
        )
    async with runtime.store.transaction() as tx:
        removal = await tx.retention.remove(ended_before=later, now=later)
    assert removal.num_runs == 1
    assert [run.id for run in await runtime.runs()] == ["fork"]
    assert (await runtime.resume("fork", writing)).value == 5000


async def test_cached_results_of_a_run_are_not_younger_in_its_fork(runtime: Runtime) -> None:
    @step(cache=True)
    async def costly() -> str:
        return await llm("x")

    @flow
    async def caching() -> str:
        return await costly() + await llm("y")

    await runtime.run(caching.options(run_id=ID))
    fork = await runtime.fork(ID, caching, at="costly")
    keys = [
        (await recorded(runtime.store, each)).journal["costly"].reuse_key is None
        for each in (ID, fork.run_id)
    ]
    assert keys == [False, True]


async def test_a_flow_forks_its_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        await runtime.run(article.options(run_id=ID), "cats")
        monkeypatch.setattr("orchestrator.sdk.flow.shared_runtime", lambda: nullcontext(runtime))
        result = await article.fork(ID, at="ask", new_id="fork", arguments={"topic": "dogs"})
    assert (result.run_id, len(result.value)) == ("fork", 4)


@pytest.mark.parametrize("database", DATABASES)
async def test_forks_that_begin_at_once_are_whole_on_every_database(
    tmp_path: Path, database: str
) -> None:
    with fresh_store_url(database, tmp_path) as url:
        settings, engine = Settings(store=url, fit_every=0), ScriptedEngine(prompt_of)
        async with open_runtime(settings, engine=engine) as runtime:
            was = await runtime.run(article.options(run_id=ID), "cats")
            forks = [
                runtime.fork(ID, article, at=at, arguments={"style": at}) for at in (*PATHS, *PATHS)
            ]
            for at, fork in zip((*PATHS, *PATHS), await asyncio.gather(*forks), strict=True):
                last = was.value[-1] if at == "llm" else f"join cats {at}"
                assert fork.value == [*was.value[:-1], last]
                assert (await recorded(runtime.store, fork.run_id)).still_running() == []
            assert len(await runtime.runs()) == 1 + 2 * len(PATHS)
