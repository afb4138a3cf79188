"""An event of a run as a line of text and as a JSON object. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

_TIME_CELLS = 10
_UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event of a run.

    Attributes:
        at_s: seconds from the run's start; None if unknown.
        event: the name of its type, in the JSON object.
        text: its description for people, without the time.
        fields: the other fields of the JSON object; JSON-safe except datetimes.
        key: identifies it among the events of its run, and is the same in each read of the run.
        position: sort key among the events of its run: time, starts after ends, depth.
    """

    at_s: float | None
    event: str
    text: Text
    fields: dict[str, object]
    key: tuple[object, ...]
    position: tuple[float, int, int] = (0.0, 0, 0)

    @property
    def line(self) -> Text:
        """The time and the text."""
        when = _UNKNOWN if self.at_s is None else f"{self.at_s:.3f} s"
        return Text.assemble((when.rjust(_TIME_CELLS), "dim"), "  ", self.text)

    @property
    def document(self) -> dict[str, object]:
        """The JSON object; JSON-safe except datetimes."""
        return {"at_s": self.at_s, "event": self.event, **self.fields}


def take_new(events: Sequence[EventLine], seen: set[tuple[object, ...]]) -> list[EventLine]:
    """The events with keys that are not in `seen`; adds their keys to it."""
    new = [event for event in events if event.key not in seen]
    seen.update(event.key for event in new)
    return new
