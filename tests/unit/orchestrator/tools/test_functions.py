"""Functions as tools: what models see of them, and how arguments are read."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

from orchestrator import flow, step, tool
from orchestrator.tools.docstrings import described
from orchestrator.tools.functions import ArgumentsInvalid, agent_tool


class Place(BaseModel):
    city: str
    zone: Literal["CET", "UTC"] = "CET"


@dataclass
class Span:
    first: date
    last: date


async def forecast(
    place: Place,
    span: Span | None = None,
    schema: Annotated[str, Field(description="of the answer", max_length=3)] = "csv",
    *,
    unit: Literal["C", "F"] = "C",
    **more: Any,
) -> str:
    """The weather to come.

    It is a guess.

    Args:
        place: where,
            exactly
        span (Span): when
        unknown: not a parameter

    Returns:
        A table.
    """
    return f"{place!r} {span!r} {schema} {unit}"


def test_a_tool_is_described_by_the_function_s_signature_and_docstring() -> None:
    spec = agent_tool(forecast).spec
    assert (spec.name, spec.description) == ("forecast", "The weather to come.\n\nIt is a guess.")
    jsonschema.Draft202012Validator.check_schema(spec.parameters)
    properties = spec.parameters["properties"]
    assert list(properties) == ["place", "span", "schema", "unit"]
    assert spec.parameters["required"] == ["place"]
    assert spec.parameters["additionalProperties"] is False
    assert properties["place"]["description"] == "where, exactly"
    assert properties["span"]["description"] == "when"
    assert properties["schema"] == {
        "default": "csv",
        "description": "of the answer",
        "maxLength": 3,
        "type": "string",
    }
    assert properties["unit"]["enum"] == ["C", "F"]


async def test_arguments_are_read_as_values_of_the_parameters_types() -> None:
    made = agent_tool(forecast)
    read = made.read(
        {"place": {"city": "Bern"}, "span": {"first": "2026-01-02", "last": "2026-02-03"}}
    )
    assert read == {"place": Place(city="Bern"), "span": Span(date(2026, 1, 2), date(2026, 2, 3))}
    assert "C" in await made.call(**read)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "place: Field required"),
        ({"place": {"city": 3}}, "place.city"),
        ({"place": {"city": "x"}, "schema": "long"}, "schema: String should have at most 3"),
        ({"place": {"city": "x"}, "colour": "red"}, "colour: Extra inputs"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentsInvalid, match=says):
        agent_tool(forecast).read(arguments)


def test_a_parameter_without_a_type_takes_anything() -> None:
    def echo(value, times=1):  # type: ignore[no-untyped-def]
        return value

    made = agent_tool(echo)
    assert made.read({"value": [1, {"a": None}]}) == {"value": [1, {"a": None}]}
    assert made.spec.description == ""


class Search:
    """Find pages."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, words: str) -> str:
        self.asked.append(words)
        return words

    def again(self, words: str) -> str:
        """Find more."""
        return words

    @tool(effects="pure")
    async def recorded(self, words: str) -> str:
        """Find, recorded."""
        return words


@flow
async def a_flow(words: str) -> str:
    """A flow."""
    return words


@step
def a_step(words: str) -> str:
    """A step."""
    return words


@pytest.mark.parametrize(
    ("given", "name", "description"),
    [
        (Search(), "Search", "Find pages."),
        (Search().again, "again", "Find more."),
        (Search().recorded, "recorded", "Find, recorded."),
        (
            functools.partial(forecast, unit="F"),
            "forecast",
            "The weather to come.\n\nIt is a guess.",
        ),
        (a_flow, "a_flow", "A flow."),
        (a_step, "a_step", "A step."),
    ],
    ids=["object", "method", "tool method", "partial", "flow", "step"],
)
async def test_any_callable_may_be_a_tool(given: Any, name: str, description: str) -> None:
    made = agent_tool(given)
    assert (made.spec.name, made.spec.description) == (name, description)
    if name != "forecast" and name != "a_flow":
        assert await made.call(**made.read({"words": "x"})) == "x"
    if name != "forecast":
        assert list(made.spec.parameters["properties"]) == ["words"]


def positional(words: str, /) -> str:
    return words


def unreadable(words: TypeError) -> str:
    return str(words)


def generates(words: str) -> Any:
    yield words


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda words: words, "name"),
        (positional, "words has no name"),
        (unreadable, "unreadable cannot be a tool"),
        ("weather", "give a function"),
        (3, "give a function"),
        (Place, "give a function"),
    ],
)
def test_what_models_cannot_call_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        agent_tool(given)


def test_a_generator_is_refused_as_by_tool() -> None:
    with pytest.raises(TypeError, match="generator"):
        agent_tool(generates)


@pytest.mark.parametrize(
    ("docstring", "summary", "parameters"),
    [
        ("", "", {}),
        ("One line.", "One line.", {}),
        (
            "Sum.\n\nArgs:\n  a: one\n    or more\n  *b: rest",
            "Sum.",
            {"a": "one or more", "b": "rest"},
        ),
        ("Sum.\n\n:param a: one\n:param int b: two\n:returns: c", "Sum.", {"a": "one", "b": "two"}),
        ("Note that: x.\nArgs: none", "Note that: x.\nArgs: none", {}),
        ("Sum.\n\nReturns:\n  a: not a parameter\n\nArgs:\n  b (int): two", "Sum.", {"b": "two"}),
    ],
)
def test_a_docstring_is_read_in_google_s_or_sphinx_s_style(
    docstring: str, summary: str, parameters: dict[str, str]
) -> None:
    assert described(docstring) == (summary, parameters)
