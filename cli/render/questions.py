"""What a run asked a human and has no answer to yet: in words, and as data. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.text import Text

from store.records import RunRecord, Status, StepKind, StepRecord

_OPEN = {
    Status.RUNNING: {Status.RUNNING},
    Status.FAILED: {Status.RUNNING, Status.CANCELLED},
    Status.CANCELLED: {Status.RUNNING, Status.CANCELLED},
    Status.COMPLETED: set[Status](),
}
"""By a run's status, those of the questions that it, or who resumes it, has a use for."""


def open_questions(run: RunRecord, steps: Sequence[StepRecord]) -> list[StepRecord]:
    """The questions of a run that an answer would reach, in the order in which they were asked."""
    return [
        step for step in steps if step.kind is StepKind.INPUT and step.status in _OPEN[run.status]
    ]


def question_lines(run: RunRecord, waiting: Sequence[StepRecord]) -> list[Text]:
    """Open questions, and how to answer each of them."""
    lines = []
    for step in waiting:
        lines.append(Text.assemble(("asks: ", "bold cyan"), in_one_line(step)))
        lines.append(Text(f"  {_command(run, waiting, step)}", style="dim"))
    return lines


def question_documents(run: RunRecord, waiting: Sequence[StepRecord]) -> list[dict[str, object]]:
    """The same as one JSON-safe object each."""
    return [
        {
            "path": step.path,
            "question": step.name,
            "answer_with": _command(run, waiting, step),
        }
        for step in waiting
    ]


def in_one_line(step: StepRecord) -> str:
    """What was asked, without its line breaks."""
    return " ".join(step.name.split())


def _command(run: RunRecord, waiting: Sequence[StepRecord], step: StepRecord) -> str:
    which = "" if len(waiting) == 1 else f" --question {shlex.quote(step.path)}"
    return f"orchestrate answer {run.id}{which} ANSWER"
