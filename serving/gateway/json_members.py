"""The members of a JSON object with their places in the text, so that one can be replaced alone."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


class Member(NamedTuple):
    """A member's value, and the range of the text that it was read from."""

    value: Any
    start: int
    end: int


def members_of(text: str) -> dict[str, Member]:
    """The members of the object that a text consists of; of equal keys the last one counts.

    Raises:
        ValueError: the text is not a JSON object.
        RecursionError: it is nested too deeply.
    """
    members: dict[str, Member] = {}
    place = _expect(text, _skip_space(text, 0), "{")
    if text[place : place + 1] != "}":
        while True:
            key, place = _DECODER.raw_decode(text, place)
            if not isinstance(key, str):
                raise ValueError("a key is not a string")
            start = _expect(text, _skip_space(text, place), ":")
            value, end = _DECODER.raw_decode(text, start)
            members[key] = Member(value, start, end)
            place = _skip_space(text, end)
            if text[place : place + 1] != ",":
                break
            place = _expect(text, place, ",")
    place = _expect(text, place, "}")
    if place != len(text):
        raise ValueError("there is text after the object")
    return members


def _expect(text: str, place: int, character: str) -> int:
    """The place after a character and the space that follows it."""
    if text[place : place + 1] != character:
        raise ValueError(f"{character!r} is missing at {place}")
    return _skip_space(text, place + 1)


def _skip_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    assert match is not None, "it matches no space as well"
    return match.end()
