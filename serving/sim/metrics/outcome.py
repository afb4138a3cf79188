"""The metrics of one run in a form that can be stored and sent between processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from serving.goodput import ProgramOutcome
from serving.sim.metrics.metrics import Report
from serving.slo import SloKind

LEVELS = tuple(range(101))
"""The percentiles of a curve."""

CURVES = ("ttft_s", "ttft_latency_s", "tbt_s", "tbt_latency_s", "e2el_s")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one experiment.

    Attributes:
        report: as Report.to_document.
        curves: name of CURVES -> percentiles 0 to 100, in seconds; empty without observations.
            Over the same calls and programs as the fields of Report with these names.
    """

    report: Mapping[str, Any]
    curves: Mapping[str, tuple[float, ...]]

    @property
    def token_goodput(self) -> float:
        """Tokens that met their SLO, per second."""
        return float(self.report["token_goodput"])

    @property
    def request_goodput(self) -> float:
        """Programs that met their SLO, per second."""
        return float(self.report["request_goodput"])

    def to_document(self) -> dict[str, Any]:
        """JSON-safe."""
        return {
            "report": dict(self.report),
            "curves": {name: list(values) for name, values in self.curves.items()},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Outcome:
        """The inverse of `to_document`."""
        curves = {name: tuple(document["curves"][name]) for name in CURVES}
        return cls(dict(document["report"]), curves)


def outcome_of(
    report: Report, programs: Sequence[ProgramOutcome], *, observed_until_s: float
) -> Outcome:
    """A report with full distributions.

    Args:
        programs, observed_until_s: as `summarise` took them for this report.
    """
    from_s, to_s = report.window_s
    counted = [
        program.seen_until(observed_until_s)
        for program in programs
        if from_s <= program.arrival_s < to_s
    ]
    streams = [program for program in counted if program.kind is SloKind.LATENCY]
    curves = {
        "ttft_s": percentiles(list(_first_tokens_s(counted))),
        "ttft_latency_s": percentiles(list(_first_tokens_s(streams))),
        "tbt_s": percentiles(list(_gaps_s(counted))),
        "tbt_latency_s": percentiles(list(_gaps_s(streams))),
        "e2el_s": percentiles([each.e2el_s for each in counted if each.e2el_s is not None]),
    }
    return Outcome(report.to_document(), curves)


def percentiles(values: Sequence[float]) -> tuple[float, ...]:
    """Percentiles 0 to 100 of finite values, linearly interpolated; empty without values."""
    if not values:
        return ()
    return tuple(float(each) for each in np.percentile(np.asarray(values, dtype=float), LEVELS))


def _first_tokens_s(programs: Sequence[ProgramOutcome]) -> Iterator[float]:
    for program in programs:
        for call in program.each_call():
            if call.token_times_s:
                yield call.token_times_s[0] - call.submitted_s


def _gaps_s(programs: Sequence[ProgramOutcome]) -> Iterator[float]:
    for program in programs:
        for call in program.each_call():
            for earlier_s, later_s in pairwise(call.token_times_s):
                yield later_s - earlier_s
