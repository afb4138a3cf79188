"""The experiments of a comparison; the result of each is a pure function of its fields.

An experiment has a cache key (`key`) and computes its result in any process (`run`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from serving.policies.table import PolicySpec
from serving.router.table import RouterSpec
from serving.sim.compare.experiment_config import (
    FIRST_PERIOD_LOAD,
    FIRST_PERIOD_SEED,
    ExperimentConfig,
)
from serving.sim.drive.driver import Replay, VirtualTime, replay
from serving.sim.drive.fleet import run_fleet
from serving.sim.drive.replica import Replica
from serving.sim.drive.stepped import SteppedEngine
from serving.sim.metrics.metrics import Report, summarise
from serving.sim.metrics.outcome import outcome_of
from serving.sim.programs.predictor import Predictor, Recorder
from serving.sim.programs.programs import Program
from serving.sim.workloads.load_generator import GeneratedLoad
from serving.workload_errors import InvalidWorkload

if TYPE_CHECKING:
    from serving.sim.drive.virtual_engine import VirtualConfig

DEFAULT_CONTEXT_TOKENS = 65_536


class Task(Protocol):
    """A unit of work of a comparison."""

    @property
    def kind(self) -> str:
        """The kind of its result: "run", "capacity", "bound", "live" or "machine"."""
        ...

    @property
    def weight(self) -> float:
        """Expected duration, relative to other tasks."""
        ...

    def key(self) -> dict[str, Any]:
        """Everything that its result depends on, except the code; JSON-safe."""
        ...

    def run(self) -> dict[str, Any]:
        """Compute its result; JSON-safe."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One policy on the programs of one seed at one load, in virtual time.

    Attributes:
        load: the rate as a multiple of the workload's capacity on these machines.
        rate_per_s: programs per second, for all machines together.
        replicas: number of machines; several have the default router.
    """

    config: ExperimentConfig
    policy: PolicySpec
    load: float
    rate_per_s: float
    seed: int
    replicas: int = 1
    kind: str = field(default="run", init=False)

    @property
    def weight(self) -> float:
        """The machines' time that its programs take: comparable between workloads."""
        return self.config.machine_seconds_at(self.load) * self.replicas

    def key(self) -> dict[str, Any]:
        """Everything that its outcome depends on, except the code; JSON-safe."""
        return self.config.predictions_key() | {
            "policy": self.policy.to_json(),
            "load": self.load,
            "rate_per_s": self.rate_per_s,
            "seed": self.seed,
            "replicas": self.replicas,
        }

    def run(self) -> dict[str, Any]:
        """Its outcome as a document; the same each time, except schedule_ms_per_step (real time).

        Raises:
            InvalidWorkload: a call is longer than the machine's memory.
            Also what `generate_load` raises.
        """
        load = self.config.generate_load(rate_per_s=self.rate_per_s, seed=self.seed)
        return document_of(load, self.replay(load))

    def replay(self, load: GeneratedLoad) -> Replay:
        """Run a load in virtual time; raises like `run`."""
        if self.replicas > 1:
            return self._replay_on_replicas(load)
        clock = VirtualTime()
        engine = virtual_engine(self.config, self.policy, load.programs, clock)
        return replay(
            load.programs,
            engine,
            clock,
            self.config.step_time(clock, seed=self.seed),
            predictor=self._predictor(),
            until_s=load.decided_s,
        )

    def _replay_on_replicas(self, load: GeneratedLoad) -> Replay:
        from serving.sim.drive.steady_engine import VirtualReplica

        assert not self.config.unsteadiness, "only a single machine has noise"
        engine_config = _engine_config(self.config, self.policy, load.programs)
        replicas = []
        for number in range(self.replicas):
            clock = VirtualTime()
            engine = VirtualReplica(engine_config, clock)
            cost = self.config.machine.step_cost
            replicas.append(Replica(f"{number:02d}", engine, clock, cost))
        return run_fleet(
            load.programs,
            replicas,
            RouterSpec().build(),
            predictor=self._predictor(),
            until_s=load.decided_s,
        ).replay

    def _predictor(self) -> Predictor:
        if self.config.first_period is None:
            return self.config.predictions_of(self.seed)
        rate_per_s = FIRST_PERIOD_LOAD * self.rate_per_s / (self.load * self.replicas)
        return recorded_first_period(self.config, round(rate_per_s, 6), self.seed).learned()


