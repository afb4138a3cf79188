"""`orchestrate answer`: what a run asked a human."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from store.records import RunRecord, StepRecord
    from store.unit_of_work import Transaction

EPILOG = (
    "Example: orchestrate answer 3f2a yes\n\n"
    "An answer is taken as the question needs it, as text or as JSON: "
    'orchestrate answer 3f2a \'{"approved": true, "limit": 3}\'\n\n'
    "One that begins with a dash: orchestrate answer 3f2a -- -5\n\n"
    "Without an answer: show the questions."
)


def answer(
    run: Annotated[str, typer.Argument(help="A run's id, or how it begins.")],
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[ANSWER]", help="Text or JSON, as the question needs it.", show_default=False
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Which of several, as `orchestrate show` lists them. Default: the first.",
            show_default=False,
        ),
    ] = None,
    store: options.Store = None,
) -> None:
    """Answer the question that a run waits for."""
    import asyncio

    from cli.terminal.output import print_line, talk
    from orchestrator.settings import read_settings

    url = read_settings(store=store).store
    for line in asyncio.run(_answer(url, run, text, question)):
        print_line(talk(), line)


async def _answer(url: str, prefix: str, text: str | None, path: str | None) -> list[Text]:
    """Answer a question, if there is a text; what to say of it.

    Raises:
        RunNotFound, RunAmbiguous: no run's id begins like this, or several do.
        BadInput: it asks for nothing, or not for this.
    """
    from cli.reading.store_reader import existing_store
    from cli.render.questions import open_questions, question_lines
    from store.errors import RunNotFound

    store = await existing_store(url)
    if store is None:
        raise RunNotFound(prefix)
    async with store, store.reading() if text is None else store.transaction() as tx:
        run = await tx.runs.find(prefix)
        waiting = open_questions(run, await tx.journal.of_run(run.id))
        chosen = _chosen(run, waiting, path)
        if text is None:
            return question_lines(run, waiting if path is None else [chosen])
        await _record(tx, chosen, text)
    return _told(run, chosen, len(waiting) - 1)


def _chosen(run: RunRecord, waiting: Sequence[StepRecord], path: str | None) -> StepRecord:
    """The question of this path, or the first; raises BadInput."""
    from cli.errors import BadInput
    from store.records import Status

    if run.status is Status.COMPLETED:
        raise BadInput(f"run {run.id} has ended, and asks for nothing any more")
    if not waiting:
        raise BadInput(f"run {run.id} asks for nothing")
    for step in waiting:
        if path in (None, step.path):
            return step
    raise BadInput(f"run {run.id} asks nothing at {path}, only at {_listed(waiting)}")


async def _record(tx: Transaction, question: StepRecord, text: str) -> None:
    """Record what was typed, for the run to read; raises BadInput."""
    import json
    from dataclasses import replace

    from cli.errors import BadInput
    from store.errors import AlreadyRecorded
    from store.records import Status, StepOutcome

    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput("the answer is no valid UTF-8") from None
    outcome = StepOutcome(Status.COMPLETED, question.started_s, result=json.dumps(text).encode())
    try:
        if question.status is not Status.RUNNING:  # its run ended while it waited
            begun = replace(
                question,
                status=Status.RUNNING,
                finished_s=None,
                error_type=None,
                error_message=None,
            )
            await tx.journal.start_again(begun, unless=Status.COMPLETED)
        await tx.journal.finish(question.run_id, question.path, outcome)
    except AlreadyRecorded:
        raise BadInput("somebody else has answered it just now") from None


def _told(run: RunRecord, answered: StepRecord, left: int) -> list[Text]:
    """What was answered, and what happens next."""
    from rich.text import Text

    from cli.render.describe import counted
    from cli.render.questions import in_one_line
    from orchestrator.durability.liveness import status_shown
    from orchestrator.sdk.human_input import NOT_TAKEN
    from store.records import Status

    # Why an answer before this one was not taken would read as if it were of this one.
    told = [f"answered: {in_one_line(answered).partition(NOT_TAKEN)[0]}"]
    if left:
        told.append(f"it still asks {counted(left, 'question')}: orchestrate answer {run.id}")
    if status_shown(run) == Status.RUNNING:
        told.append("the run goes on by itself; if the answer does not fit, it asks again")
    else:
        told.append(f"no process is at work on it: orchestrate resume {run.id}")
    return [Text(line) for line in told]


def _listed(waiting: Sequence[StepRecord]) -> str:
    return ", ".join(step.path for step in waiting)
