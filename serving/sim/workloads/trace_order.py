"""A trace's programs in the order of a seed, repeated without end."""

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
"""Its multiples modulo 1 are evenly spread, so seeds start at distant places of a trace."""


class TraceOrder(NamedTuple):
    """The programs of a trace in a seed's order, repeated without end.

    Attributes:
        programs: of the file, each once. Single requests have the deadline kind here; their kinds
            are drawn when they arrive.
        timing: None if the file has no times.
        first_index: the program with which the seed starts.
    """

    programs: tuple[Program, ...]
    timing: TraceTiming | None
    first_index: int
    seed: int

    def programs_at(self, times_s: Sequence[float]) -> tuple[Program, ...]:
        """The programs that arrive at these times; the i-th does not depend on later times.

        A single request has the latency or the deadline kind (traces do not have it), drawn each
        time that it arrives. Ids do not contain the file's name, since predictions depend on ids.
        """
        rng = np.random.default_rng([self.seed, zlib.crc32(b"kinds")])
        draws = rng.random(len(times_s)).tolist()
        programs = []
        for index, (time_s, draw) in enumerate(zip(times_s, draws, strict=True)):
            changes: dict[str, Any] = {"id": f"trace-{index:06d}", "arrival_s": time_s}
            if self.timing is not None and draw < 0.5:
                changes |= {"kind": SloKind.LATENCY, "deadline_s": None}
            program = self.programs[(self.first_index + index) % len(self.programs)]
            programs.append(replace(program, **changes))
        return tuple(programs)


def trace_order(trace: Trace, *, seed: int, slo_scale: float = 1.0) -> TraceOrder:
    """Requests in the file's order from the seed's place on; workflows in a random order."""
    if trace.requests:
        programs = trace_programs(trace, kinds=[SloKind.DEADLINE], slo_scale=slo_scale)
        timing = trace_timing(trace, seed=seed)
        return TraceOrder(programs, timing, timing.first_index, seed)
    count = len(trace.workflows)
    # At one arrival per second, this window has enough arrivals for every workflow (10 sigma).
    window_s = count + 10.0 * count**0.5 + 10.0
    programs = trace_programs(
        trace, rate_per_s=1.0, window_s=window_s, seed=seed, slo_scale=slo_scale
    )
    return TraceOrder(programs[:count], None, 0, seed)


def trace_timing(trace: Trace, *, seed: int) -> TraceTiming:
    """The arrival times of a trace of requests, from the seed's first request on."""
    times_s = tuple(each.arrival_s for each in trace.requests)
    return TraceTiming(times_s, int(seed * GOLDEN % 1.0 * len(times_s)))
