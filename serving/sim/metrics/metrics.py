"""Metrics of a run of programs: goodput, SLO attainment, latencies, fairness.

Programs that arrived within the measured window [from_s, to_s) count. Earlier ones are warm-up,
later ones cool-down: both load the engine and do not count. A counted program is observed past
to_s, up to observed_until_s. If it has not ended by then, it earns what it had earned so far, and
its SLO counts as missed.

Source of the metrics: Wu (2025), section 6.1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from serving.goodput import GOODPUTS, Goodput, ProgramOutcome, met, tokens
from serving.slo import SloKind

SLO_KINDS = (SloKind.LATENCY, SloKind.DEADLINE, SloKind.COMPOUND)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of observed seconds, linearly interpolated; None without observations."""

    p50: float | None
    p95: float | None
    p99: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        """Percentiles of any finite values, in any order."""
        if not values:
            return cls(None, None, None, 0)
        p50, p95, p99 = np.percentile(np.asarray(values, dtype=float), (50, 95, 99)).tolist()
        return cls(p50, p95, p99, len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """The engine's counters over the whole run.

    Attributes:
        schedule_ms_per_step: mean real milliseconds to schedule a step; None: not measured.
    """

    preemptions: int = 0
    recomputed_tokens: int = 0
    steps: int = 0
    schedule_ms_per_step: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How the counted programs ended: arrived = finished + dropped + unfinished."""

    arrived: int
    finished: int  # all calls completed, in time or not
    dropped: int  # the engine dropped a call
    unfinished: int  # still running when the observation ended
    met: int  # met their SLO
    promised: int  # have an SLO


@dataclass(frozen=True, slots=True)
class Fairness:
    """How evenly goodput is spread over the users whose programs have an SLO.

    Attributes:
        min_to_mean: the smallest goodput of a user / the mean; 1 when all are equal.
        jain: (sum x)^2 / (n * sum x^2): 1 when all are equal, 1/n when one user has it all.
    Both are None without any goodput.
    Source of the index: Jain, Chiu and Hawe (1984), A quantitative measure of fairness.
    """

    min_to_mean: float | None
    jain: float | None

    @classmethod
    def of(cls, shares: Sequence[float]) -> Fairness:
        """Fairness of one share per user, each at least 0."""
        largest = max(shares, default=0.0)
        if largest == 0:
            return cls(None, None)
        scaled = [
            share / largest for share in sorted(shares)
        ]  # squares neither over- nor underflow
        total = math.fsum(scaled)
        squares = math.fsum(share * share for share in scaled)
        return cls(scaled[0] * len(scaled) / total, total * total / (len(scaled) * squares))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The metrics of one run. Rates are per second of the measured window.

    Attributes:
        goodputs: name of a definition in GOODPUTS -> goodput per second.
        attainment: kind -> share of its counted programs that met their SLO; dropped and unfinished
            programs did not. None without counted programs of the kind.
        ttft_s, ttft_latency_s: from a call's submission to its first token; of all calls, and of
            the calls of latency programs. Calls without a first token are left out.
        tbt_s, tbt_latency_s: all gaps between two tokens of a call.
        e2el_s, e2el_by_kind_s: from arrival to end, of finished programs only.
        throughput_tokens_s: tokens computed within the window for any program, whenever it arrived:
            output tokens at their delivery, a call's input tokens at its first output token.
        output_tokens_s: the same without input tokens.
        user_goodput: user -> goodput per second, over the users whose programs have an SLO.
    """

    window_s: tuple[float, float]
    goodputs: dict[str, float]
    attainment: dict[str, float | None]
    ttft_s: Percentiles
    ttft_latency_s: Percentiles
    tbt_s: Percentiles
    tbt_latency_s: Percentiles
    e2el_s: Percentiles
    e2el_by_kind_s: dict[str, Percentiles]
    throughput_tokens_s: float
    output_tokens_s: float
    counts: Counts
    user_goodput: dict[str, float]
    fairness: Fairness
    counters: EngineCounters

    @property
    def token_goodput(self) -> float:
        """Tokens that met their SLO, per second."""
        return self.goodputs["tokens"]

    @property
    def request_goodput(self) -> float:
        """Programs that met their SLO, per second."""
        return self.goodputs["requests"]

    def to_document(self) -> dict[str, Any]:
        """JSON-safe: str keys, finite numbers, None without observations."""
        document = asdict(self)
        counters = document.pop("counters")
        document["window_s"] = list(self.window_s)
        return {
            "token_goodput": self.token_goodput,
            "request_goodput": self.request_goodput,
            **document,
            **counters,
        }


def summarise(
    programs: Sequence[ProgramOutcome],
    *,
    window_s: tuple[float, float],
    observed_until_s: float = math.inf,
    goodput: Goodput = tokens,
    counters: EngineCounters | None = None,
) -> Report:
    """Measure the programs that arrived within the window; their order does not matter.

    Args:
        programs: all of the run; uncounted programs are part of the throughput.
        window_s: (from_s, to_s), absolute seconds; from_s is included, to_s is not.
        observed_until_s: ignore later events; infinity: use the outcomes as they are. With to_s,
            goodput cannot exceed throughput.
        goodput: the definition for goodput per user and fairness.
        counters: as the engine reported them; None: all zero.
    """
    from_s, to_s = window_s
    assert from_s < to_s, "an empty window has no rates"
    length_s = to_s - from_s
    seen = [
        program.seen_until(observed_until_s)
        for program in programs
        if program.arrival_s <= observed_until_s
    ]
    counted = [program for program in seen if from_s <= program.arrival_s < to_s]
    streams = [program for program in counted if program.kind is SloKind.LATENCY]
    input_tokens, output_tokens = _work(seen, from_s, to_s)
    user_goodput = _by_user(counted, goodput, length_s)
    return Report(
        window_s=(from_s, to_s),
        goodputs={
            name: math.fsum(map(definition, counted)) / length_s
            for name, definition in GOODPUTS.items()
        },
        attainment={kind.value: _attainment(counted, kind) for kind in SLO_KINDS},
        ttft_s=_ttft(counted),
        ttft_latency_s=_ttft(streams),
        tbt_s=_tbt(counted),
        tbt_latency_s=_tbt(streams),
        e2el_s=_e2el(counted),
        e2el_by_kind_s={
            kind.value: _e2el(program for program in counted if program.kind is kind)
            for kind in SloKind
        },
        throughput_tokens_s=(input_tokens + output_tokens) / length_s,
        output_tokens_s=output_tokens / length_s,
        counts=_count(counted),
        user_goodput=user_goodput,
        fairness=Fairness.of(tuple(user_goodput.values())),
        counters=counters or EngineCounters(),
    )


def _attainment(programs: Sequence[ProgramOutcome], kind: SloKind) -> float | None:
    outcomes = [met(program) for program in programs if program.kind is kind]
    return sum(outcomes) / len(outcomes) if outcomes else None


def _ttft(programs: Iterable[ProgramOutcome]) -> Percentiles:
    return Percentiles.of(
        [
            call.token_times_s[0] - call.submitted_s
            for program in programs
            for call in program.each_call()
            if call.token_times_s
        ]
    )


def _tbt(programs: Iterable[ProgramOutcome]) -> Percentiles:
    return Percentiles.of(
        [
            later_s - earlier_s
            for program in programs
            for call in program.each_call()
            for earlier_s, later_s in pairwise(call.token_times_s)
        ]
    )


def _e2el(programs: Iterable[ProgramOutcome]) -> Percentiles:
    return Percentiles.of(
        [program.e2el_s for program in programs if program.e2el_s is not None],
    )


def _work(programs: Iterable[ProgramOutcome], from_s: float, to_s: float) -> tuple[int, int]:
    """Input and output tokens within the window, both ends included."""
    input_tokens = output_tokens = 0
    for program in programs:
        for call in program.each_call():
            delivered = [from_s <= time_s <= to_s for time_s in call.token_times_s]
            output_tokens += sum(delivered)
            input_tokens += call.prompt_tokens if delivered and delivered[0] else 0
    return input_tokens, output_tokens


def _count(programs: Sequence[ProgramOutcome]) -> Counts:
    finished = sum(program.finished for program in programs)
    dropped = sum(program.dropped for program in programs)
    return Counts(
        arrived=len(programs),
        finished=finished,
        dropped=dropped,
        unfinished=len(programs) - finished - dropped,
        met=sum(met(program) for program in programs),
        promised=sum(program.has_slo for program in programs),
    )


def _by_user(
    programs: Sequence[ProgramOutcome], goodput: Goodput, length_s: float
) -> dict[str, float]:
    earned: dict[str, list[float]] = defaultdict(list)
    for program in programs:
        if program.has_slo:
            earned[program.user].append(goodput(program))
    return {user: math.fsum(earned[user]) / length_s for user in sorted(earned)}
