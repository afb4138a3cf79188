"""Distributions of prompt and answer lengths, fitted to the statistics that papers print."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from serving.workload_errors import InvalidWorkload

MAX_CALL_TOKENS = 32768
"""Longest prompt or answer of one call (assumed: no table prints its maximum)."""

DEFAULT_MAX_TOKENS = 4096
"""The max_tokens that callers set on every answer if few answers would be longer (assumed)."""

MAX_PROGRAM_TOKENS = 4 * MAX_CALL_TOKENS
"""Longest prompts, or answers, of a whole program in sum (assumed)."""

_NORMAL = NormalDist()
_MAX_SIGMA = 10.0  # at one standard deviation an answer is 20,000 times the median


@dataclass(frozen=True, slots=True)
class Lengths:
    """Whole token counts from a lognormal distribution; larger ones are cut to `cap`.

    Attributes:
        median: tokens, at least 1.
        sigma: standard deviation of the logarithm.
        cap: tokens, at least the median.
    Raises:
        InvalidWorkload: a value is out of range.
    """

    median: float
    sigma: float
    cap: float = MAX_CALL_TOKENS

    def __post_init__(self) -> None:
        if not 1 <= self.median <= self.cap < math.inf:
            raise InvalidWorkload("median", self.median, f"must be between 1 and {self.cap}")
        if not 0 <= self.sigma <= _MAX_SIGMA:
            raise InvalidWorkload("sigma", self.sigma, f"must be between 0 and {_MAX_SIGMA}")

    def sample(self, rng: np.random.Generator) -> int:
        """One length, at least 1."""
        tokens = self.median * math.exp(self.sigma * rng.standard_normal())
        return max(round(min(tokens, self.cap)), 1)

    def quantile(self, level: float) -> float:
        """The quantile at a level in (0, 1), before rounding."""
        return min(self.median * math.exp(self.sigma * _NORMAL.inv_cdf(level)), self.cap)

    @property
    def mean(self) -> float:
        """The mean length, before rounding."""
        if self.sigma == 0:
            return self.median
        cap_score = math.log(self.cap / self.median) / self.sigma
        below = self.median * math.exp(self.sigma**2 / 2) * _NORMAL.cdf(cap_score - self.sigma)
        return below + self.cap * (1 - _NORMAL.cdf(cap_score))


def by_mean_and_median(*, mean: float, median: float, cap: float = MAX_CALL_TOKENS) -> Lengths:
    """The distribution with this mean, after the cut at `cap`, and this median.

    A lognormal has two parameters. Further statistics of a table are a check; they are not fitted.

    Raises:
        InvalidWorkload: the mean is below the median, or too far above it for `cap`.
    """
    if not (median <= mean and Lengths(median, _MAX_SIGMA, cap).mean >= mean):
        raise InvalidWorkload("mean", mean, f"no lognormal with median {median} has this mean")
    low, high = 0.0, _MAX_SIGMA
    for _ in range(60):  # bisection: the mean increases with sigma
        sigma = (low + high) / 2
        if Lengths(median, sigma, cap).mean < mean:
            low = sigma
        else:
            high = sigma
    return Lengths(median, high, cap)


def by_mean_and_std(*, mean: float, std: float, cap: float = MAX_CALL_TOKENS) -> Lengths:
    """The lognormal distribution with this mean and standard deviation before the cut at `cap`.

    Raises:
        InvalidWorkload: a value is out of range.
    """
    if not (mean > 0 and std >= 0):
        raise InvalidWorkload("mean", mean, "the mean must be above 0, and std at least 0")
    variance = math.log1p((std / mean) ** 2)
    return Lengths(mean * math.exp(-variance / 2), math.sqrt(variance), cap)


def by_median_and_quantile(
    *, median: float, upper: float, level: float, cap: float = MAX_CALL_TOKENS
) -> Lengths:
    """The distribution with this median and this upper quantile at `level`, above 0.5.

    Raises:
        InvalidWorkload: the quantile is below the median, or the level is not in (0.5, 1).
    """
    if not (0.5 < level < 1 and 0 < median <= upper):
        raise InvalidWorkload("upper", upper, f"must be a quantile above the median {median}")
    return Lengths(median, math.log(upper / median) / _NORMAL.inv_cdf(level), cap)


@dataclass(frozen=True, slots=True)
class LengthPair:
    """The lengths of a prompt and its answer; independent, as no table relates them."""

    prompt: Lengths
    output: Lengths


def _medians(
    *, prompt: tuple[float, float], output: tuple[float, float], cap: float = MAX_CALL_TOKENS
) -> LengthPair:
    """From a table's (mean, P50)."""
    return LengthPair(
        by_mean_and_median(mean=prompt[0], median=prompt[1], cap=cap),
        by_mean_and_median(mean=output[0], median=output[1], cap=cap),
    )


