"""Steps: each path has one start and one outcome."""

from __future__ import annotations

from dataclasses import replace

import pytest

from store.errors import AlreadyRecorded, NotStarted, RunNotFound
from store.records import Effects, Status, StepKind, StepOutcome, StepRecord
from store.session import Store
from tests.unit.store.store_samples import NOON, a_run, a_step


async def test_steps_are_read_in_the_order_of_their_starts(store: Store) -> None:
    write = a_step("write", started_s=2.5)
    plan = a_step("plan", started_s=0.5)
    inner = a_step("plan/read[0]", started_s=0.5)
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        for step in (write, inner, plan):
            await tx.journal.start(step)
    async with store.reading() as tx:
        assert list(await tx.journal.of_run("run-1")) == [plan, inner, write]
        assert list(await tx.journal.of_run("unknown")) == []


async def test_the_outcome_of_a_step_is_read_as_it_was_recorded(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.journal.start(a_step())
        await tx.journal.finish(
            "run-1", "plan", StepOutcome(Status.FAILED, 4.5, error_type="Boom", error_message="why")
        )
        [step] = await tx.journal.of_run("run-1")
    assert step == a_step(
        status=Status.FAILED, finished_s=4.5, error_type="Boom", error_message="why"
    )


async def test_a_second_step_with_the_same_path_is_refused(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.journal.start(a_step(name="first"))
        with pytest.raises(AlreadyRecorded):
            await tx.journal.start(a_step(name="second"))
        assert [step.name for step in await tx.journal.of_run("run-1")] == ["first"]


async def test_the_outcome_of_a_step_is_never_overwritten(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.journal.start(a_step())
        await tx.journal.finish("run-1", "plan", StepOutcome(Status.COMPLETED, 1.0))
        with pytest.raises(AlreadyRecorded):
            await tx.journal.finish("run-1", "plan", StepOutcome(Status.FAILED, 2.0))
        assert [step.status for step in await tx.journal.of_run("run-1")] == [Status.COMPLETED]


async def test_another_attempt_of_a_step_replaces_its_outcome(store: Store) -> None:
    again = a_step(name="again", started_s=3.0)
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        with pytest.raises(NotStarted):
            await tx.journal.start_again(again, at=NOON)
        await tx.journal.start(a_step())
        await tx.journal.finish(
            "run-1", "plan", StepOutcome(Status.FAILED, 1.0, error_type="Boom", error_message="why")
        )
        assert await tx.journal.start_again(again, at=NOON, unless=Status.COMPLETED)
        assert await tx.journal.get("run-1", "plan") == replace(again, attempts=2)


async def test_another_attempt_does_not_replace_a_result_recorded_meanwhile(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.journal.start(a_step())
        await tx.journal.finish("run-1", "plan", StepOutcome(Status.COMPLETED, 1.0, result=b"1"))
        ended = await tx.journal.get("run-1", "plan")
        assert not await tx.journal.start_again(a_step(name="b"), at=NOON, unless=Status.COMPLETED)
        assert await tx.journal.get("run-1", "plan") == ended
        with pytest.raises(NotStarted):
            await tx.journal.start_again(a_step("another"), at=NOON, unless=Status.COMPLETED)


async def test_a_step_without_a_recorded_start_cannot_finish(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        with pytest.raises(NotStarted):
            await tx.journal.finish("run-1", "plan", StepOutcome(Status.COMPLETED, 1.0))


async def test_a_step_of_an_unrecorded_run_is_refused(store: Store) -> None:
    async with store.transaction() as tx:
        with pytest.raises(RunNotFound):
            await tx.journal.start(a_step(run_id="unknown"))


async def test_forgotten_steps_are_deleted_except_external_effects_with_an_unknown_outcome(
    store: Store,
) -> None:
    def effect(path: str, status: Status) -> StepRecord:
        ended_s = None if status is Status.RUNNING else 1.0
        fields = {"kind": StepKind.TOOL, "effects": Effects.EXTERNAL, "finished_s": ended_s}
        return a_step(path, name="send", status=status, **fields)

    steps = [effect(str(status), status) for status in Status]
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        for step in (*steps, a_step("plan"), a_step("kept")):
            await tx.journal.start(step)
        await tx.journal.forget("run-1", [*map(str, Status), "plan"], at=NOON)
        await tx.journal.forget("run-1", [], at=NOON)
        left = {step.path.partition("[")[0]: step for step in await tx.journal.of_run("run-1")}
        await tx.journal.start(effect("running", Status.RUNNING))  # its path is free again
    assert set(left) == {"running", "cancelled", "kept"}
    assert left["running"].path.startswith("running[gone:")


async def test_only_failed_steps_are_marked_as_those_that_ended_their_run(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        for path, status in (("failed", Status.FAILED), ("other", Status.FAILED)):
            await tx.journal.start(a_step(path, status=status, finished_s=1.0))
        await tx.journal.start(a_step("well", status=Status.COMPLETED, finished_s=1.0))
        many = [f"unknown-{number}" for number in range(2000)]
        await tx.journal.ended_run("run-1", ["failed", "well", *many])
        await tx.journal.ended_run("run-1", [])
        marks = {step.path: step.ended_run for step in await tx.journal.of_run("run-1")}
    assert marks == {"failed": True, "other": False, "well": False}


@pytest.mark.parametrize("status", [Status.RUNNING, Status.CANCELLED, Status.COMPLETED])
async def test_a_question_takes_answers_until_one_has_its_place_in_the_order(
    store: Store, status: Status
) -> None:
    asked = a_step("input", kind=StepKind.INPUT, status=status, answer_schema={"type": "integer"})
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.journal.start(asked)
        for answer in (b"1", b"2"):
            assert await tx.journal.answer("run-1", "input", answer)
        step = await tx.journal.get("run-1", "input")
        assert step == replace(
            asked, status=Status.COMPLETED, finished_s=asked.started_s, result=b"2"
        )
        await tx.journal.number_outcome("run-1", "input", 0, read_s=7.0)
        assert not await tx.journal.answer("run-1", "input", b"3")
        step = await tx.journal.get("run-1", "input")
        assert (step.result, step.finished_s) == (b"2", 7.0)


async def test_only_questions_take_answers(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.journal.start(a_step())
        assert not await tx.journal.answer("run-1", "plan", b"1")
        with pytest.raises(NotStarted):
            await tx.journal.answer("run-1", "unknown", b"1")
        assert await tx.journal.get("run-1", "plan") == a_step()


async def test_the_questions_of_several_runs_are_read_at_once(store: Store) -> None:
    steps = [
        a_step("input", run_id=run_id, kind=StepKind.INPUT, answer_schema=schema)
        for run_id, schema in (("a", None), ("b", {"type": "string"}), ("c", None))
    ]
    async with store.transaction() as tx:
        for step in steps:
            await tx.runs.add(a_run(step.run_id))
            await tx.journal.start(step)
        await tx.journal.start(a_step(run_id="a"))
        assert list(await tx.journal.questions_of(["b", "a"])) == steps[:2]
        assert list(await tx.journal.questions_of([])) == []
