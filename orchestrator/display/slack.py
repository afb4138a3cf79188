"""How early or late something ended: its sub-deadline minus its end. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.durations import shown

if TYPE_CHECKING:
    from rich.text import Text


def slack_of(due_s: float | None, ended_s: float | None) -> float | None:
    """Sub-deadline minus end, in seconds; negative if late; None if either is missing."""
    return None if due_s is None or ended_s is None else due_s - ended_s


def early_or_late(slack_s: float) -> Text:
    """A slack in words."""
    from rich.text import Text  # takes time to import, which `slack_of` does not need

    if slack_s >= 0:
        return Text(f"{shown(slack_s)} early", style="green")
    return Text(f"{shown(-slack_s)} late", style="red")