def _deviations(*, prompt: tuple[float, float], output: tuple[float, float]) -> LengthPair:
    """From a table's (mean, standard deviation)."""
    return LengthPair(
        by_mean_and_std(mean=prompt[0], std=prompt[1]),
        by_mean_and_std(mean=output[0], std=output[1]),
    )


# Wu (2025), table 6.1 (mean, P50); its chatbot rows are those of Tempo, table 2. The resulting P95
# are within 20% of the table's. The standard deviation of deep-research prompts is not: the table's
# 2,781 is too small for a lognormal with its mean and P50.
CHATBOT = _medians(prompt=(93, 27), output=(318, 225))
CHATBOT_PROGRAM = _medians(prompt=(1300, 1097), output=(4458, 4417), cap=MAX_PROGRAM_TOKENS)
DEEP_RESEARCH = _medians(prompt=(1911, 403), output=(534, 410))
DEEP_RESEARCH_PROGRAM = _medians(prompt=(12223, 10807), output=(3541, 3148), cap=MAX_PROGRAM_TOKENS)

# Tempo, table 2, "LC-Workload": mean, P50.
LONG_ANSWERS = _medians(prompt=(76, 49), output=(482, 422))
LONG_ANSWERS_PROGRAM = _medians(prompt=(1064, 983), output=(6744, 6703), cap=MAX_PROGRAM_TOKENS)

# SLOs-Serve, table 4: mean, standard deviation. Its P99 are not reproduced.
CHAT = _deviations(prompt=(763, 424), output=(266, 160))
CODER = _deviations(prompt=(847, 617), output=(26, 47))
SUMMARIZER = _deviations(prompt=(1333, 444), output=(202, 234))
TOOLS = _deviations(prompt=(690, 356), output=(116, 66))
REASONING = _deviations(prompt=(127, 83), output=(4693, 1442))  # the thinking
REASONING_RESPONSE = by_mean_and_std(mean=803, std=280)

# Splitwise, section III: medians; the means are those of its public trace.
CODE_COMPLETION = _medians(prompt=(2048, 1500), output=(28, 13), cap=8192)

# Mooncake (2025), table 2, synthetic trace: means; the medians are assumed.
DOCUMENTS = _medians(prompt=(15325, 12000), output=(149, 100), cap=65536)

# TraceLab (2026), Codex, new tokens of a call: a quarter of P50 and P90, as the machines are small.
AGENT_TURN = LengthPair(
    by_median_and_quantile(median=886 / 4, upper=8310 / 4, level=0.9, cap=2048),
    by_median_and_quantile(median=184 / 4, upper=939 / 4, level=0.9, cap=1024),
)

# Bari et al., table 1 (openchat_sharegpt4): median, P90. Its standard deviation of the decode
# length (101) contradicts its P90, 419 above the median, and is not used.
SHAREGPT = LengthPair(
    by_median_and_quantile(median=1730, upper=5696, level=0.9),
    by_median_and_quantile(median=415, upper=834, level=0.9),
)
