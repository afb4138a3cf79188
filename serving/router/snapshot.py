"""Snapshots of replicas for routers, and the machine time that a request would take there.

A snapshot has a fixed size, however many requests a replica has, so it is cheap to send. All times
are seconds from the snapshot, so the clocks of two machines are never compared.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from serving.slo import Slo, SloKind

HORIZONS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Seconds within which the due work of a snapshot is counted; later work is in `work_s` only."""

TYPICAL_LEVEL = 0.5
"""The quantile of output lengths that load is computed with: a sum of upper bounds is too high."""

NO_PREFIXES: Mapping[str, int] = MappingProxyType({})


class Speed(NamedTuple):
    """The time of a token on one replica.

    Attributes:
        prefill_token_s: machine seconds of one prompt token, in a step full of them.
        decode_token_s: machine seconds of one output token: its share of a step with the
            replica's typical number of decodes.
        token_s: seconds between two tokens of one request: the present decode step.
    """

    prefill_token_s: float
    decode_token_s: float
    token_s: float


class ReplicaReport(Protocol):
    """The part of a snapshot that only the replica itself knows."""

    @property
    def speed(self) -> Speed:
        """The time of a token, from a step cost or measured."""
        ...

    @property
    def slots(self) -> int:
        """Largest number of requests that run at once."""
        ...

    @property
    def kv_blocks(self) -> int:
        """Blocks of the KV cache."""
        ...

    @property
    def free_kv_blocks(self) -> int:
        """Blocks that no request holds."""
        ...

    @property
    def block_tokens(self) -> int:
        """Tokens per block."""
        ...


class RoutedRequest(NamedTuple):
    """A request as routers see it.

    Attributes:
        number: number of requests that the router has placed before.
        max_tokens: the caller's limit on output tokens.
        prefix: key of a prompt prefix shared with other requests, such as the program's id; ""
            for none.
        prefix_tokens: length of that prefix in tokens.
    """

    request_id: str
    number: int
    prompt_tokens: int
    max_tokens: int
    slo: Slo
    prefix: str = ""
    prefix_tokens: int = 0

    def output_tokens(self, *, generated: int = 0) -> float:
        """The typical length of its answer in tokens, given those generated so far."""
        if self.slo.length is None:
            return float(max(self.max_tokens, generated + 1))
        return min(self.slo.length.upper(TYPICAL_LEVEL, generated=generated), self.max_tokens)


class OpenRequest(NamedTuple):
    """A request of a replica that has not ended.

    Attributes:
        age_s: seconds since its arrival there.
        generated_tokens: output tokens so far.
        running: whether it has been part of a step.
    """

    request: RoutedRequest
    age_s: float
    generated_tokens: int
    running: bool


class Demand(NamedTuple):
    """Work in machine seconds, and the seconds until it is due; infinity: no due time."""

    due_s: float
    work_s: float


class ReplicaSnapshot(NamedTuple):
    """The state of a replica at one time.

    Attributes:
        replica: its id, which breaks ties of the load.
        num_running, num_waiting: number of requests. One that waits in several queues counts in
            each.
        running_tokens: prompt and output tokens of the running requests.
        waiting_tokens: prompt tokens of the waiting requests.
        work_s: predicted machine seconds of all open requests.
        due_work_s: (len(HORIZONS_S),), ascending: the part of work_s that is due within each
            horizon. Late work has no due time: it never precedes work that can be in time.
        late_work_s: the part of work_s of which the due time has passed.
        final_kv_blocks: sum of the predicted KV blocks of the open requests at their ends.
        prefix_tokens: prefix key -> tokens expected in the replica's prefix cache.
    """

    replica: str
    speed: Speed
    slots: int
    num_running: int
    num_waiting: int
    running_tokens: int
    waiting_tokens: int
    work_s: float
    due_work_s: tuple[float, ...]
    kv_blocks: int
    free_kv_blocks: int
    final_kv_blocks: int
    block_tokens: int
    late_work_s: float = 0.0
    prefix_tokens: Mapping[str, int] = NO_PREFIXES

    @property
    def num_requests(self) -> int:
        """Number of open requests."""
        return self.num_running + self.num_waiting

    def work_before_s(self, due_s: float) -> float:
        """Machine seconds that are due within due_s: linear between two horizons."""
        index = bisect_left(HORIZONS_S, due_s)
        if index == len(HORIZONS_S):
            return self.work_s if math.isinf(due_s) else self.due_work_s[-1]
        lower_s, lower_work_s = 0.0, 0.0
        if index:
            lower_s, lower_work_s = HORIZONS_S[index - 1], self.due_work_s[index - 1]
        share = (due_s - lower_s) / (HORIZONS_S[index] - lower_s)
        return lower_work_s + share * (self.due_work_s[index] - lower_work_s)

    def cached_tokens(self, request: RoutedRequest) -> int:
        """Prompt tokens of the request that are expected in the prefix cache.

        Never the last one: an engine always computes it, to generate the first output token.
        """
        if not request.prefix:
            return 0
        cached = self.prefix_tokens.get(request.prefix, 0)
        return min(request.prefix_tokens, cached, request.prompt_tokens - 1)


