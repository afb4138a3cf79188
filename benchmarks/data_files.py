"""Readers of the benchmarks' data files; an error in a file is reported in one line."""

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
        samples: number of answers to the prompt.
    """

    prompt_tokens: int
    output_tokens: int
    samples: int = 1


Stages = Sequence[tuple[str, Sequence[Call]]]
"""The stages of a workflow, each with its name and its calls."""

MAX_TOKENS = 1_000_000
"""Longest prompt or answer; more is taken to be an error in the file."""


class BadData(Exception):
    """A data file is invalid."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        return "{}: {}".format(*self.args)


class DataMissing(BadData):
    """A data file does not exist, or is not the version that the benchmark expects."""


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        DataMissing: there is no such file.
        BadData: it cannot be read, or is not a JSON object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise DataMissing(path, f"cannot read it: {cause.strerror}") from cause
    except OSError as cause:
        raise BadData(path, f"cannot read it: {cause.strerror}") from cause
    except (ValueError, RecursionError) as cause:
        raise BadData(path, f"it is not JSON: {cause}") from cause
    if not isinstance(document, dict):
        raise BadData(path, f"it must be a JSON object, not {_shortened_repr(document)}")
    return document


def read_workflows(path: Path, *, name_key: str, calls_key: str) -> list[Stages]:
    """The workflows in a JSON file; stages without calls are left out.

    Args:
        name_key, calls_key: the file's keys of a stage's name and calls.
    Raises:
        DataMissing: there is no such file.
        BadData: it cannot be read, or has no workflows.
    """
    documents = _field(path, "it", read_object(path), "workflows", list)
    if not documents:
        raise BadData(path, "it has no workflows")
    workflows = []
    for index, workflow in enumerate(documents):
        at = f"workflows[{index}]"
        stages = []
        for place, stage in enumerate(_field(path, at, workflow, "stages", list)):
            stage_at = f"{at}.stages[{place}]"
            name = _field(path, stage_at, stage, name_key, str)
            calls = [
                _call(path, f"{stage_at}.{calls_key}[{number}]", call)
                for number, call in enumerate(_field(path, stage_at, stage, calls_key, list))
            ]
            if calls:
                stages.append((name, calls))
        if not stages:
            raise BadData(path, f"{at} has no calls")
        workflows.append(stages)
    return workflows


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file, each with its line number.

    Raises:
        DataMissing: there is no such file.
        BadData: it cannot be read, a column is missing, or a row has another number of columns than
            the header.
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
                    num_columns = len(reader.fieldnames or ())
                    reason = f"it must have {num_columns} columns, like the first line"
                    raise BadData(path, f"line {number}: {reason}")
                yield number, row
    except FileNotFoundError as cause:
        raise DataMissing(path, f"cannot read it: {cause.strerror}") from cause
    except OSError as cause:
        raise BadData(path, f"cannot read it: {cause.strerror}") from cause
    except (csv.Error, UnicodeDecodeError) as cause:
        raise BadData(path, f"after line {number}: {cause}") from cause


def tokens_of(path: Path, at: str, value: object) -> int:
    """Parse a number of tokens; raises BadData if it is not one."""
    number = value
    if isinstance(value, str) and len(value) < 20:
        try:
            number = int(value)
        except ValueError:
            number = None
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    if not is_whole or not 0 <= number <= MAX_TOKENS:
        rule = f"a whole number from 0 to {MAX_TOKENS:,}"
        raise BadData(path, f"{at} must be {rule}, not {_shortened_repr(value)}")
    return number


def _call(path: Path, at: str, call: object) -> Call:
    """One call; without a number of samples in the file it has one."""
    keys = ["in", "out", *(["n"] if isinstance(call, dict) and "n" in call else [])]
    values = [tokens_of(path, f"{at}.{key}", _field(path, at, call, key, int)) for key in keys]
    return Call(*values)


_KINDS = {list: "a list", str: "a non-empty text", int: "a whole number"}


def _field(path: Path, at: str, document: object, key: str, kind: type) -> Any:
    """The value of an object's key; raises BadData if it is missing or not of this kind."""
    if not isinstance(document, dict):
        raise BadData(path, f"{at} must be an object, not {_shortened_repr(document)}")
    if key not in document:
        raise BadData(path, f"{at} has no {key!r}")
    value = document[key]
    if not isinstance(value, kind) or (isinstance(value, str) and not _is_name(value)):
        raise BadData(path, f"{at}.{key} must be {_KINDS[kind]}, not {_shortened_repr(value)}")
    return value


def _is_name(text: str) -> bool:
    """Whether a text is not empty and valid Unicode (JSON may contain lone surrogates)."""
    return bool(text) and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _shortened_repr(value: object) -> str:
    """A value on one line, cut after 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
