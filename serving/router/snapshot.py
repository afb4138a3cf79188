"""What a router knows of each replica, and what a request would cost there.

A snapshot is a fixed number of counts, however many requests a replica has, so that it is cheap to
send. All times are seconds from the moment of the snapshot: no two machines compare clocks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from serving.slo import Slo, SloKind

HORIZONS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""By when work is due, as a snapshot tells it apart; what is due later counts in `work_s` only."""

TYPICAL_LEVEL = 0.5
"""The quantile of an answer's length that counts as its load: bounds would add up to too much."""

NO_PREFIXES: Mapping[str, int] = MappingProxyType({})


class Speed(NamedTuple):
    """What a token costs on one replica.

    Attributes:
        prefill_token_s: the machine's seconds for one prompt token, in a step full of them.
        decode_token_s: the machine's seconds for one output token: its share of a step with as
            many decodes as the replica usually batches.
        token_s: seconds between two tokens of one request: a decode step as it is now.
    """

    prefill_token_s: float
    decode_token_s: float
    token_s: float


class ReplicaReport(Protocol):
    """What only the replica itself knows; the rest a router knows from what it sent there."""

    @property
    def speed(self) -> Speed:
        """What a token costs there, by a step-cost model or as measured."""
        ...

    @property
    def slots(self) -> int:
        """Requests that may run at once."""
        ...

    @property
    def kv_blocks(self) -> int:
        """Blocks of the KV cache."""
        ...

    @property
    def free_kv_blocks(self) -> int:
        """Those that nobody holds."""
        ...

    @property
    def block_tokens(self) -> int:
        """Tokens that one block holds."""
        ...


class RoutedRequest(NamedTuple):
    """A request as a router sees it.

    Attributes:
        number: how many requests the router has placed before this one.
        max_tokens: its caller's limit on the answer.
        prefix: key of the text that it shares with others, such as its program's id; "" for none.
        prefix_tokens: of its prompt's first tokens, those that are shared under this key.
    """

    request_id: str
    number: int
    prompt_tokens: int
    max_tokens: int
    slo: Slo
    prefix: str = ""
    prefix_tokens: int = 0

    def output_tokens(self, *, generated: int = 0) -> float:
        """The typical length of its answer, given that so much of it is there."""
        if self.slo.length is None:
            return float(max(self.max_tokens, generated + 1))
        return min(self.slo.length.upper(TYPICAL_LEVEL, generated=generated), self.max_tokens)


class OpenRequest(NamedTuple):
    """A request that a replica has and that has not ended.

    Attributes:
        age_s: seconds since its arrival there.
        generated_tokens: of its answer, what is there.
        running: whether it has been part of a step.
    """

    request: RoutedRequest
    age_s: float
    generated_tokens: int
    running: bool


class Demand(NamedTuple):
    """Work in machine seconds, and in how many seconds it is due (infinity: at no time)."""

    due_s: float
    work_s: float


