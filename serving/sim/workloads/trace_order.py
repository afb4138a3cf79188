"""A trace's programs in the order in which a seed takes them, begun anew whenever they end."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from serving.sim.programs.programs import Program
from serving.sim.workloads.trace_files import Trace
from serving.sim.workloads.trace_rescaling import TraceTiming
from serving.sim.workloads.traces import trace_programs
from serving.slo import SloKind

GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, lie evenly: seeds begin at places of a trace far from each other."""


class TraceOrder(NamedTuple):
    """What a seed makes of a trace, without an end.

    Attributes:
        programs: those of single requests all have a deadline, until their kinds are drawn.
        rhythm: None where the file has no times.
        first: where the seed begins.
    """

    programs: tuple[Program, ...]
    trace_timing: TraceTiming | None
    first: int
    seed: int

    def taken(self, times_s: Sequence[float]) -> tuple[Program, ...]:
        """The programs that come at these times; the i-th is the same whatever comes after it.

        A single request is of the latency or the deadline kind (no trace tells them), drawn anew
        each time that it comes. No id tells the file's name: predictions depend on ids.
        """
        rng = np.random.default_rng([self.seed, zlib.crc32(b"kinds")])
        draws = rng.random(len(times_s)).tolist()
        found = []
        for place, (time_s, draw) in enumerate(zip(times_s, draws, strict=True)):
            changes: dict[str, Any] = {"id": f"trace-{place:06d}", "arrival_s": time_s}
            if self.trace_timing is not None and draw < 0.5:
                changes |= {"kind": SloKind.LATENCY, "deadline_s": None}
            program = self.programs[(self.first + place) % len(self.programs)]
            found.append(replace(program, **changes))
        return tuple(found)


def order_of(trace: Trace, *, seed: int, slo_scale: float = 1.0) -> TraceOrder:
    """Requests from the seed's place in the file on; workflows in the seed's random order."""
    if trace.requests:
        programs = trace_programs(trace, kinds=[SloKind.DEADLINE], slo_scale=slo_scale)
        trace_timing = trace_timing_of(trace, seed=seed)
        return TraceOrder(programs, trace_timing, trace_timing.first, seed)
    count = len(trace.workflows)
    # At one a second, so many seconds hold enough arrivals for each workflow to come once.
    window_s = count + 10.0 * count**0.5 + 10.0
    programs = trace_programs(
        trace, rate_per_s=1.0, window_s=window_s, seed=seed, slo_scale=slo_scale
    )
    return TraceOrder(programs[:count], None, 0, seed)


def trace_timing_of(trace: Trace, *, seed: int) -> TraceTiming:
    """The times of a trace of requests, from the seed's first one on."""
    times_s = tuple(each.arrival_s for each in trace.requests)
    return TraceTiming(times_s, int(seed * GOLDEN % 1.0 * len(times_s)))
