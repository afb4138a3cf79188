"""A claim of a paper beside what was measured of it, and the table of all."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.comparing import format_ratio

WIDTH = 100


class Span(NamedTuple):
    """The lowest and the highest value of a figure over the conditions that it is given for."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Span | None:
        """The span of at least one value; None if one of them is unknown."""
        known = [each for each in values if each is not None]
        return cls(min(known), max(known)) if len(known) == len(values) else None

    def __str__(self) -> str:
        if f"{self.low:.2f}" == f"{self.high:.2f}":
            return f"{self.high:.2f}"
        return f"{self.low:.2f} to {self.high:.2f}"


class Claim(NamedTuple):
    """A claim of a paper.

    Attributes:
        metric: what the value is; "ours / LTR" is a ratio, "1 - rival / ours" a share.
        setting: the conditions over which the span is taken; "{arrivals}": see `with_arrivals`.
        section: where the paper says so.
        cause: one sentence: why the measured value differs, or what it hangs on; of the runs in
            docs/results.md.
        resolution: the true value may be so many times the measured one, or a part of it; above 1
            for ratios of rates that are searched.
    """

    paper: str
    metric: str
    setting: str
    section: str
    claimed: Span
    cause: str
    resolution: float = 1.0

    def with_arrivals(self, name: str) -> Claim:
        """The same with the name of the arrivals that are simulated."""
        return self._replace(setting=self.setting.format(arrivals=name))


class Measured(NamedTuple):
    """A claim and its simulated value; None: unknown, since a part of it is."""

    claim: Claim
    value: Span | None

    @property
    def to_claimed(self) -> float | None:
        """The highest measured value / the highest claimed one."""
        return None if self.value is None else self.value.high / self.claim.claimed.high

    @property
    def is_reached(self) -> bool | None:
        """Whether the two spans overlap, within the resolution; None: unknown."""
        if self.value is None:
            return None
        claimed, resolution = self.claim.claimed, self.claim.resolution
        return (
            self.value.low / resolution <= claimed.high
            and claimed.low <= self.value.high * resolution
        )

    def document(self) -> dict[str, Any]:
        """JSON-safe."""
        return self.claim._asdict() | {
            "claimed": list(self.claim.claimed),
            "measured": None if self.value is None else [json_safe(each) for each in self.value],
            "to_claimed": json_safe(self.to_claimed),
            "is_reached": self.is_reached,
        }


class Change(NamedTuple):
    """The values of one setting in which one assumption is changed; the first row changes none.

    Attributes:
        values: None: unknown.
    """

    paper: str
    change: str
    values: Mapping[str, float | None]

    def document(self) -> dict[str, Any]:
        """JSON-safe."""
        values = {name: json_safe(value) for name, value in self.values.items()}
        return self._asdict() | {"values": values}


class PaperResult(NamedTuple):
    """What was measured of one paper."""

    claims: Sequence[Measured]
    changes: Sequence[Change] = ()


def json_safe(value: float | None) -> float | str | None:
    """The value, or "inf" or "-inf", for which JSON has no number."""
    return str(value) if value is not None and math.isinf(value) else value


def table(results: Sequence[PaperResult]) -> str:
    """The claims, each with its cause, and then the changes by paper."""
    rows = [each for result in results for each in result.claims]
    width = max(len(row.claim.metric) for row in rows)
    lines = [
        "claimed by the papers against measured here; all measured values are simulated",
        f"{'paper':<11}{'metric':<{width}}  {'claimed':>14}{'measured':>16}{'ratio':>7}",
    ]
    for row in rows:
        claim, value = row.claim, "unknown" if row.value is None else str(row.value)
        lines.append(
            f"{claim.paper:<11}{claim.metric:<{width}}  {claim.claimed!s:>14}{value:>16}"
            f"{format_ratio(row.to_claimed):>7}{'  differs' if row.is_reached is False else ''}"
        )
        notes = f"{claim.section}; {claim.setting}. {claim.cause}"
        lines += textwrap.wrap(notes, WIDTH, initial_indent=" " * 11, subsequent_indent=" " * 11)
    for result in results:
        lines += _change_lines(result.changes)
    return "\n".join(lines)


def _change_lines(changes: Sequence[Change]) -> list[str]:
    if not changes:
        return []
    width = max(len(each.change) for each in changes)
    heads = list(changes[0].values)
    lines = ["", f"{changes[0].paper}: one assumption changed at a time (simulated)"]
    columns = {head: max(len(head), 5) + 3 for head in heads}
    lines.append(f"{'':{width}}" + "".join(f"{head:>{columns[head]}}" for head in heads))
    for each in changes:
        cells = "".join(f"{format_ratio(each.values[head]):>{columns[head]}}" for head in heads)
        lines.append(f"{each.change:{width}}{cells}")
    return lines
