"""Runs that their own deadlines cut off leave patterns that say so, for later runs to learn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator import DeadlineExceeded, Flow, Runtime, best_so_far, flow, llm, step, within
from orchestrator.learning.knowledge import readable_patterns
from orchestrator.testing import ScriptedEngine
from patterns.library import PatternLibrary
from serving.generation import GenerationRequest
from store.records import Status
from tests.unit.orchestrator.deadline_samples import DEADLINE_OPTIONS, DeadlineOptions
from tests.unit.orchestrator.learning_samples import stages_of
from tests.unit.orchestrator.orchestrator_samples import Boom, Recorded, recorded
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.virtual_time import in_virtual_time, timed_runtime

CALL_S = 3.0


def script(request: GenerationRequest) -> str:
    return "a b c"


def engine() -> ScriptedEngine:
    return ScriptedEngine(script, token_s=CALL_S / 3)


async def chain(num_calls: int = 5) -> str:
    """Calls one after the other."""
    for number in range(num_calls):
        best_so_far(await llm(f"part {number}"))
    return "all"


async def wrap_up(so_far: str | None) -> str:
    return await llm(f"sum up {so_far}")


async def library_of(runtime: Runtime, application: str) -> PatternLibrary:
    async with runtime.store.reading() as tx:
        return PatternLibrary(readable_patterns(await tx.patterns.of_application(application)))


async def record_of(runtime: Runtime, body: Flow[[], object]) -> Recorded:
    """The record of a run with the id `ID`, which may fail by its deadline."""
    with suppress(DeadlineExceeded):
        await runtime.run(body.options(run_id=ID))
    return await recorded(runtime.store, ID)


@pytest.mark.parametrize("way", ["fail", "best_so_far", "wrap_up"])
@in_virtual_time
async def test_a_run_that_its_deadline_cuts_off_leaves_a_pattern_that_says_so(
    tmp_path: Path, way: str
) -> None:
    """It has the call that was cut off, and not those of the wrap-up."""
    options: dict[str, DeadlineOptions] = {
        "fail": {},
        "best_so_far": {"on_deadline": "best_so_far"},
        "wrap_up": {"wrap_up": wrap_up, "tail": 5},
    }
    deadline_s = 7.0 + (5.0 if way == "wrap_up" else 0.0)
    body = flow(name="f", deadline=deadline_s, **options[way])(chain)
    async with timed_runtime(tmp_path, engine()) as runtime:
        record = await record_of(runtime, body)
    assert record.run.status is (Status.FAILED if way == "fail" else Status.COMPLETED)
    [pattern] = record.pattern_records
    assert pattern.is_cut_off
    seconds = [stage.seconds for stage in record.pattern.stages]
    assert seconds == pytest.approx([CALL_S, CALL_S, 7 - 2 * CALL_S], rel=0.02)


@in_virtual_time
async def test_a_run_that_ends_in_time_leaves_a_whole_pattern(tmp_path: Path) -> None:
    body = flow(name="f", deadline=100, wrap_up=wrap_up)(chain)
    async with timed_runtime(tmp_path, engine()) as runtime:
        record = await record_of(runtime, body)
    assert [pattern.is_cut_off for pattern in record.pattern_records] == [False]


@in_virtual_time
async def test_limits_within_a_run_are_part_of_its_program(tmp_path: Path) -> None:
    """The deadline of a flow within it, or a block's: the run goes on, and its pattern is whole."""
    inner = flow(name="inner", deadline=7, wrap_up=wrap_up, tail=3.5)(chain)

    @flow(name="f", deadline=100)
    async def body() -> None:
        await inner()
        try:
            async with within(4):
                await chain()
        except DeadlineExceeded:
            await llm("last")

    async with timed_runtime(tmp_path, engine()) as runtime:
        record = await record_of(runtime, body)
    [pattern] = record.pattern_records
    assert not pattern.is_cut_off
    identities = [stage.calls[0].identity for stage in record.pattern.stages]
    assert identities == ["script:inner"] * 3 + ["script:f"] * 3


@in_virtual_time
async def test_a_run_that_fails_before_its_deadline_leaves_no_pattern(tmp_path: Path) -> None:
    @flow(name="f", deadline=100)
    async def body() -> None:
        await llm("first")
        raise Boom

    async with timed_runtime(tmp_path, engine()) as runtime:
        with pytest.raises(Boom):
            await runtime.run(body.options(run_id=ID))
        assert (await recorded(runtime.store, ID)).pattern_records == []


@in_virtual_time
async def test_a_wrap_up_that_fails_does_not_hide_that_the_run_was_cut_off(tmp_path: Path) -> None:
    async def fails(so_far: object) -> str:
        await llm("sum up")
        raise Boom

    body = flow(name="f", deadline=20, wrap_up=fails, tail=10)(chain)
    async with timed_runtime(tmp_path, engine()) as runtime:
        with pytest.raises(Boom):
            await runtime.run(body.options(run_id=ID))
        record = await recorded(runtime.store, ID)
    assert [pattern.is_cut_off for pattern in record.pattern_records] == [True]
    assert len(record.pattern.stages) == 4


