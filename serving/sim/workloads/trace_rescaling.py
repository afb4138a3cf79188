"""A trace's own times, sped up or slowed down until its requests come at an asked rate."""

from __future__ import annotations

from typing import NamedTuple

from serving.workload_errors import InvalidWorkload


class TraceTiming(NamedTuple):
    """When a trace's requests come by its own clock, from a seed's first one on, without an end.

    Attributes:
        times_s: of the trace's requests, ascending.
        first: the request that comes at 0.
    """

    times_s: tuple[float, ...]
    first: int

    @property
    def lap_s(self) -> float:
        """From a request to the same one when the trace is begun anew."""
        span_s, count = self.times_s[-1] - self.times_s[0], len(self.times_s)
        return span_s * count / max(count - 1, 1)

    def own_s(self, place: int) -> float:
        """When a request comes, since the first one."""
        laps, index = divmod(self.first + place, len(self.times_s))
        return self.times_s[index] + laps * self.lap_s - self.times_s[self.first]

    def head(self, rate_per_s: float, to_s: float) -> tuple[int, float]:
        """How many requests come until a time, and what the clock is multiplied with for it.

        Raises:
            InvalidWorkload: the trace has no two times, or all of these come at once.
        """
        if self.lap_s <= 0:
            told = "the trace has no two times: name a process for them, such as poisson"
            raise InvalidWorkload("arrivals", None, told)
        count = max(round(rate_per_s * to_s), 1)
        head_s = self.own_s(count)
        if head_s <= 0:
            told = f"{count} requests of the trace come at once: name a process, such as poisson"
            raise InvalidWorkload("arrivals", None, told)
        return count, to_s / head_s
