"""Durations: parsed from text such as "2m", and formatted for people."""

from __future__ import annotations

import math
import re

from orchestrator.errors import InvalidDuration

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d)?\s*", re.ASCII)

_NO_TIME = "leaves no time: a duration must be above 0 and finite"


def seconds_of(duration: str | float) -> float:
    """The seconds of "60s", "2m", "1.5h", "30d", "500ms", or of a plain number of seconds.

    Raises:
        InvalidDuration: not a duration, not above 0, or not finite.
    """
    if isinstance(duration, str):
        match = _DURATION.fullmatch(duration)
        if match is None:
            raise InvalidDuration(duration, "is not a duration")
        seconds = float(match[1]) * _UNIT_S[match[2] or "s"]
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = _float(duration)
    else:
        raise InvalidDuration(duration, "is not a duration")
    if not (seconds > 0 and math.isfinite(seconds)):
        raise InvalidDuration(duration, _NO_TIME)
    return seconds


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
