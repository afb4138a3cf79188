"""One simulated run under a paper's conditions, which the comparisons of policies do not have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from serving.goodput import CLOCK_TOLERANCE_S, ProgramOutcome, met
from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import virtual_engine
from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.drive.unequal_lengths import UnequalLengths
from serving.sim.metrics.metrics import summarise
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.programs import Program, StageCall
from serving.sim.workloads.load_generator import GeneratedLoad, outcome_known_s
from serving.sim.workloads.trace_files import read_trace
from serving.sim.workloads.trace_order import trace_timing
from serving.sim.workloads.workloads import generate
from serving.slo import Slo, SloKind
from serving.step_cost import StepTimeModel

TPOT_TOKENS = 10
"""SLOs-Serve, section 6: the time per token is taken over so many tokens."""

NEVER_S = 1e9
"""Longer than any run."""

_CODE = blake3(Path(__file__).read_bytes()).hexdigest(16)


class ArrivalTrace(NamedTuple):
    """A trace of requests from which only the arrival times are taken; digest of its content."""

    path: Path
    digest: str

    @classmethod
    def of(cls, path: Path) -> ArrivalTrace:
        """Raises TraceMissing or BadTrace like read_trace."""
        return cls(path, read_trace(path).digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a paper's setting has beside the config of a comparison.

    Attributes:
        arrivals: None: as the config says.
        waiting_s: a call that has waited so long is dropped; NEVER_S: none is; None: streams after
            the default of 5 s.
        unequal_share: as in UnequalLengths.
        observed_s: programs are observed for so long after the window; None: until every one of
            them has met or missed its SLO.
    """

    arrivals: ArrivalTrace | None = None
    waiting_s: float | None = None
    unequal_share: float = 0.0
    observed_s: float | None = None

    def key(self) -> dict[str, Any]:
        """The part of a cache key; JSON-safe."""
        digest = None if self.arrivals is None else self.arrivals.digest
        return asdict(self) | {"arrivals": digest}


@dataclass(frozen=True, slots=True)
class ImpatientPredictions:
    """Predictions for calls that are dropped once they have waited too long: a Predictor."""

    predictions: Predictions
    waiting_s: float | None

    @property
    def max_tokens(self) -> int:
        """The limit of every call."""
        return self.predictions.max_tokens

    def slo_of(self, program: Program, call: StageCall, now_s: float) -> Slo:
        """The SLO of one call."""
        slo = self.predictions.slo_of(program, call, now_s)
        return slo if self.waiting_s is None else replace(slo, waiting_s=self.waiting_s)

    def call_ended(
        self, program: Program, call: StageCall, *, began_s: float, now_s: float
    ) -> None:
        """Nothing is learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRun:
    """One policy on the programs of one seed, in virtual time.

    Attributes:
        rate_per_s: programs per second.
    """

    config: ExperimentConfig
    conditions: Conditions
    policy: PolicySpec
    rate_per_s: float
    seed: int
    kind: str = field(default="claim", init=False)

    @property
    def weight(self) -> float:
        """Proportional to the number of programs."""
        return self.config.programs_at(self.rate_per_s)

    def key(self) -> dict[str, Any]:
        """Everything that its result depends on, except the package's code; JSON-safe."""
        return (
            self.config.predictions_key()
            | self.conditions.key()
            | {
                "process": self.config.arrivals,
                "policy": self.policy.to_json(),
                "rate_per_s": self.rate_per_s,
                "seed": self.seed,
                "benchmark": _CODE,
            }
        )

    def run(self) -> dict[str, Any]:
        """Its goodputs a second, and the other metrics of `measured_of`.

        Raises:
            InvalidWorkload, TraceMissing, BadTrace: as Experiment.run.
        """
        load = self._load()
        clock = VirtualTime()
        engine = virtual_engine(self.config, self.policy, load.programs, clock)
        cost: StepTimeModel = self.config.step_time(clock, seed=self.seed)
        share = self.conditions.unequal_share
        if share:
            contexts = engine.decode_contexts  # type: ignore[attr-defined]
            cost = UnequalLengths(self.config.machine.step_cost, contexts, share)
        predictions = self.config.predictions_of(self.seed)
        replayed = replay(
            load.programs,
            engine,
            clock,
            cost,
            predictor=ImpatientPredictions(predictions, self.conditions.waiting_s),
            until_s=load.decided_s,
        )
        return measured_of(replayed.programs, load)

    def _load(self) -> GeneratedLoad:
        arrivals, observed_s = self.conditions.arrivals, self.conditions.observed_s
        if arrivals is None:
            load = self.config.generate_load(rate_per_s=self.rate_per_s, seed=self.seed)
        else:
            load = load_at_trace_times(self.config, arrivals, self.rate_per_s, self.seed)
        if observed_s is None:
            return load
        return load._replace(decided_s=min(load.decided_s, load.window_s[1] + observed_s))


