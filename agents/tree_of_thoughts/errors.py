"""Errors of Tree of Thoughts: what is wrong with a task, and what to do."""

from __future__ import annotations

from store.printable_text import one_line


class InvalidTask(ValueError):
    """What was given is no task: neither numbers for the Game of 24 nor a valid task file.

    Args:
        given: the user's text, or the path of the file.
        reason: what is wrong, and how to write it.
    """

    def __init__(self, given: str, reason: str) -> None:
        super().__init__(given, reason)

    def __str__(self) -> str:
        given, reason = self.args
        shown = given if len(given) <= MAX_SHOWN else f"{given[:MAX_SHOWN]}..."
        return f"{shown!r} is no task: {one_line(reason)}"


MAX_SHOWN = 100
"""Characters of a user's text that an error repeats."""