def snapshot_of(
    replica: str,
    report: ReplicaReport,
    requests: Iterable[OpenRequest],
    *,
    prefix_tokens: Mapping[str, int] = NO_PREFIXES,
) -> ReplicaSnapshot:
    """A replica's snapshot from its report and from the requests that a router has sent it."""
    speed = report.speed
    due_work_s = [0.0] * (len(HORIZONS_S) + 1)  # the last: beyond every horizon, or no due time
    num_running = num_waiting = running_tokens = waiting_tokens = kv_blocks = 0
    late_work_s = 0.0
    for each in requests:
        request, generated = each.request, each.generated_tokens
        if each.running:
            num_running += 1
            running_tokens += request.prompt_tokens + generated
        else:
            num_waiting += 1
            waiting_tokens += request.prompt_tokens
        kv_blocks += final_kv_blocks(request, report.block_tokens, generated=generated)
        for demand in demands(request, speed, age_s=each.age_s, generated=generated):
            due_work_s[_horizon(demand.due_s)] += demand.work_s
            if math.isinf(demand.due_s) and request.slo.kind is not SloKind.BEST_EFFORT:
                late_work_s += demand.work_s
    cumulative, total_s = [], 0.0
    for work_s in due_work_s:
        total_s += work_s
        cumulative.append(total_s)
    return ReplicaSnapshot(
        replica=replica,
        speed=speed,
        slots=report.slots,
        num_running=num_running,
        num_waiting=num_waiting,
        running_tokens=running_tokens,
        waiting_tokens=waiting_tokens,
        work_s=total_s,
        due_work_s=tuple(cumulative[:-1]),
        kv_blocks=report.kv_blocks,
        free_kv_blocks=report.free_kv_blocks,
        final_kv_blocks=kv_blocks,
        block_tokens=report.block_tokens,
        late_work_s=late_work_s,
        prefix_tokens=prefix_tokens,
    )


def with_request(snapshot: ReplicaSnapshot, request: RoutedRequest) -> ReplicaSnapshot:
    """The snapshot with one more waiting request, which was sent after the replica's report.

    `free_kv_blocks` stays the same, because a waiting request holds none.
    """
    due_work_s = list(snapshot.due_work_s)
    added_s = 0.0
    for demand in demands(request, snapshot.speed):
        added_s += demand.work_s
        for index in range(_horizon(demand.due_s), len(HORIZONS_S)):
            due_work_s[index] += demand.work_s
    kv_blocks = final_kv_blocks(request, snapshot.block_tokens)
    return snapshot._replace(
        num_waiting=snapshot.num_waiting + 1,
        waiting_tokens=snapshot.waiting_tokens + request.prompt_tokens,
        work_s=snapshot.work_s + added_s,
        due_work_s=tuple(due_work_s),
        final_kv_blocks=snapshot.final_kv_blocks + kv_blocks,
    )


def demands(
    request: RoutedRequest,
    speed: Speed,
    *,
    age_s: float = 0.0,
    generated: int = 0,
    cached_tokens: float = 0.0,
) -> tuple[Demand, ...]:
    """The remaining work of a request and when it is due, prefill and decode apart for a stream.

    The whole prompt counts as remaining until the first output token.

    Args:
        age_s: seconds since its arrival.
        generated: output tokens so far.
        cached_tokens: prompt tokens that need not be computed.
    """
    slo = request.slo
    length = request.output_tokens(generated=generated)
    uncomputed = 0.0 if generated else request.prompt_tokens - cached_tokens
    prefill_s = uncomputed * speed.prefill_token_s
    decode_s = max(length - generated, 0.0) * speed.decode_token_s
    if slo.kind is SloKind.LATENCY:
        first_s = slo.ttft_s - age_s
        return (
            Demand(_infinite_if_past(first_s), prefill_s),
            Demand(_infinite_if_past(first_s + (length - 1) * slo.tbt_s), decode_s),
        )
    due_s = math.inf
    if slo.deadline_s is not None:
        due_s = _infinite_if_past(slo.deadline_s - age_s)
        if math.isinf(due_s) and slo.final_s is not None:
            due_s = _infinite_if_past(slo.final_s - age_s)
    return (Demand(due_s, prefill_s + decode_s),)


def final_kv_blocks(request: RoutedRequest, block_tokens: int, *, generated: int = 0) -> int:
    """KV blocks of the request's whole context at its typical end."""
    tokens = request.prompt_tokens + request.output_tokens(generated=generated)
    return math.ceil(tokens / block_tokens)


def _infinite_if_past(due_s: float) -> float:
    return due_s if due_s > 0 else math.inf


def _horizon(due_s: float) -> int:
    """Index of the first horizon within which work is due; len(HORIZONS_S) if there is none."""
    return bisect_left(HORIZONS_S, due_s)
