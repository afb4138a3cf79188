"""Sizes on the command line, such as "5GB"."""

from __future__ import annotations

import math
import re

from cli.errors import BadInput

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)


def bytes_of(text: str) -> int:
    """The bytes of "5GB", "1.5 TiB" or "4096"; raises BadInput."""
    match = _SIZE.fullmatch(text)
    unit = None if match is None else _UNITS.get(match[2].lower())
    if match is None or unit is None or not math.isfinite(float(match[1])):
        raise BadInput(f"{text!r} is not a size: give a number with a unit, such as 500MB or 5GB")
    return math.ceil(float(match[1]) * unit)
