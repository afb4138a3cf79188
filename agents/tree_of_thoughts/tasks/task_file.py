"""Task files: a crossword or a text, in TOML.

    kind = "text"                        kind = "crossword"
    goal = "Write a poem about rain."    across = ["clue", ...]  # 5, from the top
    steps = 3                            down = ["clue", ...]    # 5, from the left
    start = "Rain"                       words = "apple bread"   # or a list; may be left out
    moves = ["...", "..."]
    [check]
    contains = ["rain"]

Of a text, only goal and steps must be given. `steps` lines are added to `start`; `moves` are the
lines to choose from, each once, instead of the model's own. The whole text must satisfy `check`:
`pattern` (a regular expression), `contains`, `excludes` (words), `min_characters` and
`max_characters`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from agents.tree_of_thoughts.errors import InvalidTask
from agents.tree_of_thoughts.tasks.crossword import SIZE
from agents.tree_of_thoughts.tasks.expression import Expression

MAX_BYTES = 100_000
"""Limit of a task file's size."""

MAX_WORDS, MAX_MOVES, MAX_STEPS = 1000, 200, 50
MAX_CHARACTERS = 10_000_000


def _word(text: str) -> str:
    word = text.strip().lower()
    if len(word) != SIZE or not word.isalpha():
        raise ValueError(f"a word has {SIZE} letters and nothing else")
    return word


def _one_line(text: str) -> str:
    if "\n" in text or not text.strip():
        raise ValueError("give one line that is not empty")
    return " ".join(text.split())


def _split(words: object) -> object:
    return words.split() if isinstance(words, str) else words


Line = Annotated[str, Field(max_length=500), AfterValidator(_one_line)]
Clues = Annotated[list[Line], Field(min_length=SIZE, max_length=SIZE)]
Word = Annotated[str, Field(max_length=100), AfterValidator(_word)]


def _expression(text: object) -> object:
    if not isinstance(text, str):
        raise ValueError("give a regular expression, as a text")
    return Expression(text)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)


class CrosswordFile(_Strict):
    """A crossword of 5 by 5; without words, the model proposes its own."""

    kind: Literal["crossword"]
    across: Clues
    down: Clues
    words: Annotated[list[Word], Field(max_length=MAX_WORDS), BeforeValidator(_split)] = []


class CheckTable(_Strict):
    """What the finished text must be like."""

    pattern: Annotated[Expression | None, BeforeValidator(_expression)] = None
    contains: list[Line] = []
    excludes: list[Line] = []
    min_characters: Annotated[int, Field(ge=0, le=MAX_CHARACTERS)] = 0
    max_characters: Annotated[int, Field(ge=1, le=MAX_CHARACTERS)] | None = None

    @model_validator(mode="after")
    def _is_possible(self) -> CheckTable:
        if self.max_characters is not None and self.min_characters > self.max_characters:
            raise ValueError("min_characters is above max_characters")
        return self


class TextFile(_Strict):
    """A text that grows by a line a step."""

    kind: Literal["text"]
    goal: Annotated[str, Field(min_length=1, max_length=2000, pattern=r"\S")]
    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)]
    start: Annotated[str, Field(max_length=10_000)] = ""
    moves: Annotated[list[Line], Field(max_length=MAX_MOVES)] = []
    check: CheckTable = CheckTable()

    @model_validator(mode="after")
    def _has_enough_moves(self) -> TextFile:
        if self.moves and len(set(self.moves)) < self.steps:
            raise ValueError(
                f"{len(set(self.moves))} different moves are too few: steps needs more"
            )
        return self


_FILE: TypeAdapter[CrosswordFile | TextFile] = TypeAdapter(
    Annotated[CrosswordFile | TextFile, Field(discriminator="kind")]
)


def read_task_file(path: str) -> str:
    """The text of a task file.

    Raises:
        InvalidTask: it cannot be read, is larger than MAX_BYTES, or is not UTF-8.
    """
    try:
        with Path(path.strip()).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InvalidTask(path, f"it cannot be read: {_reason(error)}") from error
    if len(data) > MAX_BYTES:
        raise InvalidTask(path, f"the file has more than {MAX_BYTES:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidTask(path, f"the file is not UTF-8 text, at byte {error.start}") from error


def parse_task_file(text: str, path: str) -> CrosswordFile | TextFile:
    """What a task file says.

    Args:
        path: of the file, for errors.
    Raises:
        InvalidTask: it is empty, no TOML, or breaks a rule; names the key and the rule.
    """
    try:
        document = tomllib.loads(text)
    except RecursionError as error:
        raise InvalidTask(path, "the file is not valid TOML: it is nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError, or a number of more digits than Python reads
        raise InvalidTask(path, f"the file is not valid TOML: {error}") from error
    if not document:
        raise InvalidTask(path, 'the file is empty: give kind = "crossword" or kind = "text"')
    try:
        return _FILE.validate_python(document)
    except ValidationError as error:
        raise InvalidTask(path, "; ".join(_faults(error))) from None


def _faults(error: ValidationError) -> list[str]:
    """The first faults of a file, each with its key."""
    faults = error.errors(include_url=False, include_context=False)
    shown = [_fault(each) for each in faults[:3]]
    return [*shown, f"and {len(faults) - 3} more"] if len(faults) > 3 else shown


def _fault(fault: Any) -> str:
    place = ".".join(str(part) for part in fault["loc"][1:])
    if fault["type"] == "union_tag_not_found":
        return 'kind is missing: "crossword" or "text"'
    if fault["type"] == "union_tag_invalid":
        return f'kind is "crossword" or "text", not {fault["input"].get("kind")!r}'
    if fault["type"] == "extra_forbidden":
        return f"{place} is no key of this kind of task"
    given = f", not {fault['input']!r:.60}" if isinstance(fault["input"], str | int | float) else ""
    message = fault["msg"].removeprefix("Value error, ")
    return f"{place}: {message}{given}" if place else message


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