class ReplicaSnapshot(NamedTuple):
    """One replica at one moment.

    Attributes:
        replica: its id; ties between equals end in it.
        num_running, num_waiting: requests. One that waits in several queues counts in each.
        running_tokens: of the running ones, prompts and what is there of the answers.
        waiting_tokens: of the prompts that wait to be read.
        work_s: machine seconds of all that is open, predicted.
        due_work_s: (len(HORIZONS_S),), ascending: of work_s, what is due within each horizon. What
            is late already is due at no time: it never goes before what can be in time.
        promised_kv_blocks: what the open requests are predicted to hold at their ends, added up.
        prefix_tokens: by prefix key, the tokens believed to be in the replica's prefix cache.
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
    promised_kv_blocks: int
    block_tokens: int
    prefix_tokens: Mapping[str, int] = NO_PREFIXES

    @property
    def num_requests(self) -> int:
        """Requests that it has."""
        return self.num_running + self.num_waiting

    def work_before_s(self, due_s: float) -> float:
        """Machine seconds of what is due no later than this: linear between two horizons."""
        place = bisect_left(HORIZONS_S, due_s)
        if place == len(HORIZONS_S):
            return self.work_s if math.isinf(due_s) else self.due_work_s[-1]
        lower_s, lower_work_s = 0.0, 0.0
        if place:
            lower_s, lower_work_s = HORIZONS_S[place - 1], self.due_work_s[place - 1]
        share = (due_s - lower_s) / (HORIZONS_S[place] - lower_s)
        return lower_work_s + share * (self.due_work_s[place] - lower_work_s)

    def cached_tokens(self, request: RoutedRequest) -> int:
        """Of the request's prompt, what is believed cached, which its last token never is.

        An engine computes that one in any case, for the answer's first token comes of it.
        """
        if not request.prefix:
            return 0
        known = self.prefix_tokens.get(request.prefix, 0)
        return min(request.prefix_tokens, known, request.prompt_tokens - 1)


def snapshot_of(
    replica: str,
    report: ReplicaReport,
    requests: Iterable[OpenRequest],
    *,
    prefix_tokens: Mapping[str, int] = NO_PREFIXES,
) -> ReplicaSnapshot:
    """A replica's snapshot from its own report and from what a router has sent it."""
    speed = report.speed
    due_work_s = [0.0] * (len(HORIZONS_S) + 1)  # the last: at no time, or beyond every horizon
    running = waiting = running_tokens = waiting_tokens = promised = 0
    for each in requests:
        request, generated = each.request, each.generated_tokens
        if each.running:
            running += 1
            running_tokens += request.prompt_tokens + generated
        else:
            waiting += 1
            waiting_tokens += request.prompt_tokens
        promised += final_kv_blocks(request, report.block_tokens, generated=generated)
        for demand in demands(request, speed, age_s=each.age_s, generated=generated):
            due_work_s[_horizon(demand.due_s)] += demand.work_s
    cumulative, total_s = [], 0.0
    for work_s in due_work_s:
        total_s += work_s
        cumulative.append(total_s)
    return ReplicaSnapshot(
        replica=replica,
        speed=speed,
        slots=report.slots,
        num_running=running,
        num_waiting=waiting,
        running_tokens=running_tokens,
        waiting_tokens=waiting_tokens,
        work_s=total_s,
        due_work_s=tuple(cumulative[:-1]),
        kv_blocks=report.kv_blocks,
        free_kv_blocks=report.free_kv_blocks,
        promised_kv_blocks=promised,
        block_tokens=report.block_tokens,
        prefix_tokens=prefix_tokens,
    )


def with_request(snapshot: ReplicaSnapshot, request: RoutedRequest) -> ReplicaSnapshot:
    """The snapshot once this request waits there too: a report is older than what was sent since.

    Its `free_kv_blocks` stay, for a request that waits holds none.
    """
    due_work_s = list(snapshot.due_work_s)
    added_s = 0.0
    for demand in demands(request, snapshot.speed):
        added_s += demand.work_s
        for place in range(_horizon(demand.due_s), len(HORIZONS_S)):
            due_work_s[place] += demand.work_s
    promised = final_kv_blocks(request, snapshot.block_tokens)
    return snapshot._replace(
        num_waiting=snapshot.num_waiting + 1,
        waiting_tokens=snapshot.waiting_tokens + request.prompt_tokens,
        work_s=snapshot.work_s + added_s,
        due_work_s=tuple(due_work_s),
        promised_kv_blocks=snapshot.promised_kv_blocks + promised,
    )


def demands(
    request: RoutedRequest,
    speed: Speed,
    *,
    age_s: float = 0.0,
    generated: int = 0,
    cached_tokens: float = 0.0,
) -> tuple[Demand, ...]:
    """What is left to do of a request and by when; its prompt is left until its first token.

    Args:
        age_s: seconds since its arrival.
        generated: tokens of its answer that are there.
        cached_tokens: of its prompt, what need not be read again.
    """
    slo = request.slo
    length = request.output_tokens(generated=generated)
    unread = 0.0 if generated else request.prompt_tokens - cached_tokens
    prefill_s = unread * speed.prefill_token_s
    decode_s = max(length - generated, 0.0) * speed.decode_token_s
    if slo.kind is SloKind.LATENCY:
        first_s = slo.ttft_s - age_s
        return (
            Demand(_ahead(first_s), prefill_s),
            Demand(_ahead(first_s + (length - 1) * slo.tbt_s), decode_s),
        )
    due_s = math.inf
    if slo.deadline_s is not None:
        due_s = _ahead(slo.deadline_s - age_s)
        if math.isinf(due_s) and slo.final_s is not None:
            due_s = _ahead(slo.final_s - age_s)
    return (Demand(due_s, prefill_s + decode_s),)


def final_kv_blocks(request: RoutedRequest, block_tokens: int, *, generated: int = 0) -> int:
    """Blocks that its whole context typically takes in the end."""
    tokens = request.prompt_tokens + request.output_tokens(generated=generated)
    return math.ceil(tokens / block_tokens)


def _ahead(due_s: float) -> float:
    return due_s if due_s > 0 else math.inf


def _horizon(due_s: float) -> int:
    """The first horizon within which it is due; their number if there is none."""
    return bisect_left(HORIZONS_S, due_s)