@in_virtual_time
async def test_the_pattern_of_a_resumed_run_replaces_the_former_one(tmp_path: Path) -> None:
    """A run that its deadline made fail is resumed with a later one, and ends."""
    body = flow(name="f", deadline=7)(chain)
    async with timed_runtime(tmp_path, engine()) as runtime:
        await runtime.run(flow(name="f", deadline=100)(chain))
        [former] = (await record_of(runtime, body)).pattern_records
        await runtime.run(flow(name="f", deadline=100)(chain))
        result = await runtime.resume(ID, body, deadline=100)
        record = await recorded(runtime.store, ID)
        stages = await stages_of(runtime.store, ID)
        last = await runtime.run(flow(name="f", deadline=100)(chain))
        matched = (await stages_of(runtime.store, last.run_id))[0]
    assert result.value == "all"
    [pattern] = record.pattern_records
    assert (former.is_cut_off, pattern.is_cut_off) == (True, False)
    assert pattern.id > former.id  # type: ignore[operator]
    assert len(record.pattern.stages) == 5
    assert ID not in {match.run_id for stage in stages for match in stage.matches}
    assert sorted(match.pattern_id for match in matched.matches) == [1, 3, pattern.id]


@in_virtual_time
async def test_calls_of_a_wrap_up_are_not_in_the_pattern_of_a_run_that_then_ends_in_time(
    tmp_path: Path,
) -> None:
    async def fails(so_far: object) -> str:
        await llm("sum up")
        raise Boom

    body = flow(name="f", deadline=20, wrap_up=fails, tail=10)(chain)
    async with timed_runtime(tmp_path, engine()) as runtime:
        with pytest.raises(Boom):
            await runtime.run(body.options(run_id=ID))
        result = await runtime.resume(ID, body, deadline=100)
        record = await recorded(runtime.store, ID)
    assert result.value == "all"
    assert [pattern.is_cut_off for pattern in record.pattern_records] == [False]
    assert len(record.pattern.nodes) == len(record.pattern.stages) == 5


@in_virtual_time
async def test_a_run_that_is_cut_off_twice_leaves_one_pattern(tmp_path: Path) -> None:
    body = flow(name="f", deadline=7)(chain)
    async with timed_runtime(tmp_path, engine()) as runtime:
        [former] = (await record_of(runtime, body)).pattern_records
        with pytest.raises(DeadlineExceeded):
            await runtime.resume(ID, body)
        record = await recorded(runtime.store, ID)
    [pattern] = record.pattern_records
    assert pattern.is_cut_off
    assert pattern.document == former.document
    assert [call.status for call in record.calls] == [
        *(Status.COMPLETED, Status.COMPLETED, Status.CANCELLED),
    ]


@in_virtual_time
async def test_a_fork_learns_the_same_from_a_call_that_was_cut_off_before_it(
    tmp_path: Path,
) -> None:
    """With the tokens of its prompt, which no answer has counted."""

    @flow(name="f", deadline=7)
    async def body() -> None:
        with suppress(DeadlineExceeded):
            async with within(CALL_S / 2):
                await llm("a prompt that gets no answer")
        await llm("fork here")
        await chain()

    async with timed_runtime(tmp_path, engine()) as runtime:
        record = await record_of(runtime, body)
        with pytest.raises(DeadlineExceeded):
            await runtime.fork(ID, body, at="llm#2", new_id="fork")
        forked = await recorded(runtime.store, "fork")
    assert record.pattern.stages[0].input_tokens > 0
    assert forked.pattern.stages[0] == record.pattern.stages[0]


@pytest.mark.parametrize("options", DEADLINE_OPTIONS, ids=["fail", "best_so_far", "wrap_up"])
@in_virtual_time
async def test_runs_that_are_cut_off_do_not_make_runs_look_short(
    tmp_path: Path, options: DeadlineOptions
) -> None:
    async with timed_runtime(tmp_path, engine()) as runtime:
        await runtime.run(flow(name="f", deadline=100)(chain))
        for _ in range(4):
            with suppress(DeadlineExceeded):
                await runtime.run(flow(name="f", deadline=7.5, **options)(chain))
        library = await library_of(runtime, "f")
    assert [pattern.is_cut_off for pattern in library.patterns] == [False] + [True] * 4
    estimate = library.matcher.begin().estimate()
    assert estimate is not None
    assert estimate.outlook.later_llm_calls == pytest.approx(4)
    assert estimate.outlook.later_output_tokens == pytest.approx(12)
    assert estimate.outlook.later_s == pytest.approx(4 * CALL_S, rel=0.02)
    assert estimate.outlook.share == pytest.approx(1 / 5, rel=0.02)


@in_virtual_time
async def test_a_cut_off_step_is_in_the_pattern_with_the_calls_that_it_had_made(
    tmp_path: Path,
) -> None:
    long: Callable[[], Awaitable[str]] = step(name="long")(chain)

    @flow(name="f", deadline=7)
    async def body() -> None:
        await long()

    async with timed_runtime(tmp_path, engine()) as runtime:
        record = await record_of(runtime, body)
    assert [stage.calls[0].identity for stage in record.pattern.stages] == ["script:long"] * 3
