"""Durations as people write them, and as they read them."""

from __future__ import annotations

import math
import re

from orchestrator.errors import InvalidDuration

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h)?\s*", re.ASCII)


def seconds_of(duration: str | float) -> float:
    """The seconds of "60s", "2m", "1.5h", "500ms", or of a plain number of seconds.

    Raises:
        InvalidDuration: not a duration, not above 0, or not finite.
    """
    if isinstance(duration, str):
        match = _DURATION.fullmatch(duration)
        if match is None:
            raise InvalidDuration(duration, "is no duration")
        seconds = float(match[1]) * _UNIT_S[match[2] or "s"]
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = float(duration)
    else:
        raise InvalidDuration(duration, "is no duration")
    if not (seconds > 0 and math.isfinite(seconds)):
        raise InvalidDuration(duration, "leaves no time: a duration must be above 0 and finite")
    return seconds


def shown(seconds: float) -> str:
    """A duration for people: three digits and the unit that fits."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    if abs(seconds) < 120:
        return f"{seconds:.1f} s"
    if abs(seconds) < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
