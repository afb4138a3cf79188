"""What all runs of a comparison have in common: the programs' source, the machine, the window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from serving.sim.drive.live_scale import (
    LiveSettings,
    Scale,
    scaled,
    scaled_load,
    scaled_predictions,
)
from serving.sim.drive.speed_noise import NoisyCost
from serving.sim.programs.predictions import (
    ORACLE_FUTURES,
    ORACLE_LENGTHS,
    FutureErrors,
    LengthErrors,
)
from serving.sim.programs.programs import Program
from serving.sim.programs.promises import Predictions
from serving.sim.workloads.arrivals import ARRIVALS
from serving.sim.workloads.load_generator import (
    GeneratedLoad,
    Source,
    backlog,
    check_trace_timing,
    generate_load,
)
from serving.step_cost import MACHINES, Costing, Machine
from serving.workload_errors import InvalidWorkload

LONGEST_WINDOW_S = 86_400.0
MOST_SLO_SCALE = 1000.0
MOST_UNSTEADINESS = 4.0
DEFAULT_WINDOW_S = 600.0
DEFAULT_WARMUP_S = 60.0
PREDICTIONS = ("learned", "oracle", "none")

MOST_STEP_TOKENS = 1 << 20
"""No machine computes more tokens in a step; beyond that the bound's numbers lose their digits."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """A workload brought down to another machine than the one that its promises are made for."""

    settings: LiveSettings
    scale: Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentConfig:
    """What all cases of a comparison have in common.

    Attributes:
        warmup_s, window_s: programs that arrive within the window, after the warm-up, count.
        arrivals, slo_scale: as `generate_load` takes them.
        predictions: what schedulers are told of the future: "learned" (with a stated error),
            "oracle" (the truth) or "none".
        length_bias, future_bias: what multiplies every learned length, and every number of the
            learned rest of a program; 1 for the others.
        unsteadiness: how far the machine's speed wanders: 0 not at all, 1 about as on a machine
            that is shared with others. Capacities and bounds are those of the steady machine, which
            an unsteady one may exceed for a while.
        slots: most requests in the model runner at once.
        step_tokens: most tokens of one step.
        prefix_caching: whether calls of a program may share the KV cache of a common prefix.
        scaling: None: the machine is of the workload's own size.
    Raises:
        InvalidWorkload: a value is unknown or out of range.
    """

    source: Source
    machine: Machine = MACHINES["a100-llama3-8b"]
    window_s: float = DEFAULT_WINDOW_S
    warmup_s: float = DEFAULT_WARMUP_S
    arrivals: str | None = None
    slo_scale: float = 1.0
    predictions: str = "learned"
    length_bias: float = 1.0
    future_bias: float = 1.0
    unsteadiness: float = 0.0
    slots: int = 256
    step_tokens: int = 2048
    prefix_caching: bool = False
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        if not 1.0 <= self.window_s <= LONGEST_WINDOW_S:
            told = f"must lie within 1 and {LONGEST_WINDOW_S:g}"
            raise InvalidWorkload("window_s", self.window_s, told)
        if not 0.0 <= self.warmup_s <= LONGEST_WINDOW_S:
            told = f"must lie within 0 and {LONGEST_WINDOW_S:g}"
            raise InvalidWorkload("warmup_s", self.warmup_s, told)
        if self.arrivals is not None and self.arrivals not in ARRIVALS:
            told = f"unknown; known: {', '.join(ARRIVALS)}"
            raise InvalidWorkload("arrivals", self.arrivals, told)
        if not 1 / MOST_SLO_SCALE <= self.slo_scale <= MOST_SLO_SCALE:
            told = f"must lie within {1 / MOST_SLO_SCALE:g} and {MOST_SLO_SCALE:g}"
            raise InvalidWorkload("slo_scale", self.slo_scale, told)
        self._check_predictions()
        if not 0.0 <= self.unsteadiness <= MOST_UNSTEADINESS:
            told = f"must lie within 0 and {MOST_UNSTEADINESS:g}"
            raise InvalidWorkload("unsteadiness", self.unsteadiness, told)
        if not 1 <= self.step_tokens <= MOST_STEP_TOKENS:
            told = f"must lie within 1 and {MOST_STEP_TOKENS}"
            raise InvalidWorkload("step_tokens", self.step_tokens, told)
        if not 1 <= self.slots <= self.step_tokens:
            told = f"must lie within 1 and step_tokens ({self.step_tokens})"
            raise InvalidWorkload("slots", self.slots, told)
        if self.prefix_caching:
            self.source.check_prefixes()

    def _check_predictions(self) -> None:
        if self.predictions not in PREDICTIONS:
            told = f"unknown; known: {', '.join(PREDICTIONS)}"
            raise InvalidWorkload("predictions", self.predictions, told)
        for name in ("length_bias", "future_bias"):
            if getattr(self, name) != 1.0 and self.predictions != "learned":
                told = f"predictions of kind {self.predictions} have no bias"
                raise InvalidWorkload(name, getattr(self, name), told)
        LengthErrors(bias=self.length_bias)
        FutureErrors(bias=self.future_bias)

    def predictions_of(self, seed: int) -> Predictions:
        """What schedulers are told; the errors of two seeds are independent."""
        told = self.predicts_nothing
        if self.predictions == "oracle":
            return replace(told, lengths=ORACLE_LENGTHS, futures=ORACLE_FUTURES)
        if self.predictions == "learned":
            lengths = LengthErrors(bias=self.length_bias, seed=seed)
            futures = FutureErrors(bias=self.future_bias, seed=seed)
            return replace(told, lengths=lengths, futures=futures)
        return told

    @property
    def predicts_nothing(self) -> Predictions:
        """What schedulers know of every call in any case: its caller's limit, one for all."""
        told = Predictions(max_tokens=self.source.max_tokens)
        if self.scaling is None:
            return told
        most = self.scaling.settings.most_call_tokens
        return scaled_predictions(told, self.scaling.scale, most_call_tokens=most)

    def check(self, *, rate_per_s: float, num_seeds: int) -> None:
        """See that `generate_load` gives all seeds programs at this rate and above.

        Raises:
            InvalidWorkload, TraceMissing, BadTrace: as check_rhythm, for a trace in its own rhythm.
        """
        if self.source.trace is None or self.arrivals is not None:
            return
        check_trace_timing(
            self.source,
            rate_per_s=rate_per_s * self._faster,
            num_seeds=num_seeds,
            until_s=self.warmup_s / self._faster + self.window_s / self._faster,
        )

    @property
    def _faster(self) -> float:
        """A call's seconds here, over those that the workload has them take."""
        return 1.0 if self.scaling is None else self.scaling.scale.whole

    def generated_load(self, *, rate_per_s: float, seed: int) -> GeneratedLoad:
        """The programs of one run. All times and rates are this machine's, scaled or not."""
        offered = generate_load(
            self.source,
            rate_per_s=rate_per_s * self._faster,
            seed=seed,
            warmup_s=self.warmup_s / self._faster,
            window_s=self.window_s / self._faster,
            arrivals=self.arrivals,
            slo_scale=self.slo_scale,
        )
        if self.scaling is None:
            return offered
        most = self.scaling.settings.most_call_tokens
        return scaled_load(offered, self.scaling.scale, most_call_tokens=most)

    def costing(self, clock: Callable[[], float], *, seed: int) -> Costing:
        """What the steps of one run take."""
        cost = self.machine.step_cost
        if not self.unsteadiness:
            return cost
        return NoisyCost(cost, clock, unsteadiness=self.unsteadiness, seed=seed)

    def backlog(self, *, num_programs: int, seed: int) -> tuple[Program, ...]:
        """Programs that all wait from the start on, and are promised nothing."""
        programs = backlog(self.source, num_programs=num_programs, seed=seed)
        if self.scaling is None:
            return programs
        most = self.scaling.settings.most_call_tokens
        return scaled(programs, self.scaling.scale, most_call_tokens=most)

    def machine_key(self) -> dict[str, Any]:
        """The source and the machine: all that a capacity depends on."""
        return {
            "source": self.source.key(),
            "machine": asdict(self.machine),
            "slots": self.slots,
            "step_tokens": self.step_tokens,
            "prefix_caching": self.prefix_caching,
            "scaling": None if self.scaling is None else asdict(self.scaling),
        }

    def key(self) -> dict[str, Any]:
        """What programs, capacities and bounds depend on; JSON-safe."""
        return self.machine_key() | {
            "window_s": self.window_s,
            "warmup_s": self.warmup_s,
            "arrivals": self.arrivals,
            "slo_scale": self.slo_scale,
        }

    def predictions_key(self) -> dict[str, Any]:
        """The same, what schedulers are told of the future, and how far speeds wander."""
        return self.key() | {
            "predictions": self.predictions,
            "length_bias": self.length_bias,
            "future_bias": self.future_bias,
            "unsteadiness": self.unsteadiness,
        }

    def programs_at(self, rate_per_s: float) -> float:
        """How many programs arrive until the window's end, about."""
        return rate_per_s * (self.warmup_s + self.window_s)