@lru_cache(maxsize=8)
def recorded_first_period(config: ExperimentConfig, rate_per_s: float, seed: int) -> Recorder:
    """The first period of a run, recorded: the same for all policies and loads."""
    assert config.first_period is not None, "predictions are learned"
    programs = config.first_programs(rate_per_s=rate_per_s, seed=seed)
    recorder = config.first_period.learning.recorder(max_tokens=config.no_predictions.max_tokens)
    clock = VirtualTime()
    replay(
        programs,
        virtual_engine(config, PolicySpec("fcfs"), programs, clock),
        clock,
        config.step_time(clock, seed=FIRST_PERIOD_SEED + seed),
        predictor=recorder,
        until_s=math.inf,
    )
    return recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundExperiment:
    """The upper bound on any scheduler's goodput, on the programs of one seed at one load."""

    config: ExperimentConfig
    load: float
    rate_per_s: float
    seed: int
    kind: str = field(default="bound", init=False)

    @property
    def weight(self) -> float:
        """The machine's time that its programs take: comparable between workloads."""
        return self.config.machine_seconds_at(self.load)

    def key(self) -> dict[str, Any]:
        """Everything that the bound depends on, except the code; JSON-safe."""
        return self.config.key() | {"rate_per_s": self.rate_per_s, "seed": self.seed}

    def run(self) -> dict[str, Any]:
        """Token and request goodput, per second of the window."""
        from serving.sim.bound.bound import upper_bound

        load = self.config.generate_load(rate_per_s=self.rate_per_s, seed=self.seed)
        bound = upper_bound(
            load.programs,
            self.config.machine,
            window_s=load.window_s,
            observed_until_s=load.decided_s,
            step_tokens=self.config.step_tokens,
            slots=self.config.slots,
            prefix_caching=self.config.prefix_caching,
        )
        return {
            "token_goodput": bound.token_goodput,
            "request_goodput": bound.request_goodput,
        }


def bound_of(document: Mapping[str, Any]) -> tuple[float, float]:
    """(token, request) goodput of a bound's document."""
    return float(document["token_goodput"]), float(document["request_goodput"])


def virtual_engine(
    config: ExperimentConfig, policy: PolicySpec, programs: Sequence[Program], clock: VirtualTime
) -> SteppedEngine:
    """The production scheduler on the config's machine.

    Raises:
        InvalidWorkload: as `_engine_config`.
    """
    engine_config = _engine_config(config, policy, programs)
    from serving.sim.drive.steady_engine import SteadyEngine  # imports vLLM

    engine: SteppedEngine = SteadyEngine(engine_config, clock)
    return engine


def _engine_config(
    config: ExperimentConfig, policy: PolicySpec, programs: Sequence[Program]
) -> VirtualConfig:
    """The config's machine; its context fits the longest call.

    Raises:
        InvalidWorkload: a call's context is larger than the machine's KV cache. Of a trace every
            call of the file is checked, not only those of these programs.
    """
    longest = max(
        (
            call.call.prompt_tokens + call.call.output_tokens
            for program in programs
            for call in program.all_calls()
        ),
        default=0,
    )
    kv_tokens = config.machine.kv_tokens - config.machine.block_tokens  # vLLM keeps a block empty
    if config.scaling is None:  # scaling cuts long calls
        config.source.check_fits(kv_tokens)
    if longest > kv_tokens:
        reason = f"the machine's KV cache holds {kv_tokens:,} tokens: make the call shorter"
        raise InvalidWorkload("longest call, tokens", longest, reason)
    from serving.sim.drive.virtual_engine import VirtualConfig

    return VirtualConfig(
        policy=policy,
        slots=config.slots,
        step_tokens=config.step_tokens,
        kv_blocks=config.machine.kv_blocks,
        max_model_tokens=max(DEFAULT_CONTEXT_TOKENS, 1 << (longest - 1).bit_length()),
        prefix_caching=config.prefix_caching,
    )


def report_of(load: GeneratedLoad, replayed: Replay) -> Report:
    """The metrics of a replayed load, measured or simulated."""
    return summarise(
        replayed.programs,
        window_s=load.window_s,
        observed_until_s=load.decided_s,
        counters=replayed.counters,
    )


def document_of(load: GeneratedLoad, replayed: Replay) -> dict[str, Any]:
    """The outcome of a replayed load, as an experiment's result document."""
    report = report_of(load, replayed)
    outcome = outcome_of(report, replayed.programs, observed_until_s=load.decided_s)
    return outcome.to_document() | {"trace_repeats": load.repeats}
