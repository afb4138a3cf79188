"""What is run for a comparison, piece by piece: each a pure function of its own fields.

A piece says what its result depends on (`key`) and computes it (`run`), wherever that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.drive.driver import Replay, VirtualTime, replay
from serving.sim.drive.stepped import SteppedEngine
from serving.sim.metrics.metrics import Report, summarise
from serving.sim.metrics.outcome import outcome_of
from serving.sim.programs.programs import Program
from serving.sim.workloads.load_generator import GeneratedLoad
from serving.workload_errors import InvalidWorkload

DEFAULT_CONTEXT_TOKENS = 65_536


class Task(Protocol):
    """A piece of a comparison."""

    @property
    def sort(self) -> str:
        """What its result is: "run", "capacity" or "bound"."""
        ...

    @property
    def weight(self) -> float:
        """How long it takes, relative to others."""
        ...

    def key(self) -> dict[str, Any]:
        """All that its result depends on but for the code; JSON-safe."""
        ...

    def run(self) -> dict[str, Any]:
        """Its result; JSON-safe."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One policy on the programs of one seed at one load, in virtual time.

    Attributes:
        load: multiple of the workload's capacity, which makes `rate_per_s`.
        rate_per_s: programs a second.
    """

    setting: ExperimentConfig
    policy: PolicySpec
    load: float
    rate_per_s: float
    seed: int
    sort: str = field(default="run", init=False)

    @property
    def weight(self) -> float:
        """Proportional to how many programs there are."""
        return self.setting.programs_at(self.rate_per_s)

    def key(self) -> dict[str, Any]:
        """All that its outcome depends on but for the code; JSON-safe."""
        return self.setting.predictions_key() | {
            "policy": self.policy.to_json(),
            "load": self.load,
            "rate_per_s": self.rate_per_s,
            "seed": self.seed,
        }

    def run(self) -> dict[str, Any]:
        """Its outcome as a document: the same bytes each time, but for schedule_ms_per_step,
        which is measured in real time.

        Raises:
            InvalidWorkload: a call is longer than the machine's memory.
            And what `generate_load` raises.
        """
        offered = self.setting.generated_load(rate_per_s=self.rate_per_s, seed=self.seed)
        return document_of(offered, self.replay(offered))

    def replay(self, offered: GeneratedLoad) -> Replay:
        """All that came of what the setting offers, in virtual time; raises as `run` does."""
        clock = VirtualTime()
        engine = virtual_engine(self.setting, self.policy, offered.programs, clock)
        return replay(
            offered.programs,
            engine,
            clock,
            self.setting.costing(clock, seed=self.seed),
            predictions=self.setting.predictions_of(self.seed),
            until_s=offered.decided_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundExperiment:
    """The upper bound on any scheduler's goodputs, on the programs of one seed at one load."""

    setting: ExperimentConfig
    load: float
    rate_per_s: float
    seed: int
    sort: str = field(default="bound", init=False)

    @property
    def weight(self) -> float:
        """Proportional to how many programs there are."""
        return self.setting.programs_at(self.rate_per_s)

    def key(self) -> dict[str, Any]:
        """All that the bound depends on but for the code; JSON-safe."""
        return self.setting.key() | {"rate_per_s": self.rate_per_s, "seed": self.seed}

    def run(self) -> dict[str, Any]:
        """Both goodputs, per second of the window."""
        from serving.sim.bound.bound import upper_bound

        offered = self.setting.generated_load(rate_per_s=self.rate_per_s, seed=self.seed)
        bound = upper_bound(
            offered.programs,
            self.setting.machine,
            window_s=offered.window_s,
            observed_until_s=offered.decided_s,
            step_tokens=self.setting.step_tokens,
            slots=self.setting.slots,
            prefix_caching=self.setting.prefix_caching,
        )
        return {
            "token_goodput": bound.token_goodput,
            "request_goodput": bound.request_goodput,
        }


def bound_of(document: Mapping[str, Any]) -> tuple[float, float]:
    """(token, request) goodput of a bound's document."""
    return float(document["token_goodput"]), float(document["request_goodput"])


def virtual_engine(
    setting: ExperimentConfig, policy: PolicySpec, programs: Sequence[Program], clock: VirtualTime
) -> SteppedEngine:
    """The production scheduler on this setting's machine, with room for the longest context.

    Raises:
        InvalidWorkload: a call's context is larger than the machine's memory; of a trace any
            call's, whether it is among these programs or not.
    """
    longest = max(
        (
            call.call.prompt_tokens + call.call.output_tokens
            for program in programs
            for call in program.all_calls()
        ),
        default=0,
    )
    room = setting.machine.kv_tokens - setting.machine.block_tokens  # vLLM keeps one block empty
    if setting.scaling is None:  # which cuts long calls
        setting.source.check_room(room)
    if longest > room:
        told = f"the machine has room for {room:,} tokens: make the call shorter"
        raise InvalidWorkload("longest call, tokens", longest, told)
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    config = VirtualConfig(
        policy=policy,
        slots=setting.slots,
        step_tokens=setting.step_tokens,
        kv_blocks=setting.machine.kv_blocks,
        max_model_tokens=max(DEFAULT_CONTEXT_TOKENS, 1 << (longest - 1).bit_length()),
        prefix_caching=setting.prefix_caching,
    )
    engine: SteppedEngine = VirtualEngine(config, clock)
    return engine


def report_of(offered: GeneratedLoad, replayed: Replay) -> Report:
    """What came of an offer, measured or simulated, in numbers."""
    return summarise(
        replayed.programs,
        window_s=offered.window_s,
        observed_until_s=offered.decided_s,
        counters=replayed.counters,
    )


def document_of(offered: GeneratedLoad, replayed: Replay) -> dict[str, Any]:
    """What came of an offer, as the result of a case."""
    report = report_of(offered, replayed)
    outcome = outcome_of(report, replayed.programs, observed_until_s=offered.decided_s)
    return outcome.to_document() | {"trace_repeats": offered.repeats}
