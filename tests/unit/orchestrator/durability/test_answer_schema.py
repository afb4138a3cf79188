"""The check of an answer before it is recorded: it refuses nothing that the flow would take."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, Field

from orchestrator.durability.answer_schema import answer_schema, why_not
from orchestrator.errors import ResultUnreadable
from orchestrator.sdk.human_input import _AnswerCodec


@dataclass(frozen=True)
class Approval:
    approved: bool
    limit: int


class Colour(StrEnum):
    RED = "red"
    TWO = "2"


class Nested(BaseModel):
    amounts: list[Annotated[int, Field(ge=3)]]
    when: date | None = None
    children: list[Nested] = []


def reason(annotation: Any, answer: object) -> str | None:
    return why_not(answer_schema(annotation), json.dumps(answer).encode())


@pytest.mark.parametrize(
    ("annotation", "answer", "expected"),
    [
        (int, "many", "'many' is not of type 'integer'"),
        (int, 4.5, "4.5 is not of type 'integer'"),
        (str, 5, "5 is not of type 'string'"),
        (Annotated[str, Field(min_length=2)], "x", "'x' is too short"),
        (Annotated[int, Field(ge=3)], "2", "2 is less than the minimum of 3"),
        (bool, "perhaps", "'perhaps' is not of type 'boolean'"),
        (date, "tomorrow", "'tomorrow' is not a 'date'"),
        (Literal["a", "b"], "c", "'c' is not one of ['a', 'b']"),
        (Approval, {"approved": True}, "'limit' is a required property"),
        (Approval, '{"approved": true, "limit": []}', "limit: [] is not of type 'integer'"),
        (Nested, {"amounts": [3, 1]}, "amounts.1: 1 is less than the minimum of 3"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_with_the_reason(
    annotation: Any, answer: object, expected: str
) -> None:
    assert reason(annotation, answer) == expected


def test_a_long_reason_is_cut() -> None:
    assert len(reason(int, "x" * 10_000) or "") < 400


def test_types_without_a_schema_that_says_what_fits_are_left_to_the_flow() -> None:
    parsed = Annotated[int, BeforeValidator(len)]
    assert answer_schema(parsed) is None
    assert answer_schema(list[parsed]) is None
    assert answer_schema(Callable) is None
    assert why_not(None, b'"anything"') is None


def test_a_schema_that_cannot_be_applied_refuses_nothing() -> None:
    assert why_not({"type": "string", "pattern": "("}, b'"x"') is None


TYPES = [
    str,
    int,
    float,
    bool,
    date,
    datetime,
    time,
    timedelta,
    Decimal,
    UUID,
    Colour,
    Approval,
    Nested,
    Any,
    int | str,
    str | None,
    list[int],
    set[int],
    tuple[int, bool],
    dict[str, float],
    Literal[1, "b"],
    Literal[1],
    Annotated[int, Field(ge=3)],
    Annotated[str, Field(min_length=2)],
]
WORDS = [
    *("yes", "off", "1", "2", "3.0", "1e3", "null", "true", '"a"', "[1]", "[1, 1]", '{"a": "2"}'),
    *("red", "2026-03-01", "2026-03-01T10:00:00Z", "10:00", "P1D", "1 00:00:00", "1700000000"),
    *("NaN", "Infinity", "b", '["1", "yes"]', '{"approved": "yes", "limit": "7"}'),
    *('{"amounts": ["3"], "when": "2026-03-01", "children": [{"amounts": []}]}',),
    "12345678-1234-5678-1234-567812345678",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["approved", "limit", "amounts", "when", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("annotation", TYPES, ids=str)
@given(value=VALUES | st.text(max_size=5))
def test_what_the_flow_takes_is_not_refused_when_it_is_given(annotation: Any, value: Any) -> None:
    answer = json.dumps(value).encode()
    try:
        _AnswerCodec(annotation).load(answer)
    except ResultUnreadable:
        return
    assert reason(annotation, value) is None
