"""One simulated run with a given division of each program's deadline over its stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import virtual_engine
from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.metrics.metrics import summarise
from serving.sim.programs.call_slos import MIN_REMAINING_S, Predictions
from serving.sim.programs.predictions import ORACLE_FUTURES, FutureErrors, LengthErrors
from serving.sim.programs.programs import Program, Stage, StageCall
from serving.slo import Slo, SloKind

NONE, EVEN, SHARES = "none", "even", "shares"
SUB_DEADLINES = (NONE, EVEN, SHARES)
BIASES: Mapping[str, float | None] = {"noisy": 1.0, "halved": 0.5, "doubled": 2.0, "missing": None}
"""What is predicted of a program's future -> factor on it; None: nothing."""

_CODE = blake3(Path(__file__).read_bytes()).hexdigest(16)


@dataclass(frozen=True, slots=True)
class DividedPredictions:
    """Predictions with another division of each program's deadline: a Predictor."""

    predictions: Predictions
    sub_deadlines: str

    @property
    def max_tokens(self) -> int:
        """The limit of every call."""
        return self.predictions.max_tokens

    def slo_of(self, program: Program, call: StageCall, now_s: float) -> Slo:
        """The SLO of one call."""
        slo = self.predictions.slo_of(program, call, now_s)
        if program.kind is not SloKind.COMPOUND or slo.final_s is None:
            return slo
        share = self._share(program, call.stage)
        return replace(slo, deadline_s=max(slo.final_s * share, MIN_REMAINING_S))

    def call_ended(
        self, program: Program, call: StageCall, *, began_s: float, now_s: float
    ) -> None:
        """Nothing is learned."""

    def _share(self, program: Program, stage: int) -> float:
        """The share of the time left that a stage gets."""
        if self.sub_deadlines == NONE:
            return 1.0
        if self.sub_deadlines == EVEN:
            return 1.0 / (len(program.stages) - stage)
        token_s, prefill_token_s = self.predictions.token_s, self.predictions.prefill_token_s
        own_s = max(
            call.prompt_tokens * prefill_token_s + call.output_tokens * token_s
            for call in program.stages[stage].calls
        )
        later = ORACLE_FUTURES.future(
            program, stage, token_s=token_s, prefill_token_s=prefill_token_s
        )
        return own_s / (own_s + later.critical_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedExperiment:
    """One policy on one seed's programs, with one kind of sub-deadlines and of futures.

    Attributes:
        future: one of BIASES.
        tool_factor: on the seconds of every tool; deadlines are longer by the seconds added.
    """

    config: ExperimentConfig
    policy: PolicySpec
    load: float
    rate_per_s: float
    seed: int
    sub_deadlines: str
    future: str
    tool_factor: float
    kind: str = field(default="divided", init=False)

    @property
    def weight(self) -> float:
        """The machine's time that its programs take."""
        return self.config.machine_seconds_at(self.load)

    def key(self) -> dict[str, Any]:
        """Everything that its result depends on, except the package's code; JSON-safe."""
        return self.config.predictions_key() | {
            "policy": self.policy.to_json(),
            "rate_per_s": self.rate_per_s,
            "seed": self.seed,
            "sub_deadlines": self.sub_deadlines,
            "future": self.future,
            "tool_factor": self.tool_factor,
            "benchmark": _CODE,
        }

    def run(self) -> dict[str, Any]:
        """Token and request goodput, per second of the window."""
        load = self.config.generate_load(rate_per_s=self.rate_per_s, seed=self.seed)
        programs = [with_tools(program, self.tool_factor) for program in load.programs]
        added_s = max(
            (new.deadline_s or 0.0) - (old.deadline_s or 0.0)
            for new, old in zip(programs, load.programs, strict=True)
        )
        decided_s = load.decided_s + added_s
        bias = BIASES[self.future]
        predictions = replace(
            self.config.no_predictions,
            lengths=LengthErrors(seed=self.seed),
            futures=None if bias is None else FutureErrors(bias=bias, seed=self.seed),
        )
        clock = VirtualTime()
        replayed = replay(
            programs,
            virtual_engine(self.config, self.policy, programs, clock),
            clock,
            self.config.step_time(clock, seed=self.seed),
            predictor=DividedPredictions(predictions, self.sub_deadlines),
            until_s=decided_s,
        )
        report = summarise(replayed.programs, window_s=load.window_s, observed_until_s=decided_s)
        return dict(report.goodputs)


def with_tools(program: Program, factor: float) -> Program:
    """A program with tools that take longer, and a deadline that is later by as many seconds."""
    if factor == 1.0 or program.deadline_s is None:
        return program
    stages = tuple(Stage(stage.calls, stage.tool_s * factor) for stage in program.stages)
    added_s = program.tool_s * (factor - 1.0)
    return replace(program, stages=stages, deadline_s=program.deadline_s + added_s)
