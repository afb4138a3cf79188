"""The configuration that all runs of a comparison share: program source, machine, window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.predictions import (
    ORACLE_FUTURES,
    ORACLE_LENGTHS,
    FutureErrors,
    LengthErrors,
)
from serving.sim.programs.predictor import Learning
from serving.sim.programs.programs import Program
from serving.sim.workloads.arrivals import ARRIVALS
from serving.sim.workloads.load_generator import (
    GeneratedLoad,
    Source,
    backlog,
    check_trace_timing,
    generate_load,
    poisson_programs,
)
from serving.step_cost import MACHINES, Machine, StepTimeModel
from serving.workload_errors import InvalidWorkload

MAX_WINDOW_S = 86_400.0
MAX_SLO_SCALE = 1000.0
MAX_UNSTEADINESS = 4.0
DEFAULT_WINDOW_S = 600.0
DEFAULT_WARMUP_S = 60.0
PREDICTIONS = ("noisy", "learned", "oracle", "none")
FIRST_PERIOD_RUNS = 100
MAX_FIRST_PERIOD_RUNS = 100_000
FIRST_PERIOD_LOAD = 0.7
FIRST_PERIOD_SEED = 1_000_000
"""Added to a run's seed for its first period, which has other programs."""

MAX_STEP_TOKENS = 1 << 20
"""More than any machine computes in a step; above it the bound would lose numerical precision."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a workload is scaled to a machine other than the one that its SLOs are meant for."""

    settings: LiveSettings
    scale: Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPeriod:
    """Programs that are recorded and learned from before a run.

    They arrive at FIRST_PERIOD_LOAD under fcfs, whatever the run's own load and policy, so that all
    runs of a comparison know the same.

    Attributes:
        source: None: that of the run, which must be a generator.
    Raises:
        InvalidWorkload: num_runs is out of range.
    """

    learning: Learning
    num_runs: int = FIRST_PERIOD_RUNS
    source: Source | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.num_runs <= MAX_FIRST_PERIOD_RUNS:
            reason = f"must be between 0 and {MAX_FIRST_PERIOD_RUNS:,}"
            raise InvalidWorkload("first period, runs", self.num_runs, reason)

    def key(self) -> dict[str, Any]:
        """The part of the cache key; JSON-safe."""
        return self.learning.key() | {
            "num_runs": self.num_runs,
            "source": None if self.source is None else self.source.key(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentConfig:
    """The configuration that all experiments of a comparison share.

    Attributes:
        warmup_s, window_s: programs that arrive within the window, after the warm-up, count.
        arrivals, slo_scale: as in `load_generator.generate_load`.
        predictions: what schedulers see of the future: "noisy" (the truth with a stated error),
            "learned" (from the programs of a first period), "oracle" (the truth) or "none".
        length_bias, future_bias: factors on every noisy length, and on every number of the
            noisy future work of a program; 1 unless predictions are "noisy".
        first_period: of learned predictions; None with others.
        unsteadiness: how much the machine's speed varies: 0 not at all, 1 about as on a machine
            that is shared with others. Capacities and bounds are those of the steady machine, which
            an unsteady one may exceed for a while.
        slots: most requests in the model runner at once.
        step_tokens: most tokens of one step.
        prefix_caching: whether calls of a program may share the KV cache of a common prefix.
        scaling: None: the workload is not scaled.
    Raises:
        InvalidWorkload: a value is unknown or out of range.
    """

    source: Source
    machine: Machine = MACHINES["a100-llama3-8b"]
    window_s: float = DEFAULT_WINDOW_S
    warmup_s: float = DEFAULT_WARMUP_S
    arrivals: str | None = None
    slo_scale: float = 1.0
    predictions: str = "noisy"
    length_bias: float = 1.0
    future_bias: float = 1.0
    first_period: FirstPeriod | None = None
    unsteadiness: float = 0.0
    slots: int = 256
    step_tokens: int = 2048
    prefix_caching: bool = False
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        if not 1.0 <= self.window_s <= MAX_WINDOW_S:
            reason = f"must be between 1 and {MAX_WINDOW_S:g}"
            raise InvalidWorkload("window_s", self.window_s, reason)
        if not 0.0 <= self.warmup_s <= MAX_WINDOW_S:
            reason = f"must be between 0 and {MAX_WINDOW_S:g}"
            raise InvalidWorkload("warmup_s", self.warmup_s, reason)
        if self.arrivals is not None and self.arrivals not in ARRIVALS:
            reason = f"unknown; known: {', '.join(ARRIVALS)}"
            raise InvalidWorkload("arrivals", self.arrivals, reason)
        if not 1 / MAX_SLO_SCALE <= self.slo_scale <= MAX_SLO_SCALE:
            reason = f"must be between {1 / MAX_SLO_SCALE:g} and {MAX_SLO_SCALE:g}"
            raise InvalidWorkload("slo_scale", self.slo_scale, reason)
        self._check_predictions()
        if not 0.0 <= self.unsteadiness <= MAX_UNSTEADINESS:
            reason = f"must be between 0 and {MAX_UNSTEADINESS:g}"
            raise InvalidWorkload("unsteadiness", self.unsteadiness, reason)
        if not 1 <= self.step_tokens <= MAX_STEP_TOKENS:
            reason = f"must be between 1 and {MAX_STEP_TOKENS}"
            raise InvalidWorkload("step_tokens", self.step_tokens, reason)
        if not 1 <= self.slots <= self.step_tokens:
            reason = f"must be between 1 and step_tokens ({self.step_tokens})"
            raise InvalidWorkload("slots", self.slots, reason)
        if self.prefix_caching:
            self.source.check_prefixes()

    def _check_predictions(self) -> None:
        if self.predictions not in PREDICTIONS:
            reason = f"unknown; known: {', '.join(PREDICTIONS)}"
            raise InvalidWorkload("predictions", self.predictions, reason)
        for name in ("length_bias", "future_bias"):
            if getattr(self, name) != 1.0 and self.predictions != "noisy":
                reason = f"predictions of kind {self.predictions} have no bias"
                raise InvalidWorkload(name, getattr(self, name), reason)
        if (self.predictions == "learned") != (self.first_period is not None):
            reason = "only learned predictions have a first period, and all of them have one"
            raise InvalidWorkload("predictions", self.predictions, reason)
        if self.first_period and not self.first_period.source and self.source.trace:
            reason = "its own programs cannot be learned from: give another file with --learn-from"
            raise InvalidWorkload("trace", self.source.file_name, reason)
        LengthErrors(bias=self.length_bias)
        FutureErrors(bias=self.future_bias)

    @property
    def named_arrivals(self) -> str | None:
        """The process that was asked for, or the workload's own.

        None: the trace's own times, or a Poisson process that was not asked for.
        """
        own = self.source.arrivals
        return self.arrivals or (own if own != "poisson" else None)

    def predictions_of(self, seed: int) -> Predictions:
        """What schedulers see if nothing is learned; the errors of two seeds are independent."""
        predictions = self.no_predictions
        if self.predictions == "oracle":
            return replace(predictions, lengths=ORACLE_LENGTHS, futures=ORACLE_FUTURES)
        if self.predictions == "noisy":
            lengths = LengthErrors(bias=self.length_bias, seed=seed)
            futures = FutureErrors(bias=self.future_bias, seed=seed)
            return replace(predictions, lengths=lengths, futures=futures)
        return predictions

    @property
    def no_predictions(self) -> Predictions:
        """No lengths and no futures; only `max_tokens`, which is the same for all calls."""
        predictions = Predictions(max_tokens=self.source.max_tokens)
        if self.scaling is None:
            return predictions
        limit = self.scaling.settings.most_call_tokens
        return scaled_predictions(predictions, self.scaling.scale, most_call_tokens=limit)

    def check(self, *, rate_per_s: float, seeds: Sequence[int]) -> None:
        """Check that `generate_load` has programs for these seeds at this rate and higher ones.

        Raises:
            InvalidWorkload, TraceMissing, BadTrace: as check_trace_timing, for a trace that keeps
                its own arrival times.
        """
        if self.source.trace is None or self.arrivals is not None:
            return
        check_trace_timing(
            self.source,
            rate_per_s=rate_per_s * self._time_scale,
            seeds=seeds,
            until_s=self.warmup_s / self._time_scale + self.window_s / self._time_scale,
        )

    @property
    def _time_scale(self) -> float:
        """Duration of a call here / its duration on the workload's own machine."""
        return 1.0 if self.scaling is None else self.scaling.scale.call_time

    def generate_load(self, *, rate_per_s: float, seed: int) -> GeneratedLoad:
        """The programs of one run; all times and rates are on this config's machine."""
        load = generate_load(
            self.source,
            rate_per_s=rate_per_s * self._time_scale,
            seed=seed,
            warmup_s=self.warmup_s / self._time_scale,
            window_s=self.window_s / self._time_scale,
            arrivals=self.arrivals,
            slo_scale=self.slo_scale,
        )
        if self.scaling is None:
            return load
        limit = self.scaling.settings.most_call_tokens
        return scaled_load(load, self.scaling.scale, most_call_tokens=limit)

    def step_time(self, clock: Callable[[], float], *, seed: int) -> StepTimeModel:
        """The step cost of one run, with noise if the machine is unsteady."""
        cost = self.machine.step_cost
        if not self.unsteadiness:
            return cost
        return NoisyCost(cost, clock, unsteadiness=self.unsteadiness, seed=seed)

    def backlog(self, *, num_programs: int, seed: int) -> tuple[Program, ...]:
        """Programs without an SLO that all arrive at time 0."""
        programs = backlog(self.source, num_programs=num_programs, seed=seed)
        if self.scaling is None:
            return programs
        limit = self.scaling.settings.most_call_tokens
        return scaled(programs, self.scaling.scale, most_call_tokens=limit)

    def first_programs(self, *, rate_per_s: float, seed: int) -> tuple[Program, ...]:
        """The programs of a run's first period."""
        assert self.first_period is not None, "predictions are learned"
        programs = poisson_programs(
            self.first_period.source or self.source,
            num_programs=self.first_period.num_runs,
            rate_per_s=rate_per_s * self._time_scale,
            seed=FIRST_PERIOD_SEED + seed,
            slo_scale=self.slo_scale,
        )
        if self.scaling is None:
            return programs
        limit = self.scaling.settings.most_call_tokens
        return scaled(programs, self.scaling.scale, most_call_tokens=limit)

    def machine_key(self) -> dict[str, Any]:
        """The part of the cache key that capacities depend on; JSON-safe."""
        return {
            "source": self.source.key(),
            "machine": asdict(self.machine),
            "slots": self.slots,
            "step_tokens": self.step_tokens,
            "prefix_caching": self.prefix_caching,
            "scaling": None if self.scaling is None else asdict(self.scaling),
        }

    def key(self) -> dict[str, Any]:
        """The part of the cache key that programs and bounds depend on; JSON-safe."""
        return self.machine_key() | {
            "window_s": self.window_s,
            "warmup_s": self.warmup_s,
            "arrivals": self.arrivals,
            "slo_scale": self.slo_scale,
        }

    def predictions_key(self) -> dict[str, Any]:
        """The part of the cache key that runs depend on: also predictions and speed noise."""
        return self.key() | {
            "predictions": self.predictions,
            "length_bias": self.length_bias,
            "future_bias": self.future_bias,
            "first_period": None if self.first_period is None else self.first_period.key(),
            "unsteadiness": self.unsteadiness,
        }

    def machine_seconds_at(self, load: float) -> float:
        """Seconds that a machine at load 1 is busy with the programs until the window's end."""
        return load * (self.warmup_s + self.window_s)

    def programs_at(self, rate_per_s: float) -> float:
        """Mean number of programs that arrive until the window's end."""
        return rate_per_s * (self.warmup_s + self.window_s)
