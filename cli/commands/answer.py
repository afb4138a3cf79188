"""`orchestrate answer`: answer the questions that runs ask humans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from orchestrator.settings import Settings
    from store.payload_codec import PayloadCodec
    from store.records import RunRecord, StepRecord
    from store.unit_of_work import Transaction

EPILOG = (
    "Example: orchestrate answer 3f2a yes\n\n"
    "The question's type decides whether the answer is read as text or as JSON: "
    'orchestrate answer 3f2a \'{"approved": true, "limit": 3}\'\n\n'
    "An answer that begins with a dash: orchestrate answer 3f2a -- -5\n\n"
    "Without an answer, the command lists the open questions."
)


def answer(
    run: Annotated[str, typer.Argument(help="A run's id, or the beginning of it.")],
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[ANSWER]", help="Text or JSON, by the question's type.", show_default=False
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Path of the question, from `orchestrate show`. Default: the first one.",
            show_default=False,
        ),
    ] = None,
    store: options.Store = None,
) -> None:
    """Answer a question that a run waits for."""
    import asyncio

    from cli.terminal.output import print_line, stderr_console
    from orchestrator.settings import read_settings

    settings = read_settings(store=store)
    for line in asyncio.run(_answer(settings, run, text, question)):
        print_line(stderr_console(), line)


async def _answer(
    settings: Settings, prefix: str, text: str | None, path: str | None
) -> list[Text]:
    """Record an answer, or list the open questions if `text` is None; the lines to print.

    Args:
        path: of the question; None: the first open one, or all if `text` is None.
    Raises:
        RunNotFound, RunAmbiguous: no run's id begins like this, or several do.
        BadInput: the run has no open question, or none at this path.
    """
    from cli.reading.store_reader import existing_store
    from cli.render.questions import open_questions, question_lines
    from orchestrator.settings import payload_codec
    from store.errors import RunNotFound

    store = await existing_store(settings.store)
    if store is None:
        raise RunNotFound(prefix)
    async with store, store.reading() if text is None else store.transaction() as tx:
        run = await tx.runs.find(prefix)
        questions = open_questions(run, await tx.journal.of_run(run.id))
        question = _select(run, questions, path)
        if text is None:
            return question_lines(run, questions if path is None else [question])
        await _record(tx, question, text, payload_codec(settings))
    return _confirmation(run, question, num_open=len(questions) - 1)


def _select(run: RunRecord, questions: Sequence[StepRecord], path: str | None) -> StepRecord:
    """The question at this path, or the first if `path` is None; raises BadInput."""
    from cli.errors import BadInput
    from store.records import Status

    if run.status is Status.COMPLETED:
        raise BadInput(f"run {run.id} has ended and needs no answer")
    if not questions:
        raise BadInput(f"run {run.id} has no open question")
    for step in questions:
        if path in (None, step.path):
            return step
    paths = ", ".join(step.path for step in questions)
    raise BadInput(f"run {run.id} has no open question at {path}; open are: {paths}")


async def _record(
    tx: Transaction, question: StepRecord, text: str, codec: PayloadCodec | None
) -> None:
    """Record the answer as it was typed; the run parses it. Raises BadInput."""
    import json
    from dataclasses import replace

    from cli.errors import BadInput
    from store.errors import AlreadyRecorded
    from store.payload_codec import JSON, encoded
    from store.records import Status, StepOutcome

    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput("the answer is not valid UTF-8") from None
    result = encoded(codec, json.dumps(text).encode(), JSON)
    outcome = StepOutcome(Status.COMPLETED, question.started_s, result=result)
    try:
        if question.status is not Status.RUNNING:  # the run ended before an answer
            reopened = replace(
                question,
                status=Status.RUNNING,
                finished_s=None,
                error_type=None,
                error_message=None,
            )
            await tx.journal.start_again(reopened, unless=Status.COMPLETED)
        await tx.journal.finish(question.run_id, question.path, outcome)
    except AlreadyRecorded:
        raise BadInput("another answer to this question was recorded first") from None


def _confirmation(run: RunRecord, answered: StepRecord, *, num_open: int) -> list[Text]:
    """The question that was answered, how many are still open, and what happens next."""
    from rich.text import Text

    from cli.render.questions import in_one_line
    from orchestrator.display.run_text import counted
    from orchestrator.durability.liveness import status_shown
    from orchestrator.sdk.human_input import NOT_TAKEN
    from store.records import Status

    # The question may end with why a previous answer was rejected: that is left out here.
    lines = [f"answered: {in_one_line(answered).partition(NOT_TAKEN)[0]}"]
    if num_open:
        still_open = counted(num_open, "open question")
        lines.append(f"{still_open} left: orchestrate answer {run.id}")
    if status_shown(run) == Status.RUNNING:
        lines.append("the run continues by itself; if the answer does not fit, it asks again")
    else:
        lines.append(f"no process executes the run; continue it with: orchestrate resume {run.id}")
    return [Text(line) for line in lines]
