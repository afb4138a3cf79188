"""Runs of a policy on programs without SLOs, or with very loose ones, until all have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from serving.goodput import ProgramOutcome
from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import virtual_engine
from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.drive.stopping import StoppingEngine
from serving.sim.metrics.metrics import summarise
from serving.sim.programs.programs import Program

if TYPE_CHECKING:
    from serving.slo import Slo

LOOSER = 100.0
"""Factor on all times of loose SLOs, including the limit on waiting."""

MAX_DRAIN_FACTOR = 20.0
"""A run that has not ended after this multiple of the arrivals' duration is stopped."""

_CODE = blake3(Path(__file__).read_bytes())  # read at the start; the file may change during a run


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseExperiment:
    """One policy on the programs of one seed at one load, in virtual time.

    Programs arrive until the window ends, and no later; the run continues until all have ended.

    Attributes:
        rate_per_s: programs per second.
        is_tagged: True: programs keep their kinds and predictions, and the times of their SLOs are
            multiplied with LOOSER. False: requests have no tags.
    """

    config: ExperimentConfig
    policy: PolicySpec
    rate_per_s: float
    seed: int
    is_tagged: bool
    kind: str = field(default="loose", init=False)

    @property
    def weight(self) -> float:
        """Proportional to the number of programs."""
        return self.config.programs_at(self.rate_per_s)

    def key(self) -> dict[str, Any]:
        """Everything that its result depends on, except the package's code; JSON-safe."""
        return self.config.predictions_key() | {
            "policy": self.policy.to_json(),
            "rate_per_s": self.rate_per_s,
            "seed": self.seed,
            "is_tagged": self.is_tagged,
            "benchmark": _CODE.hexdigest(16),
        }

    def run(self) -> dict[str, Any]:
        """Throughput until all programs have ended, mean latency, and the number of programs.

        All policies do the same work in this time, so none gains by preferring short work. A
        program that has not completed counts with the seconds from its arrival to the run's end.

        Raises:
            InvalidWorkload, TraceMissing, BadTrace: as Experiment.run.
        """
        clock = VirtualTime()
        load = self.config.generate_load(rate_per_s=self.rate_per_s, seed=self.seed)
        to_s = load.window_s[1]
        arrived = [program for program in load.programs if program.arrival_s < to_s]
        programs = loosened(arrived) if self.is_tagged else untagged(arrived)
        replayed = replay(
            programs,
            PatientEngine(
                virtual_engine(self.config, self.policy, programs, clock), lambda _: False
            ),
            clock,
            self.config.step_time(clock, seed=self.seed),
            predictor=(
                self.config.predictions_of(self.seed)
                if self.is_tagged
                else self.config.no_predictions
            ),
            until_s=MAX_DRAIN_FACTOR * to_s,
        )
        run_s = (0.0, max(replayed.ended_s, to_s))
        report = summarise(replayed.programs, window_s=run_s, observed_until_s=run_s[1])
        from_s = load.window_s[0]
        counted = [each for each in replayed.programs if each.arrival_s >= from_s]
        latencies_s = [_latency_s(each, replayed.ended_s) for each in counted]
        return {
            "throughput_tokens_s": report.throughput_tokens_s,
            "mean_e2el_s": fmean(latencies_s) if latencies_s else 0.0,
            "arrived": len(counted),
            "finished": sum(each.e2el_s is not None for each in counted),
        }


class PatientEngine(StoppingEngine):
    """Multiplies each request's limit on waiting with LOOSER."""

    def submit(self, request_id: str, *, slo: Slo, **request: Any) -> None:
        """Take a request."""
        if slo.waiting_s is not None:
            slo = replace(slo, waiting_s=LOOSER * slo.waiting_s)
        super().submit(request_id, slo=slo, **request)


def untagged(programs: Sequence[Program]) -> tuple[Program, ...]:
    """The same calls as best effort: without deadlines, weights and users."""
    return tuple(replace(program.without_slo(), weight=1.0, user="") for program in programs)


def loosened(programs: Sequence[Program]) -> tuple[Program, ...]:
    """The same programs; the times of their SLOs are multiplied with LOOSER."""
    return tuple(
        replace(
            program,
            ttft_s=LOOSER * program.ttft_s,
            tbt_s=LOOSER * program.tbt_s,
            deadline_s=None if program.deadline_s is None else LOOSER * program.deadline_s,
        )
        for program in programs
    )


def all_finished(documents: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every counted program has completed."""
    return all(each["finished"] == each["arrived"] for each in documents)


def mean(documents: Sequence[Mapping[str, Any]], name: str) -> float:
    """The mean of one figure over the seeds."""
    return fmean(each[name] for each in documents)


def _latency_s(program: ProgramOutcome, ended_s: float) -> float:
    """End-to-end latency; up to the run's end for a program that has not completed."""
    return ended_s - program.arrival_s if program.e2el_s is None else program.e2el_s
