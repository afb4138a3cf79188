"""What the gateway knows of one replica: its last report, and the requests that it was sent since.

Times are seconds of one monotonic clock, which the caller reads.
"""

from __future__ import annotations

import math
from itertools import count
from typing import NamedTuple

from serving.gateway.prefixes import SentPrefixes
from serving.gateway.reports import SnapshotReport
from serving.router.snapshot import (
    OpenRequest,
    ReplicaSnapshot,
    RoutedRequest,
    Speed,
    snapshot_of,
    with_request,
)

SUSPECT_S = 1.0
"""Silence after which a replica is suspect: ten polls. A busy server answers within 0.2 s; a longer
wait would send more requests to a replica that is gone."""


class NominalReport:
    """The report of a replica that makes none: an unloaded server of medium speed.

    Its values are the same for all such replicas, so only the requests that each was sent decide.
    """

    speed = Speed(prefill_token_s=0.0002, decode_token_s=0.0005, token_s=0.02)
    slots = 256
    kv_blocks = free_kv_blocks = 1 << 20
    block_tokens = 16


class _Sent(NamedTuple):
    request: RoutedRequest
    sent_s: float


class ReplicaState:
    """One replica.

    Attributes:
        url: its address, without a path; also its id for routers.
        models: the models that it serves; None: not known yet.
        failure: why it did not answer the last poll; "" if it did, None before the first one.
        makes_reports: whether it has a snapshot; other servers than ours have none.
        prefixes: what it was sent lately.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.models: tuple[str, ...] | None = None
        self.failure: str | None = None
        self.makes_reports = False
        self.prefixes = SentPrefixes()
        self._is_drained_here = False
        self._report: SnapshotReport | None = None
        self._reported_s = -math.inf
        self._heard_s = -math.inf
        self._sent: dict[int, _Sent] = {}
        self._numbers = count()
        self._view: ReplicaSnapshot | None = None

    @property
    def num_open(self) -> int:
        """Number of requests that it has not answered completely."""
        return len(self._sent)

    @property
    def is_draining(self) -> bool:
        """Whether it gets no new requests, by its own report or by an operator's command."""
        return self._is_drained_here or (self._report is not None and self._report.draining)

    def drain(self, is_draining: bool) -> None:
        """Send it no new requests, or send it some again. A restart of the replica ends it too."""
        self._is_drained_here = is_draining

    def is_suspect(self, now_s: float) -> bool:
        """Whether it is probably gone: it gets requests only if no other replica can."""
        return self.failure != "" or now_s - self._heard_s > SUSPECT_S

    def age_s(self, now_s: float) -> float:
        """Age of its last report, or answer; infinity before the first one."""
        return now_s - (self._reported_s if self.makes_reports else self._heard_s)

    def reported(self, report: SnapshotReport, *, asked_s: float, heard_s: float) -> None:
        """Take a report.

        Args:
            asked_s, heard_s: when it was asked for, and when it arrived. What was sent after
                asked_s - report.age_s may not be in it.
        """
        if self._report is not None and self._report.boot_id != report.boot_id:
            self._begun_anew()
        self._report = report
        self._reported_s = asked_s - report.age_s
        self.models, self.makes_reports = report.models, True
        self._view = None
        self.heard(heard_s)

    def heard(self, now_s: float) -> None:
        """Count a sign of life."""
        self._heard_s, self.failure = now_s, ""

    def without_reports(self) -> None:
        """It has no snapshot."""
        if self._report is not None:
            self._begun_anew()
        self.makes_reports = False

    def failed(self, reason: str) -> None:
        """It did not answer, or with an error."""
        self.failure = reason

    def sent(self, request: RoutedRequest, now_s: float) -> int:
        """Count a request that is sent; `ended` must follow with the number that this returns."""
        number = next(self._numbers)
        self._sent[number] = _Sent(request, now_s)
        if self._view is not None:
            self._view = with_request(self._view, request)
        return number

    def ended(self, number: int) -> None:
        """Count the end of a request, whatever it was."""
        del self._sent[number]
        if not self.makes_reports:
            self._view = None

    def snapshot(self, now_s: float) -> ReplicaSnapshot:
        """The router's view of it, without prefixes: its report, and the requests sent since."""
        if self._view is None:
            self._view = self._reported() if self._report is not None else self._nominal(now_s)
        return self._view

    def _reported(self) -> ReplicaSnapshot:
        assert self._report is not None, "it makes reports"
        view = self._report.snapshot._replace(replica=self.url)
        for each in self._sent.values():
            if each.sent_s >= self._reported_s:
                view = with_request(view, each.request)
        return view

    def _nominal(self, now_s: float) -> ReplicaSnapshot:
        requests = [
            OpenRequest(each.request, now_s - each.sent_s, 0, running=True)
            for each in self._sent.values()
        ]
        return snapshot_of(self.url, NominalReport(), requests)

    def _begun_anew(self) -> None:
        """Another process answers at this address: nothing of the former one is left."""
        self.prefixes.clear()
        self._report = self._view = None
        self._is_drained_here = False
