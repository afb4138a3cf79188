"""The open questions of a run to a human, as text and as JSON. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.text import Text

from store.records import RunRecord, StepRecord


def question_lines(run: RunRecord, questions: Sequence[StepRecord]) -> list[Text]:
    """Each question, and the command that answers it."""
    lines = []
    for step in questions:
        lines.append(Text.assemble(("asks: ", "bold cyan"), in_one_line(step.name)))
        lines.append(Text(f"  {_command(run, questions, step)}", style="dim"))
    return lines


def question_documents(run: RunRecord, questions: Sequence[StepRecord]) -> list[dict[str, object]]:
    """The same as JSON-safe objects."""
    return [
        {
            "path": step.path,
            "question": step.name,
            "schema": step.answer_schema,
            "answer_with": _command(run, questions, step),
        }
        for step in questions
    ]


def in_one_line(question: str) -> str:
    """A question's text without line breaks."""
    return " ".join(question.split())


def _command(run: RunRecord, questions: Sequence[StepRecord], step: StepRecord) -> str:
    option = "" if len(questions) == 1 else f" --question {shlex.quote(step.path)}"
    return f"orchestrate answer {run.id}{option} ANSWER"
