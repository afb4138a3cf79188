"""Predictions for schedulers: true lengths and future work, with a stated error."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from statistics import NormalDist

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.sim.programs.programs import Program
from serving.slo import FutureWork
from serving.workload_errors import InvalidWorkload

_NORMAL = NormalDist()
_LEVEL_SCORES = tuple(_NORMAL.inv_cdf(level) for level in LENGTH_LEVELS)
_MAX_FACTOR = 1000.0
_MAX_SIGMA = 5.0  # at one standard deviation a prediction is wrong by a factor of 148


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthErrors:
    """The error of predicted output lengths.

    A prediction is a lognormal distribution with median truth * ratio * bias * exp(sigma * z) and
    this sigma, where z is standard normal and drawn once per call. With ratio and bias 1 its
    quantiles are calibrated. The defaults overestimate, as upper bounds do. z depends on the seed
    and the call's id only, so neither the policy nor the order of predictions matters.

    Attributes:
        ratio: typical median of a prediction / the true length.
        sigma: of the logarithm; both the error of a prediction's median and its spread.
        bias: factor of a systematic error, such as 2 or 0.5.
    Raises:
        InvalidWorkload: a value is out of range.
    """

    ratio: float = 1.4
    sigma: float = 0.4
    bias: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_factor("ratio", self.ratio)
        _check_factor("bias", self.bias)
        _check_sigma(self.sigma)

    def sketch(self, call_id: str, output_tokens: int) -> LengthSketch:
        """The prediction for a call (`StageCall.call_id`) of this true length, in tokens."""
        centre = output_tokens * self.ratio * self.bias
        if self.sigma:
            centre *= math.exp(self.sigma * _score("length", self.seed, call_id))
        return LengthSketch(
            tuple(max(centre * math.exp(self.sigma * score), 1.0) for score in _LEVEL_SCORES)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureErrors:
    """The error of a compound program's predicted future work.

    Every number of a prediction, also the number of later stages, is the truth times one common
    factor bias * exp(sigma * z). z is standard normal and drawn once per stage of a program, from
    the seed, the program's id and the stage.

    Attributes:
        sigma: of the logarithm.
        bias: factor of a systematic error, such as 2 or 0.5.
    Raises:
        InvalidWorkload: a value is out of range.
    """

    sigma: float = 0.4
    bias: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_factor("bias", self.bias)
        _check_sigma(self.sigma)

    def future(
        self, program: Program, stage: int, *, token_s: float, prefill_token_s: float
    ) -> FutureWork:
        """The predicted work of a program after one of its stages; all 0 after the last.

        A stage takes the seconds of its slowest call without queueing, and of the tool before it.
        The path ends where the second part of the last answer begins.

        Args:
            token_s: seconds of one decode step.
            prefill_token_s: seconds to prefill one token.
        """
        later = program.stages[stage + 1 :]
        calls = [call for each in later for call in each.calls]
        tool_s = math.fsum(each.tool_s for each in later)
        compute_s = math.fsum(
            max(
                call.prompt_tokens * prefill_token_s + call.whole_tokens * token_s
                for call in each.calls
            )
            for each in later
        )
        truth = FutureWork(
            calls=len(calls),
            prefill_tokens=sum(call.prompt_tokens for call in calls),
            decode_tokens=sum(call.output_tokens for call in calls),
            critical_s=compute_s + tool_s,
            tool_s=tool_s,
            serial_tokens=sum(max(call.whole_tokens for call in each.calls) for each in later),
        )
        factor = self._factor(program, stage)
        return FutureWork(*(part * factor for part in truth))

    def later_stages(self, program: Program, stage: int) -> float:
        """The predicted number of stages after one: the truth times the same factor."""
        return (len(program.stages) - stage - 1) * self._factor(program, stage)

    def _factor(self, program: Program, stage: int) -> float:
        if not self.sigma:
            return self.bias
        score = _score("future", self.seed, f"{program.id}/{stage}")
        return self.bias * math.exp(self.sigma * score)


def _score(name: str, seed: int, key: str) -> float:
    """A standard normal number, a pure function of the arguments."""
    digest = hashlib.sha256(f"{name}:{seed}:{key}".encode()).digest()
    return _NORMAL.inv_cdf((int.from_bytes(digest[:6], "big") + 0.5) / 2**48)


def _check_factor(name: str, value: float) -> None:
    if not 0 < value <= _MAX_FACTOR:
        raise InvalidWorkload(name, value, f"must be above 0 and at most {_MAX_FACTOR}")


def _check_sigma(sigma: float) -> None:
    if not 0 <= sigma <= _MAX_SIGMA:
        raise InvalidWorkload("sigma", sigma, f"must be between 0 and {_MAX_SIGMA}")


ORACLE_LENGTHS = LengthErrors(ratio=1.0, sigma=0.0)
"""Every quantile is the true length."""

ORACLE_FUTURES = FutureErrors(sigma=0.0)
"""The true future work, at the given speed of an idle machine."""
