"""What a check of `orchestrate doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        mend: what to do about it; "" if nothing is wrong.
    """

    name: str
    level: Level
    found: str
    mend: str = ""


def size(num_bytes: int) -> str:
    """A size in a suitable unit."""
    if num_bytes >= 10 << 30:
        return f"{num_bytes / (1 << 30):.0f} GB"
    if num_bytes >= 1 << 30:
        return f"{num_bytes / (1 << 30):.1f} GB"
    return f"{num_bytes / (1 << 20):.0f} MB"
