"""The prompts of Tree of Thoughts. Each begins with the goal, so that they share a prefix."""

from __future__ import annotations

SYSTEM = "You solve a task step by step. Answer briefly."

VALUES = {"sure": 1.0, "likely": 0.5, "impossible": 0.0}
"""What the model may say of a state, and its value (Yao et al., 2023, section 4.1)."""


def vote_prompt(goal: str, described: str) -> str:
    """Which of some steps is the best; the steps follow."""
    return f"{goal}\n\n{described}\n\nWhich step leads to the goal?"


def value_prompt(goal: str, described: str) -> str:
    """How promising a state is; the possible answers follow."""
    return f"{goal}\n\n{described}\n\nCan the goal be reached from here?"


def propose_prompt(goal: str, described: str, how: str) -> str:
    """A step from a state, in one line."""
    return f"{goal}\n\n{described}\n\n{how}"
