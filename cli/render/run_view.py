"""A run as `show` and `watch` print it: header, timeline, failures, questions. Pure."""

from __future__ import annotations

from datetime import datetime

from rich.text import Text

from cli.reading.history import History
from cli.render.describe import elapsed_s, failures, header
from cli.render.questions import question_lines
from orchestrator.display.text_timeline import timeline_lines
from orchestrator.durability.questions import open_questions


def run_lines(
    history: History, *, now: datetime, width: int, ascii_only: bool, with_calls: bool = False
) -> list[Text]:
    """The lines of a run, with an empty one between its parts.

    Args:
        width: maximum width of the timeline, in columns.
        with_calls: also draw a bar for each call, below its stage.
    """
    bars = timeline_lines(
        history.run,
        history.calls,
        width=width,
        ascii_only=ascii_only,
        with_calls=with_calls,
        now_s=elapsed_s(history.run, history.status, now),
    )
    questions = question_lines(history.run, open_questions(history.run, history.steps))
    parts = [header(history, now=now, ascii_only=ascii_only), bars, failures(history), questions]
    lines: list[Text] = []
    for part in parts:
        if part:
            lines += [Text(), *part] if lines else part
    return lines
