"""The open questions of a run to a human, as text and as JSON. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.text import Text

from store.records import RunRecord, Status, StepKind, StepRecord

_OPEN_STATUSES = {
    Status.RUNNING: {Status.RUNNING},
    Status.FAILED: {Status.RUNNING, Status.CANCELLED},
    Status.CANCELLED: {Status.RUNNING, Status.CANCELLED},
    Status.COMPLETED: set[Status](),
}
"""Status of a run -> statuses of its questions that can still be answered. If a run failed or was
cancelled, its cancelled questions count: an answer is used when the run is resumed."""


def open_questions(run: RunRecord, steps: Sequence[StepRecord]) -> list[StepRecord]:
    """The questions that can be answered, in the order in which they were asked."""
    return [
        step
        for step in steps
        if step.kind is StepKind.INPUT and step.status in _OPEN_STATUSES[run.status]
    ]


def question_lines(run: RunRecord, questions: Sequence[StepRecord]) -> list[Text]:
    """Each question, and the command that answers it."""
    lines = []
    for step in questions:
        lines.append(Text.assemble(("asks: ", "bold cyan"), in_one_line(step)))
        lines.append(Text(f"  {_command(run, questions, step)}", style="dim"))
    return lines


def question_documents(run: RunRecord, questions: Sequence[StepRecord]) -> list[dict[str, object]]:
    """The same as JSON-safe objects."""
    return [
        {
            "path": step.path,
            "question": step.name,
            "answer_with": _command(run, questions, step),
        }
        for step in questions
    ]


def in_one_line(step: StepRecord) -> str:
    """The question's text without line breaks."""
    return " ".join(step.name.split())


def _command(run: RunRecord, questions: Sequence[StepRecord], step: StepRecord) -> str:
    option = "" if len(questions) == 1 else f" --question {shlex.quote(step.path)}"
    return f"orchestrate answer {run.id}{option} ANSWER"
