"""Arguments of flows: read back by a resumed run as they were given, or refused."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from orchestrator import ResultNotSerialisable
from orchestrator.durability.arguments import Arguments


class Reply(StrEnum):
    YES = "yes"


@dataclass
class Partly:
    compared: int
    hidden: Any = field(default=None, compare=False)


def body(
    at: datetime, *rest: deque[int], note: Partly | None = None, **more: dict[str, Any]
) -> None:
    """The flow of these tests."""


AT = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)


def test_arguments_are_read_back_with_their_types_and_contents() -> None:
    given = Arguments((AT, deque([1])), {"note": Partly(1, [2]), "more": {"a": [1.5, None]}})
    read = Arguments.load(body, given.dump(body))
    assert repr((read.args, read.kwargs)) == repr((given.args, given.kwargs))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (Arguments((AT, deque([1], maxlen=2)), {}), "rest"),
        (Arguments((AT,), {"note": Partly(1, (2,))}), "note"),
        (Arguments((AT,), {"more": {"reply": Reply.YES}}), "more"),
    ],
)
def test_an_argument_that_would_be_read_back_differently_is_refused(
    arguments: Arguments, name: str
) -> None:
    with pytest.raises(ResultNotSerialisable, match=f"argument {name}"):
        arguments.dump(body)