def load_at_trace_times(
    config: ExperimentConfig, arrivals: ArrivalTrace, rate_per_s: float, seed: int
) -> GeneratedLoad:
    """A generator's programs at a trace's own times, scaled to a mean rate until the window's end.

    Each seed starts at another place of the trace; after its end it repeats. Programs arrive until
    every counted one has met or missed its SLO.
    """
    timing = trace_timing(read_trace(arrivals.path, digest=arrivals.digest), seed=seed)
    from_s, to_s = config.warmup_s, config.warmup_s + config.window_s
    _, scale = timing.fit_rate(rate_per_s, to_s)

    def programs_until(until_s: float) -> tuple[Program, ...]:
        times_s: list[float] = []
        while (time_s := timing.arrival_s(len(times_s)) * scale) < until_s:
            times_s.append(time_s)
        return generate(
            config.source.name,
            rate_per_s=rate_per_s,
            window_s=until_s,
            seed=seed,
            arrivals=times_s,
            slo_scale=config.slo_scale,
        )

    known_s = [outcome_known_s(each) for each in programs_until(to_s) if each.arrival_s >= from_s]
    decided_s = max([to_s, *known_s])
    return GeneratedLoad(programs_until(decided_s), (from_s, to_s), decided_s)


def measured_of(programs: Sequence[ProgramOutcome], load: GeneratedLoad) -> dict[str, Any]:
    """The metrics of the counted programs; JSON-safe.

    Returns:
        goodputs and throughput, a second; "calls", the calls of programs that met their SLO, a
        second; shares of programs that met their SLO, by this project's definition and by a TPOT
        over each TPOT_TOKENS tokens; `median_ttft_s`; P99 TBT by user, None if no call of the user
        has two tokens.
    """
    report = summarise(programs, window_s=load.window_s, observed_until_s=load.decided_s)
    from_s, to_s = load.window_s
    counted = [
        each.seen_until(load.decided_s) for each in programs if from_s <= each.arrival_s < to_s
    ]
    count = max(len(counted), 1)
    return dict(report.goodputs) | {
        "throughput": report.throughput_tokens_s,
        "calls": sum(_num_calls(each) * met(each) for each in counted) / (to_s - from_s),
        "met_share": sum(map(met, counted)) / count,
        "paced_share": sum(map(met_at_pace, counted)) / count,
        "attainment": report.attainment,
        "median_ttft_s": median_ttft_s(counted),
        "p99_tbt_s": {user: _p99_tbt_s(counted, user) for user in {each.user for each in counted}},
    }


def _num_calls(program: ProgramOutcome) -> int:
    return sum(1 for _ in program.each_call())


def met_at_pace(program: ProgramOutcome) -> bool:
    """Whether a stream's first token is in time and each TPOT_TOKENS tokens take so many TBT.

    Other programs: as `met`.
    """
    if program.kind is not SloKind.LATENCY:
        return met(program)
    return program.finished and all(
        _is_paced(program, each.token_times_s, each.submitted_s) for each in program.each_call()
    )


def _is_paced(program: ProgramOutcome, times_s: Sequence[float], submitted_s: float) -> bool:
    if times_s[0] > submitted_s + program.ttft_s + CLOCK_TOLERANCE_S:
        return False
    marks_s = [*times_s[::TPOT_TOKENS], times_s[-1]]
    limit_s = program.tbt_s * TPOT_TOKENS + CLOCK_TOLERANCE_S
    return all(later_s - earlier_s <= limit_s for earlier_s, later_s in pairwise(marks_s))


def median_ttft_s(programs: Sequence[ProgramOutcome]) -> float | None:
    """The median TTFT of all calls; one without a first token counts as infinitely late.

    None: it is infinite, or there is no call.
    """
    calls = [call for program in programs for call in program.each_call()]
    seconds = sorted(
        each.token_times_s[0] - each.submitted_s for each in calls if each.token_times_s
    )
    middle = len(calls) // 2
    return seconds[middle] if middle < len(seconds) else None


def _p99_tbt_s(programs: Sequence[ProgramOutcome], user: str) -> float | None:
    gaps_s = sorted(_gaps_s(each for each in programs if each.user == user))
    return gaps_s[int(0.99 * len(gaps_s))] if gaps_s else None


def _gaps_s(programs: Iterator[ProgramOutcome]) -> Iterator[float]:
    for program in programs:
        for call in program.each_call():
            for earlier_s, later_s in pairwise(call.token_times_s):
                yield later_s - earlier_s
