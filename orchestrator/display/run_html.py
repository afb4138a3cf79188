"""A run's result as HTML for a notebook: its value, then its timeline. All text is escaped."""

from __future__ import annotations

from html import escape

from orchestrator.display.timeline import Timeline
from store.printable_text import printable

MAX_CHARACTERS = 2000
"""A longer value is cut; `result.value` has all of it."""


def result_html(value: object, timeline: Timeline | None, *, summary: str) -> str:
    """HTML of a result.

    Args:
        timeline: None if nothing is known of the run's steps and calls.
        summary: in place of the timeline, if there is none.
    """
    html = getattr(value, "_repr_html_", None)
    shown = html() if callable(html) and not isinstance(value, type) else None
    if not isinstance(shown, str):
        shown = _as_text(value)
    below = f"<p>{escape(summary)}</p>" if timeline is None else timeline.html
    return f"<div>{shown}{below}</div>"


def handle_html(run_id: str, status: str, timeline: Timeline | None) -> str:
    """HTML of a run that may be running; `timeline` is None before it has begun."""
    if timeline is None:
        return f"<p>run {escape(run_id)}: {escape(status)}</p>"
    return timeline.html


def _as_text(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}… ({len(text):,} characters)"
    style = "white-space:pre-wrap;text-align:left"
    return f'<pre style="{style}">{escape(printable(text))}</pre>'
