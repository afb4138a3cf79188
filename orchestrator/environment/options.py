"""Checks of options that users give."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def require_one_of(option: str, given: object, known: Sequence[object]) -> None:
    """Raise ValueError if an option is none of the known ones."""
    if given not in known:
        listed = ", ".join(map(repr, known))
        raise ValueError(f"{option}= is one of {listed}, not {given!r}")


def several(option: str, given: Iterable[T]) -> tuple[T, ...]:
    """The items of an option that takes several; raises TypeError if it is one text or path."""
    if isinstance(given, str | bytes | os.PathLike) or not isinstance(given, Iterable):
        raise TypeError(f"{option}= takes a list, such as [{given!r}], not {given!r}")
    return tuple(given)
