"""Digests of call arguments: equal in every process, different for different values."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from orchestrator.durability.digests import digest_of
from serving.generation import Message


class Model(BaseModel):
    name: str
    at: datetime | None = None


@dataclass
class Point:
    x: float
    client: object = field(default=None, compare=False)


class Raising:
    def __repr__(self) -> str:
        raise ZeroDivisionError


DIFFERENT: list[Any] = [
    1,
    1.5,
    "1",
    None,
    [1],
    [[1]],
    {"a": 1},
    {"a": 2},
    b"bytes",
    b"others",
    {1, 2},
    {1, 3},
    Model(name="one"),
    Model(name="two"),
    Model(name="first", at=datetime(2026, 1, 1, tzinfo=UTC)),
    Point(1.0),
    Point(2.0),
    Path("/tmp"),
    Path("/"),
    "\ud800",
    float("nan"),
    len,
    object(),
    np.zeros(5000),
    np.arange(5000.0),
    datetime(2026, 1, 1, tzinfo=UTC),
    timedelta(1),
    partial(len, 1),
    partial(len, 2),
    partial(len, n=1),
]


def test_different_values_have_different_digests() -> None:
    digests = [digest_of(value) for value in DIFFERENT]
    assert None not in digests
    assert len(set(digests)) == len(DIFFERENT)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Point(1.0, client=object()), Point(1.0, client=object())),
        (object(), object()),
        (lambda: 1, lambda: 1),
        ({"a", "b", "c"}, {"c", "b", "a"}),
        ((1, 2), [1, 2]),
        (Raising(), Raising()),
    ],
)
def test_values_with_the_same_content_have_the_same_digest(first: object, second: object) -> None:
    assert digest_of(first) == digest_of(second)


@pytest.mark.usefixtures("subprocesses")
def test_sets_have_one_digest_in_every_process() -> None:
    module = "orchestrator.durability.digests"
    script = f"from {module} import digest_of; print(digest_of({{'a', 'b', 'c', 'd'}}))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1


def test_a_circular_value_or_a_key_that_json_cannot_hold_has_no_digest() -> None:
    circular: list[Any] = []
    circular.append(circular)
    assert digest_of(circular) is None
    assert digest_of({(1, 2): 3}) is None


def test_a_field_marked_unless_default_counts_only_when_it_is_set() -> None:
    """Journals written before the field existed have the digests of its default."""

    @dataclass
    class Turn:
        text: str
        calls: tuple[str, ...] = field(default=(), metadata={"in_digest": "unless default"})

    former = dataclasses.make_dataclass("Turn", [("text", str)])
    former.__qualname__ = Turn.__qualname__
    assert digest_of(Turn("hello")) == digest_of(former("hello"))
    assert digest_of(Turn("hello", ("look",))) != digest_of(Turn("hello"))


def test_a_plain_message_has_the_digest_that_it_had_before_messages_had_tool_calls() -> None:
    former = b"b\xbf\x950<\xe6\x9aZ"
    assert digest_of((Message("user", "hello"),)) == former
