"""`orchestrate answer`, and the questions in `orchestrate show`, on stores of sample records."""

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
NO_PROCESS = 2**31 - 1  # larger than any process id of Linux
LIVE: dict[str, Any] = {
    "status": Status.RUNNING,
    "process_id": os.getppid(),
    "claimed_at": datetime.now(UTC),
}
DEAD: dict[str, Any] = {"status": Status.RUNNING, "process_id": NO_PROCESS}
ENDED = [Status.FAILED, Status.CANCELLED]


def unfinished_run(**fields: Any) -> RunRecord:
    return a_run(RUN, finished_at=None, elapsed_s=None, **fields)


def a_question(path: str, status: Status = Status.RUNNING, **fields: Any) -> StepRecord:
    defaults: dict[str, Any] = {"name": f"{path}?", "started_s": 1.0, "kind": StepKind.INPUT}
    return StepRecord(RUN, path, status=status, **defaults | fields)


def steps_in(url: str) -> dict[str, StepRecord]:
    async def read() -> dict[str, StepRecord]:
        async with await open_store(url) as store, store.reading() as tx:
            return {step.path: step for step in await tx.journal.of_run(RUN)}

    return asyncio.run(read())


def stderr_text(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("typed", ["42", "true", '"quoted"', '{"a": 1}', "", "ünïcode", "a\nb"])
def test_an_answer_is_recorded_as_it_was_typed(store_url: str, typed: str) -> None:
    fill_store(store_url, [unfinished_run(**LIVE)], steps=[a_question("input")])
    assert exit_code("answer", RUN, typed) == 0
    answered = steps_in(store_url)["input"]
    assert answered.status is Status.COMPLETED
    assert json.loads(answered.result or b"") == typed


@pytest.mark.parametrize("arguments", [(), ("yes",)])
def test_a_completed_run_takes_no_answer(
    store_url: str, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its question was cancelled by a `within` at its deadline; no code reads the answer."""
    fill_store(store_url, [a_run(RUN)], steps=[a_question("input", Status.CANCELLED)])
    assert exit_code("answer", RUN, *arguments) == 2
    assert "has ended" in stderr_text(capsys)
    assert steps_in(store_url)["input"].status is Status.CANCELLED


@pytest.mark.parametrize("fields", [LIVE, DEAD], ids=["live", "orphaned"])
def test_a_cancelled_question_of_a_running_run_takes_no_answer(
    store_url: str, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [unfinished_run(**fields)], steps=[a_question("input", Status.CANCELLED)])
    assert exit_code("answer", RUN, "yes") == 2
    assert "has no open question" in stderr_text(capsys)
    assert steps_in(store_url)["input"].status is Status.CANCELLED


@pytest.mark.parametrize("ended", ENDED)
@pytest.mark.parametrize("status", [Status.RUNNING, Status.CANCELLED])
def test_a_failed_or_cancelled_run_takes_answers_to_its_running_and_cancelled_questions(
    store_url: str, ended: Status, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [unfinished_run(status=ended)], steps=[a_question("input", status)])
    assert exit_code("answer", RUN, "yes") == 0
    assert steps_in(store_url)["input"].result == b'"yes"'
    assert f"orchestrate resume {RUN}" in stderr_text(capsys)


@pytest.mark.parametrize(
    ("fields", "message"),
    [(LIVE, "continues by itself"), (DEAD, f"orchestrate resume {RUN}")],
    ids=["live", "orphaned"],
)
def test_after_an_answer_the_command_says_what_happens_next(
    store_url: str, fields: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [unfinished_run(**fields)], steps=[a_question("input")])
    assert exit_code("answer", RUN, "yes") == 0
    assert message in stderr_text(capsys)


def test_of_several_questions_the_answered_one_and_the_number_left_are_printed(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [unfinished_run(**LIVE)], steps=[a_question("a"), a_question("b")])
    assert exit_code("answer", RUN, "yes") == 0
    output = stderr_text(capsys)
    assert "answered: a?" in output
    assert "1 open question left:" in output
    assert exit_code("answer", RUN, "no") == 0
    output = stderr_text(capsys)
    assert "answered: b?" in output
    assert "left:" not in output


def test_the_confirmation_leaves_out_why_the_previous_answer_was_rejected(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_again = a_question("input", name=f"how many?{NOT_TAKEN}no number)", attempts=2)
    fill_store(store_url, [unfinished_run(**LIVE)], steps=[asked_again])
    assert exit_code("answer", RUN) == 0
    assert "no number" in stderr_text(capsys)
    assert exit_code("answer", RUN, "7") == 0
    output = stderr_text(capsys)
    assert "answered: how many?" in output
    assert "no number" not in output


def test_any_of_several_questions_can_be_answered_by_its_path(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    read = a_question("c", Status.COMPLETED, outcome_number=0)
    steps = [a_question("input[0]"), a_question("input[1]"), read]
    fill_store(store_url, [unfinished_run(**LIVE)], steps=steps)
    assert exit_code("answer", RUN) == 0
    assert f"orchestrate answer {RUN} --question 'input[1]' ANSWER" in stderr_text(capsys)
    assert exit_code("answer", RUN, "--question", "c", "yes") == 2
    assert "open are: input[0], input[1]" in stderr_text(capsys)
    assert exit_code("answer", RUN, "--question", "input[1]", "yes") == 0
    answered = steps_in(store_url)
    assert answered["input[1]"].status is Status.COMPLETED
    assert answered["input[0]"].status is Status.RUNNING


def test_an_answer_that_is_not_utf_8_is_refused_and_the_question_stays_open(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python decodes invalid bytes of the command line to lone surrogates."""
    fill_store(store_url, [unfinished_run(**LIVE)], steps=[a_question("input")])
    assert exit_code("answer", RUN, "caf\udce9") == 2
    assert "UTF-8" in stderr_text(capsys)
    assert steps_in(store_url)["input"].status is Status.RUNNING


@pytest.mark.parametrize("status", [Status.RUNNING, Status.FAILED])
def test_an_open_question_is_shown_with_the_command_that_answers_it(
    store_url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [a_question("input", name="May I\nbuy it?"), a_question("c", Status.COMPLETED)]
    fill_store(store_url, [unfinished_run(**LIVE | {"status": status})], steps=steps)
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
            "schema": None,
            "answer_with": f"orchestrate answer {RUN} ANSWER",
        }
    ]


def test_a_completed_run_shows_no_question(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run(RUN)], steps=[a_question("input", Status.CANCELLED)])
    assert exit_code("show", RUN) == 0
    assert "asks" not in capsys.readouterr().out
