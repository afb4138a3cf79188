"""Bounds on schemas, regexes and grammars; none expands what it checks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.structured_output.bounds import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_REPETITIONS,
    MAX_VALUES,
    choices_fault,
    json_fault,
    largest_repetition,
    text_fault,
)


def nested(depth: int, schema: Any) -> Any:
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE: dict[str, Any] = {
    "minItems": {"type": "array", "items": {"type": "integer"}, "minItems": 100_000_000},
    "maxItems": {"type": "array", "maxItems": MAX_ITEMS + 1},
    "a float": {"type": "array", "minItems": 1e8},
    "infinity": {"type": "array", "minItems": float("inf")},
    "not a number": {"type": "array", "minItems": float("nan")},
    "a huge integer": {"type": "array", "minItems": 10**400},
    "minLength": {"type": "string", "minLength": 10**9},
    "maxProperties": {"type": "object", "maxProperties": 10**9},
    "minContains": {"type": "array", "contains": {}, "minContains": 10**9},
    "deep inside": {"properties": {"a": {"anyOf": [{"items": {"minItems": 10**9}}]}}},
    "in definitions": {"$defs": {"a": {"minItems": 10**9}}, "$ref": "#/$defs/a"},
    "items of items": nested(2, {}) | {"minItems": 9_000, "items": {"minItems": 12, "items": {}}},
    "a pattern": {"type": "string", "pattern": "^(a{1000}){1001}$"},
    "a pattern of names": {"patternProperties": {"(a{1000}){1001}": {}}},
    "an enum": {"enum": [str(value) for value in range(100_000)]},
    "many schemas": {"anyOf": [{"type": "integer"}] * MAX_VALUES},
    "many bytes": {"const": "x" * (MAX_BYTES + 1)},
    "bytes of a name": {"properties": {"x" * (MAX_BYTES + 1): {}}},
    "a lone surrogate": {"const": "\ud800" * MAX_BYTES},
    "depth": nested(MAX_DEPTH, {}),
}


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
def test_a_schema_beyond_a_bound_is_refused_as_an_object_and_as_text(schema: Any) -> None:
    assert json_fault(schema) is not None
    assert json_fault(json.dumps(schema)) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "array", "minItems": MAX_ITEMS, "maxItems": MAX_ITEMS},
        {"type": "string", "minLength": 5, "maxLength": 100_000, "pattern": r"^\d{4}-\d{2}$"},
        {"enum": [str(value) for value in range(9_000)]},
        nested(MAX_DEPTH - 1, {}),
        {"properties": {"minItems": {"type": "integer"}, "maxLength": {"const": 10**9}}},
        {"default": {"minItems": 10**9}, "examples": [{"minItems": 10**9}]},
        {"type": "array", "minItems": True},
        {"type": "array", "minItems": "many"},
        {"patternProperties": ["a"]},
        nested(3, {}) | {"maxItems": 9_000, "items": {"maxItems": 9_000, "items": {}}},
    ],
    ids=ascii,
)
def test_a_schema_within_the_bounds_has_no_fault(schema: Any) -> None:
    assert json_fault(schema) is None


def test_text_that_is_not_json_is_left_for_the_engine() -> None:
    assert json_fault("{") is None


def test_json_too_deep_for_python_is_refused() -> None:
    assert "deep" in str(json_fault("[" * 100_000))


def test_a_schema_that_contains_itself_is_refused() -> None:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    assert json_fault(schema) is not None


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("abc", 1),
        ("a{3}", 3),
        ("a{3,}", 3),
        ("a{,5}", 5),
        ("a{2,7}b{3}", 7),
        ("(a{10}){10}", 100),
        ("((a{10}b){10}c{5}){2,3}", 300),
        ("(a{10})(b{10})", 10),
        ("(?:a|b{4}){4}", 16),
        ("(a){3}", 3),
        ("a{4}{5}", 20),
        ("(a{4})*{5}", 20),
        (r"\(a{4}\){5}", 5),
        (r"[({]{6}", 6),
        (r"a{4})b{5}", 5),
        ("(a{4}", 4),
        ('"literal {9}" x{2}', 2),
        ('"a"{3}', 3),
        ('("a" b{3}) {4}', 12),
        ("x~8", 8),
        ("(x~8)~8", 64),
        ("x~2..9", 2),  # not a count for llguidance, which rejects it
        ("{name}", 1),
    ],
)
def test_counts_inside_each_other_are_multiplied(text: str, most: float) -> None:
    assert largest_repetition(text) == most


@given(st.text(alphabet='ab(){}[]\\,~0123456789*"', max_size=40))
def test_any_text_has_a_repetition_of_at_least_one(text: str) -> None:
    assert largest_repetition(text) >= 1


def test_a_count_of_a_hundred_thousand_digits_is_refused() -> None:
    assert text_fault("a{" + "9" * 100_000 + "}") is not None


@pytest.mark.parametrize("text", ["x" * (MAX_BYTES + 1), f"a{{{MAX_REPETITIONS + 1}}}"])
def test_a_text_beyond_a_bound_is_refused(text: str) -> None:
    assert text_fault(text) is not None


def test_a_list_of_choices_is_bounded_in_number_and_in_bytes() -> None:
    assert choices_fault(["a"] * MAX_VALUES) is None
    assert choices_fault(["a"] * (MAX_VALUES + 1)) is not None
    assert choices_fault(["x" * MAX_BYTES, "y"]) is not None
