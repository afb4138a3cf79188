"""Which task a user's text names."""

from __future__ import annotations

from agents.tree_of_thoughts.errors import InvalidTask
from agents.tree_of_thoughts.task import Task
from agents.tree_of_thoughts.tasks.crossword import Crossword
from agents.tree_of_thoughts.tasks.free_text import FreeText, TextCheck
from agents.tree_of_thoughts.tasks.game24 import GameOf24
from agents.tree_of_thoughts.tasks.task_file import CrosswordFile, parse_task_file, read_task_file

SUFFIX = ".toml"


def is_file(puzzle: str) -> bool:
    """Whether a user's text names a task file, rather than being the task."""
    return puzzle.strip().lower().endswith(SUFFIX)


def task_of(puzzle: str) -> Task:
    """The task that a text is, such as "4 5 6 10".

    Raises:
        InvalidTask: it is none.
    """
    try:
        return GameOf24.parse(puzzle)
    except ValueError as error:
        reason = f"{error} for the Game of 24, or the path of a task file that ends in {SUFFIX}"
        raise InvalidTask(puzzle, reason) from None


def task_in(text: str, path: str) -> Task:
    """The task in a task file's text.

    Raises:
        InvalidTask: it is none; names the file, the key and the rule.
    """
    found = parse_task_file(text, path)
    if isinstance(found, CrosswordFile):
        return Crossword(found.across, found.down, found.words)
    check = found.check
    return FreeText(
        found.goal,
        start=found.start,
        steps=found.steps,
        moves=found.moves,
        check=TextCheck(
            pattern=check.pattern,
            contains=tuple(check.contains),
            excludes=tuple(check.excludes),
            min_characters=check.min_characters,
            max_characters=check.max_characters,
        ),
    )


def check_puzzle(puzzle: str) -> None:
    """Raise InvalidTask if a user's text, or the file that it names, is no task."""
    if is_file(puzzle):
        task_in(read_task_file(puzzle), puzzle)
    else:
        task_of(puzzle)
