"""Durations: parsed from text such as "2m", and formatted for people."""

from __future__ import annotations

import itertools
import math
import re
from datetime import timedelta
from typing import TypeAlias

from orchestrator.errors import InvalidDuration

Duration: TypeAlias = str | float | timedelta
"""A time such as "60s", "2 minutes" or "1h 30m", a number of seconds, or a timedelta."""

_NAMES = {
    0.001: "ms millisecond milliseconds",
    1.0: "s sec second seconds",
    60.0: "m min minute minutes",
    3600.0: "h hour hours",
    86400.0: "d day days",
}
_UNIT_S = {name: seconds for seconds, names in _NAMES.items() for name in names.split()}
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_SECONDS = re.compile(rf"\s*{_NUMBER}\s*", re.ASCII)
_PART = rf"\s*{_NUMBER}\s*([a-z]+)"
_PARTS = re.compile(rf"(?:{_PART})+\s*", re.ASCII)
_EACH_PART = re.compile(_PART, re.ASCII)

_NO_TIME = "leaves no time: a duration must be above 0 and finite"


def seconds_of(duration: Duration) -> float:
    """The seconds of "60s", "2 minutes", "1h 30m", "500ms", of a number of seconds or a timedelta.

    Raises:
        InvalidDuration: not a duration, not above 0, or not finite.
    """
    if isinstance(duration, str):
        seconds = _seconds_of_text(duration)
    elif isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = _float(duration)
    else:
        raise InvalidDuration(duration, "is not a duration")
    if not (seconds > 0 and math.isfinite(seconds)):
        raise InvalidDuration(duration, _NO_TIME)
    return seconds


def _seconds_of_text(text: str) -> float:
    if number := _SECONDS.fullmatch(text):
        return float(number[1])
    if not _PARTS.fullmatch(text):
        raise InvalidDuration(text, "is not a duration")
    parts = _EACH_PART.findall(text)
    if not all(unit in _UNIT_S for _, unit in parts):
        raise InvalidDuration(text, "is not a duration")
    units_s = [_UNIT_S[unit] for _, unit in parts]
    if any(larger <= smaller for larger, smaller in itertools.pairwise(units_s)):
        raise InvalidDuration(text, "does not go from larger units to smaller ones")
    return sum(float(number) * unit_s for (number, _), unit_s in zip(parts, units_s, strict=True))


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # too large for a float, and possibly for repr
        raise InvalidDuration("a huge integer", _NO_TIME) from None


def shown(seconds: float) -> str:
    """A duration for people: a few digits and a suitable unit."""
    # Each limit is the value from which rounding would give the first value of the next unit.
    if abs(seconds) < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if abs(seconds) < 119.95:
        return f"{seconds:.1f} s"
    if abs(seconds) < 119.95 * 60:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
