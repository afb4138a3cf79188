"""The files that benchmarks measure on; what is wrong with one is told in a line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Call(NamedTuple):
    """One call of a workflow.

    Attributes:
        output_tokens: of one answer.
        samples: answers drawn from the one prompt.
    """

    prompt_tokens: int
    output_tokens: int
    samples: int = 1


Stages = Sequence[tuple[str, Sequence[Call]]]
"""Of one workflow: each stage's name, and its calls."""

MOST_TOKENS = 1_000_000
"""Of a prompt or an answer; more is taken to be a mistake in the file."""


class BadData(Exception):
    """A file to measure on is not as it should be."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        return "{}: {}".format(*self.args)


class DataMissing(BadData):
    """There is no such file, or it is another than the one that the benchmark is made for."""


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        DataMissing: there is no such file.
        BadData: it cannot be read, or holds no JSON object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise DataMissing(path, f"cannot read it: {cause.strerror}") from cause
    except OSError as cause:
        raise BadData(path, f"cannot read it: {cause.strerror}") from cause
    except (ValueError, RecursionError) as cause:
        raise BadData(path, f"it is no JSON: {cause}") from cause
    if not isinstance(document, dict):
        raise BadData(path, f"it must hold an object, and holds {_briefly(document)}")
    return document


def read_workflows(path: Path, *, name_key: str, calls_key: str) -> list[Stages]:
    """The workflows in a JSON file; stages without calls are left out.

    Args:
        name_key, calls_key: what the file calls a stage's name, and a stage's calls.
    Raises:
        DataMissing: there is no such file.
        BadData: it cannot be read, or holds no workflows.
    """
    workflows = _member(path, "it", read_object(path), "workflows", list)
    if not workflows:
        raise BadData(path, "it holds no workflows")
    found = []
    for number, workflow in enumerate(workflows):
        at = f"workflows[{number}]"
        stages = []
        for place, stage in enumerate(_member(path, at, workflow, "stages", list)):
            here = f"{at}.stages[{place}]"
            name = _member(path, here, stage, name_key, str)
            calls = _member(path, here, stage, calls_key, list)
            read = [
                _call(path, f"{here}.{calls_key}[{which}]", call)
                for which, call in enumerate(calls)
            ]
            if read:
                stages.append((name, read))
        if not stages:
            raise BadData(path, f"{at} has no calls")
        found.append(stages)
    return found


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file, each with the number of its line.

    Raises:
        DataMissing: there is no such file.
        BadData: it cannot be read, a column is missing, or a row has fewer or more than the head.
    """
    number = 1
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise BadData(path, f"line 1: no column is named {' or '.join(missing)}")
            for row in reader:
                number = reader.line_num
                if None in row or None in row.values():
                    told = f"it must have {len(reader.fieldnames or ())} columns, as the first has"
                    raise BadData(path, f"line {number}: {told}")
                yield number, row
    except FileNotFoundError as cause:
        raise DataMissing(path, f"cannot read it: {cause.strerror}") from cause
    except OSError as cause:
        raise BadData(path, f"cannot read it: {cause.strerror}") from cause
    except (csv.Error, UnicodeDecodeError) as cause:
        raise BadData(path, f"after line {number}: {cause}") from cause


def tokens_of(path: Path, at: str, value: object) -> int:
    """A number of tokens; raises BadData for anything else."""
    number = value
    if isinstance(value, str) and len(value) < 20:
        try:
            number = int(value)
        except ValueError:
            number = None
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    if not is_whole or not 0 <= number <= MOST_TOKENS:
        rule = f"a whole number from 0 to {MOST_TOKENS:,}"
        raise BadData(path, f"{at} must be {rule}, and is {_briefly(value)}")
    return number


def _call(path: Path, at: str, call: object) -> Call:
    """One call; where the file names no number of samples, it is one."""
    keys = ["in", "out", *(["n"] if isinstance(call, dict) and "n" in call else [])]
    found = [tokens_of(path, f"{at}.{key}", _member(path, at, call, key, int)) for key in keys]
    return Call(*found)


_KINDS = {list: "a list", str: "a text of some letters", int: "a whole number"}


def _member(path: Path, at: str, document: object, key: str, kind: type) -> Any:
    """What an object in a document holds under a key."""
    if not isinstance(document, dict):
        raise BadData(path, f"{at} must be an object, and is {_briefly(document)}")
    if key not in document:
        raise BadData(path, f"{at} has no {key!r}")
    value = document[key]
    if not isinstance(value, kind) or (isinstance(value, str) and not _is_name(value)):
        raise BadData(path, f"{at}.{key} must be {_KINDS[kind]}, and is {_briefly(value)}")
    return value


def _is_name(text: str) -> bool:
    """Whether it can name something: lone surrogates, which JSON can spell, are no characters."""
    return bool(text) and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _briefly(value: object) -> str:
    """A value of a file, on one line and not longer than people read."""
    told = repr(value)
    return told if len(told) <= 40 else f"{told[:40]}..."
