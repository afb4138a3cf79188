"""What the gateway counts, for Prometheus."""

from __future__ import annotations

import math
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from serving.gateway.fleet_state import Fleet
from serving.gateway.retries import Outcome

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 60.0)


class GatewayMetrics:
    """Counters of one gateway, in a registry of their own.

    Args:
        now_s: the clock by which reports have their age.
    """

    def __init__(self, fleet: Fleet, now_s: Callable[[], float]) -> None:
        self._registry = CollectorRegistry()
        self._attempts = Counter(
            "orchestrate_gateway_attempts",
            "Attempts at replicas by their outcome; those of one request add up to its retries + 1",
            ["replica", "outcome"],
            registry=self._registry,
        )
        self._retries = Counter(
            "orchestrate_gateway_retries",
            "Attempts after another replica had failed to answer the request",
            registry=self._registry,
        )
        self._dummies = Counter(
            "orchestrate_gateway_dummies",
            "Dummies that waited for a request's turn: begun, withdrawn, or ended without a turn",
            ["replica", "outcome"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "orchestrate_gateway_seconds",
            "Seconds from a request's arrival to its last attempt: what was taken off its promises",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._fleet = fleet
        self._now_s = now_s
        self._ages = Gauge(
            "orchestrate_gateway_snapshot_age_seconds",
            "Age of a replica's last report; of its last answer if it makes none",
            ["replica"],
            registry=self._registry,
        )
        self._open_requests = Gauge(
            "orchestrate_gateway_open_requests",
            "Requests that a replica was sent and has not answered completely",
            ["replica"],
            registry=self._registry,
        )

    def count_attempt(self, replica: str, outcome: Outcome) -> None:
        """Count the end of an attempt."""
        self._attempts.labels(replica, outcome.value).inc()

    def count_retry(self) -> None:
        """Count an attempt that is not the first."""
        self._retries.inc()

    def count_dummy(self, replica: str, outcome: str) -> None:
        """Count the end of a dummy."""
        self._dummies.labels(replica, outcome).inc()

    def count_seconds(self, spent_s: float) -> None:
        """Count the seconds that a request has spent in the gateway."""
        self._seconds.observe(spent_s)

    def page(self) -> bytes:
        """All of them in Prometheus' format."""
        for gauge in (self._ages, self._open_requests):
            gauge.clear()
        for replica in self._fleet.replicas:
            age_s = replica.age_s(self._now_s())
            self._ages.labels(replica.url).set(age_s if math.isfinite(age_s) else math.nan)
            self._open_requests.labels(replica.url).set(replica.num_open)
        return generate_latest(self._registry)
