"""One thing that happened in a run, in words and as data. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

_TIME_CELLS = 10
_UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happened in a run.

    Attributes:
        at_s: since the run's start; None where nobody knows.
        event: what it was, in a word for programs.
        told: the same for people, without the time.
        facts: what else is known of it, safe for JSON but for its times.
        key: tells it from every other of its run, and is the same whenever the run is read.
        place: where it belongs among the others, lowest first; by time where that is known.
    """

    at_s: float | None
    event: str
    told: Text
    facts: dict[str, object]
    key: tuple[object, ...]
    place: tuple[float, int, int] = (0.0, 0, 0)

    @property
    def line(self) -> Text:
        """It as a line: when, what, and what came of it."""
        when = _UNKNOWN if self.at_s is None else f"{self.at_s:.3f} s"
        return Text.assemble((when.rjust(_TIME_CELLS), "dim"), "  ", self.told)

    @property
    def document(self) -> dict[str, object]:
        """It as one JSON-safe object but for its times."""
        return {"at_s": self.at_s, "event": self.event, **self.facts}


def not_yet_told(told: Sequence[Happening], known: set[tuple[object, ...]]) -> list[Happening]:
    """Those that are not known yet, which they are from now on."""
    new = [happening for happening in told if happening.key not in known]
    known.update(happening.key for happening in new)
    return new
