"""`orchestrate answer`: what a run asked a human."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import options

EPILOG = (
    "Example: orchestrate answer 3f2a yes\n\n"
    "An answer is taken as the question needs it, as text or as JSON: "
    'orchestrate answer 3f2a \'{"approved": true, "limit": 3}\'\n\n'
    "One that begins with a dash: orchestrate answer 3f2a -- -5\n\n"
    "Without an answer: show the question."
)


def answer(
    run: Annotated[str, typer.Argument(help="A run's id, or how it begins.")],
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[ANSWER]", help="Text or JSON, as the question needs it.", show_default=False
        ),
    ] = None,
    store: options.Store = None,
) -> None:
    """Answer the question that a run waits for."""
    import asyncio

    from cli.output import say
    from orchestrator.settings import read_settings

    asked = asyncio.run(_answer(read_settings(store=store).store, run, text))
    for question in asked:
        say(question if text is None else f"answered: {question}")


async def _answer(url: str, prefix: str, text: str | None) -> list[str]:
    """The questions that a run waits for; the first is answered, if there is a text.

    Raises:
        BadInput: it waits for none.
    """
    import json

    from cli.errors import BadInput
    from cli.recorded import existing_store
    from store.errors import RunNotFound
    from store.records import Status, StepKind, StepOutcome, StepRecord

    store = await existing_store(url)
    if store is None:
        raise RunNotFound(prefix)
    async with store:
        async with store.reading() as tx:
            run = await tx.runs.find(prefix)
            steps = await tx.journal.of_run(run.id)
        waiting = [
            step
            for step in steps
            if step.kind is StepKind.INPUT and step.status is not Status.COMPLETED
        ]
        if not waiting:
            raise BadInput(f"run {run.id} asks for nothing")
        if text is None:
            return [step.name for step in waiting]
        first = waiting[0]
        outcome = StepOutcome(Status.COMPLETED, first.started_s, result=json.dumps(text).encode())
        async with store.transaction() as tx:
            if first.status is not Status.RUNNING:  # its run ended while it waited
                begun = StepRecord(
                    run.id, first.path, first.name, first.started_s, first.kind, first.place
                )
                await tx.journal.start_again(begun)
            await tx.journal.finish(run.id, first.path, outcome)
        return [first.name]
