"""`orchestrate answer` and the questions of `orchestrate show`, on stores filled by hand."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrator.sdk.human_input import NOT_TAKEN
from store.records import RunRecord, Status, StepKind, StepRecord
from store.session import open_store
from tests.cli.cli_samples import a_run, exit_code, fill_store

RUN = "r1"
NOBODY = 2**31 - 1
LIVE: dict[str, Any] = {
    "status": Status.RUNNING,
    "process_id": os.getppid(),
    "claimed_at": datetime.now(UTC),
}
DEAD: dict[str, Any] = {"status": Status.RUNNING, "process_id": NOBODY}
ENDED = [Status.FAILED, Status.CANCELLED]


def the_run(**facts: Any) -> RunRecord:
    return a_run(RUN, finished_at=None, elapsed_s=None, **facts)


def a_question(path: str, status: Status = Status.RUNNING, **facts: Any) -> StepRecord:
    given: dict[str, Any] = {"name": f"{path}?", "started_s": 1.0, "kind": StepKind.INPUT}
    return StepRecord(RUN, path, status=status, **given | facts)


def steps_in(url: str) -> dict[str, StepRecord]:
    async def read() -> dict[str, StepRecord]:
        async with await open_store(url) as store, store.reading() as tx:
            return {step.path: step for step in await tx.journal.of_run(RUN)}

    return asyncio.run(read())


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("typed", ["42", "true", '"quoted"', '{"a": 1}', "", "ünïcode", "a\nb"])
def test_an_answer_is_recorded_as_it_was_typed(store_url: str, typed: str) -> None:
    fill_store(store_url, [the_run(**LIVE)], steps=[a_question("input")])
    assert exit_code("answer", RUN, typed) == 0
    answered = steps_in(store_url)["input"]
    assert answered.status is Status.COMPLETED
    assert json.loads(answered.result or b"") == typed


@pytest.mark.parametrize("arguments", [(), ("yes",)])
def test_a_run_that_has_ended_is_told_nothing_more(
    store_url: str, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A question whose answer came too late for a `within` is of no use any more."""
    fill_store(store_url, [a_run(RUN)], steps=[a_question("input", Status.CANCELLED)])
    assert exit_code("answer", RUN, *arguments) == 2
    assert "has ended" in said(capsys)
    assert steps_in(store_url)["input"].status is Status.CANCELLED


@pytest.mark.parametrize("facts", [LIVE, DEAD], ids=["live", "orphaned"])
def test_a_question_that_its_run_has_given_up_takes_no_answer(
    store_url: str, facts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [the_run(**facts)], steps=[a_question("input", Status.CANCELLED)])
    assert exit_code("answer", RUN, "yes") == 2
    assert "asks for nothing" in said(capsys)
    assert steps_in(store_url)["input"].status is Status.CANCELLED


@pytest.mark.parametrize("ended", ENDED)
@pytest.mark.parametrize("status", [Status.RUNNING, Status.CANCELLED])
def test_a_run_that_can_be_resumed_takes_answers_to_all_that_it_has_asked(
    store_url: str, ended: Status, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [the_run(status=ended)], steps=[a_question("input", status)])
    assert exit_code("answer", RUN, "yes") == 0
    assert steps_in(store_url)["input"].result == b'"yes"'
    assert f"orchestrate resume {RUN}" in said(capsys)


@pytest.mark.parametrize(
    ("facts", "told"),
    [(LIVE, "goes on by itself"), (DEAD, f"orchestrate resume {RUN}")],
    ids=["live", "orphaned"],
)
def test_who_has_answered_is_told_what_happens_next(
    store_url: str, facts: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [the_run(**facts)], steps=[a_question("input")])
    assert exit_code("answer", RUN, "yes") == 0
    assert told in said(capsys)


def test_of_several_questions_it_says_which_was_answered_and_how_many_are_left(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [the_run(**LIVE)], steps=[a_question("a"), a_question("b")])
    assert exit_code("answer", RUN, "yes") == 0
    told = said(capsys)
    assert "answered: a?" in told
    assert "1 question:" in told
    assert exit_code("answer", RUN, "no") == 0
    told = said(capsys)
    assert "answered: b?" in told
    assert "still asks" not in told


def test_an_answer_is_not_told_with_what_was_wrong_with_the_one_before(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_again = a_question("input", name=f"how many?{NOT_TAKEN}no number)", attempts=2)
    fill_store(store_url, [the_run(**LIVE)], steps=[asked_again])
    assert exit_code("answer", RUN) == 0
    assert "no number" in said(capsys)
    assert exit_code("answer", RUN, "7") == 0
    told = said(capsys)
    assert "answered: how many?" in told
    assert "no number" not in told


def test_any_of_several_questions_can_be_answered_by_its_path(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [a_question("input[0]"), a_question("input[1]"), a_question("c", Status.COMPLETED)]
    fill_store(store_url, [the_run(**LIVE)], steps=steps)
    assert exit_code("answer", RUN) == 0
    assert f"orchestrate answer {RUN} --question 'input[1]' ANSWER" in said(capsys)
    assert exit_code("answer", RUN, "--question", "c", "yes") == 2
    assert "only at input[0], input[1]" in said(capsys)
    assert exit_code("answer", RUN, "--question", "input[1]", "yes") == 0
    answered = steps_in(store_url)
    assert answered["input[1]"].status is Status.COMPLETED
    assert answered["input[0]"].status is Status.RUNNING


def test_what_is_no_text_is_refused_and_the_question_stays(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bytes of another encoding reach a program as lone surrogates."""
    fill_store(store_url, [the_run(**LIVE)], steps=[a_question("input")])
    assert exit_code("answer", RUN, "caf\udce9") == 2
    assert "UTF-8" in said(capsys)
    assert steps_in(store_url)["input"].status is Status.RUNNING


@pytest.mark.parametrize("status", [Status.RUNNING, Status.FAILED])
def test_an_open_question_is_shown_with_the_command_that_answers_it(
    store_url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [a_question("input", name="May I\nbuy it?"), a_question("c", Status.COMPLETED)]
    fill_store(store_url, [the_run(**LIVE | {"status": status})], steps=steps)
    assert exit_code("show", RUN) == 0
    shown = capsys.readouterr().out
    assert "asks: May I buy it?" in shown
    assert f"orchestrate answer {RUN} ANSWER" in shown
    assert "c?" not in shown
    assert exit_code("show", RUN, "--json") == 0
    assert json.loads(capsys.readouterr().out)["questions"] == [
        {
            "path": "input",
            "question": "May I\nbuy it?",
            "answer_with": f"orchestrate answer {RUN} ANSWER",
        }
    ]


def test_a_run_that_has_ended_shows_no_question(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run(RUN)], steps=[a_question("input", Status.CANCELLED)])
    assert exit_code("show", RUN) == 0
    assert "asks" not in capsys.readouterr().out
