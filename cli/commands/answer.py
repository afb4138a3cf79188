"""`orchestrate answer`: answer the questions that runs ask humans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options

if TYPE_CHECKING:
    from rich.text import Text

    from orchestrator.runtime.run_control import Question
    from orchestrator.settings import Settings
    from store.records import RunRecord

EPILOG = (
    "Example: orchestrate answer 3f2a yes\n\n"
    "The question's type decides whether the answer is read as text or as JSON: "
    'orchestrate answer 3f2a \'{"approved": true, "limit": 3}\'\n\n'
    "An answer that begins with a dash: orchestrate answer 3f2a -- -5\n\n"
    "An answer that does not fit the question's type is refused. Until the run has read an answer, "
    "another one replaces it.\n\n"
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
            help="Path of the question, from `orchestrate show`. Default: the first open one.",
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
        NoOpenQuestion: the run has no open question, or none at this path.
        AnswerRefused: the answer does not fit the question's type.
    """
    from cli.reading.store_reader import existing_store
    from cli.render.questions import question_lines
    from orchestrator.durability.questions import open_questions, question_to_answer
    from orchestrator.runtime.run_control import RunControl
    from orchestrator.settings import payload_codec
    from store.errors import RunNotFound

    store = await existing_store(settings.store, codec=payload_codec(settings))
    if store is None:
        raise RunNotFound(prefix)
    async with store:
        async with store.reading() as tx:
            run = await tx.runs.find(prefix)
            steps = await tx.journal.questions_of([run.id])
        chosen = question_to_answer(run, steps, path)
        questions = open_questions(run, steps)
        if text is None:
            shown = questions if path is None else [chosen]
            return question_lines(run, shown or [chosen])
        answered = await RunControl(store).answer(run.id, text, question=chosen.path)
    is_replaced = chosen not in questions
    num_open = len(questions) - (not is_replaced)
    return _confirmation(run, answered, is_replaced=is_replaced, num_open=num_open)


def _confirmation(
    run: RunRecord, answered: Question, *, is_replaced: bool, num_open: int
) -> list[Text]:
    """The question that was answered, how many are still open, and what happens next."""
    from rich.text import Text

    from cli.render.questions import in_one_line
    from orchestrator.display.run_text import counted
    from orchestrator.durability.liveness import status_shown
    from orchestrator.sdk.human_input import NOT_TAKEN
    from store.records import Status

    # The question may end with why a previous answer was rejected: that is left out here.
    done = "answer replaced" if is_replaced else "answered"
    lines = [f"{done}: {in_one_line(answered.text).partition(NOT_TAKEN)[0]}"]
    if num_open:
        still_open = counted(num_open, "open question")
        lines.append(f"{still_open} left: orchestrate answer {run.id}")
    if status_shown(run) == Status.RUNNING:
        lines.append("the run continues by itself")
    else:
        lines.append(f"no process executes the run; continue it with: orchestrate resume {run.id}")
    return [Text(line) for line in lines]
