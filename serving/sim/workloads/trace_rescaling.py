"""A trace's own arrival times, scaled so that its requests arrive at a given rate."""

from __future__ import annotations

from typing import NamedTuple

from serving.workload_errors import InvalidWorkload


class TraceTiming(NamedTuple):
    """The arrival times of a trace that starts at one of its requests and repeats without end.

    Attributes:
        times_s: arrival times of the trace's requests, ascending.
        first_index: the request that arrives at time 0.
    """

    times_s: tuple[float, ...]
    first_index: int

    @property
    def period_s(self) -> float:
        """Seconds after which the trace repeats: its span and one mean gap."""
        span_s, count = self.times_s[-1] - self.times_s[0], len(self.times_s)
        return span_s * count / max(count - 1, 1)

    def arrival_s(self, index: int) -> float:
        """When the index-th request after the first one arrives, unscaled."""
        repeats, place = divmod(self.first_index + index, len(self.times_s))
        return self.times_s[place] + repeats * self.period_s - self.times_s[self.first_index]

    def fit_rate(self, rate_per_s: float, until_s: float) -> tuple[int, float]:
        """Scale the times to a mean rate over [0, until_s).

        Returns:
            The number of requests before until_s, and the factor on all times.
        Raises:
            InvalidWorkload: the trace has fewer than two different times, or all these requests
                arrive at once.
        """
        if self.period_s <= 0:
            reason = "the trace has no two different times: give an arrival process, e.g. poisson"
            raise InvalidWorkload("arrivals", None, reason)
        count = max(round(rate_per_s * until_s), 1)
        unscaled_s = self.arrival_s(count)
        if unscaled_s <= 0:
            reason = (
                f"{count} requests of the trace arrive at once: give an arrival process, e.g. "
                "poisson"
            )
            raise InvalidWorkload("arrivals", None, reason)
        return count, until_s / unscaled_s
