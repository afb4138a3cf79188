"""A policy on programs that no deadline presses: without any promise, or with very loose ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import virtual_engine
from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.drive.stopping import StoppingEngine
from serving.sim.metrics.goodput import ProgramOutcome
from serving.sim.metrics.metrics import summarise
from serving.sim.programs.programs import Program
from serving.slo import SloKind

if TYPE_CHECKING:
    from serving.slo import Slo

LOOSER = 100.0
"""What loose promises are multiplied with, patience included."""

LONGEST_DRAIN = 20.0
"""Multiple of the time of arrivals after which a run that has not ended is given up."""

_CODE = blake3(Path(__file__).read_bytes())  # as it is run, whatever becomes of the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpressed:
    """One policy on the programs of one seed at one load, in virtual time.

    Programs arrive until the window ends, and no later; the run goes on until all have ended.

    Attributes:
        rate_per_s: programs a second.
        is_tagged: programs keep their kinds and predictions, and their promises become LOOSER
            times as long. Else the engine is told nothing of any request.
    """

    setting: ExperimentConfig
    policy: PolicySpec
    rate_per_s: float
    seed: int
    is_tagged: bool
    sort: str = field(default="unpressed", init=False)

    @property
    def weight(self) -> float:
        """Proportional to how many programs there are."""
        return self.setting.programs_at(self.rate_per_s)

    def key(self) -> dict[str, Any]:
        """All that its result depends on but for the package's code; JSON-safe."""
        return self.setting.predictions_key() | {
            "policy": self.policy.to_json(),
            "rate_per_s": self.rate_per_s,
            "seed": self.seed,
            "is_tagged": self.is_tagged,
            "benchmark": _CODE.hexdigest(16),
        }

    def run(self) -> dict[str, Any]:
        """Tokens a second until all is done, seconds from end to end, and how many ended.

        All policies do the same work in this time: none gains by work that is quickly done.

        A program that did not come to its end counts with the seconds until the run's end.

        Raises:
            InvalidWorkload, TraceMissing, BadTrace: as `Case.run` does.
        """
        clock = VirtualTime()
        offered = self.setting.generated_load(rate_per_s=self.rate_per_s, seed=self.seed)
        to_s = offered.window_s[1]
        arrived = [program for program in offered.programs if program.arrival_s < to_s]
        programs = loosened(arrived) if self.is_tagged else untagged(arrived)
        replayed = replay(
            programs,
            PatientEngine(
                virtual_engine(self.setting, self.policy, programs, clock), lambda _: False
            ),
            clock,
            self.setting.costing(clock, seed=self.seed),
            predictions=(
                self.setting.predictions_of(self.seed)
                if self.is_tagged
                else self.setting.predicts_nothing
            ),
            until_s=LONGEST_DRAIN * to_s,
        )
        whole_s = (0.0, max(replayed.ended_s, to_s))
        report = summarise(replayed.programs, window_s=whole_s, observed_until_s=whole_s[1])
        from_s = offered.window_s[0]
        counted = [each for each in replayed.programs if each.arrival_s >= from_s]
        taken_s = [_taken_s(each, replayed.ended_s) for each in counted]
        return {
            "throughput_tokens_s": report.throughput_tokens_s,
            "mean_e2el_s": fmean(taken_s) if taken_s else 0.0,
            "arrived": len(counted),
            "finished": sum(each.e2el_s is not None for each in counted),
        }


class PatientEngine(StoppingEngine):
    """Who waits for long is given up LOOSER times later than it asked for."""

    def submit(
        self, request_id: str, *, prompt: list[int], output_tokens: int, slo: Slo, max_tokens: int
    ) -> None:
        """Take a request."""
        if slo.waiting_s is not None:
            slo = replace(slo, waiting_s=LOOSER * slo.waiting_s)
        super().submit(
            request_id, prompt=prompt, output_tokens=output_tokens, slo=slo, max_tokens=max_tokens
        )


def untagged(programs: Sequence[Program]) -> tuple[Program, ...]:
    """The same work of callers who say nothing of any promise, nor of what belongs together."""
    return tuple(
        replace(program, kind=SloKind.BEST_EFFORT, deadline_s=None, weight=1.0, user="")
        for program in programs
    )


def loosened(programs: Sequence[Program]) -> tuple[Program, ...]:
    """The same work, promised LOOSER times as late."""
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
    """Whether every counted program came to its end."""
    return all(each["finished"] == each["arrived"] for each in documents)


def mean(documents: Sequence[Mapping[str, Any]], name: str) -> float:
    """Of one figure over the seeds."""
    return fmean(each[name] for each in documents)


def _taken_s(program: ProgramOutcome, ended_s: float) -> float:
    """Who did not come to its end took at least until the run's."""
    return ended_s - program.arrival_s if program.e2el_s is None else program.e2el_s
