"""Lengths: how many tokens a prompt or an answer has, from the few numbers that papers print."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from serving.workload_errors import InvalidWorkload

MOST_CALL_TOKENS = 32768
"""Longest prompt or answer of one call (assumed: no table prints its maximum)."""

USUAL_ANSWER_TOKENS = 4096
"""The limit that callers set on every answer (max_tokens) where few would be longer (assumed)."""

MOST_PROGRAM_TOKENS = 4 * MOST_CALL_TOKENS
"""Most prompt or answer tokens of a whole program (assumed)."""

_NORMAL = NormalDist()
_WIDEST = 10.0  # of a sigma: an answer of 20,000 times the median at one standard deviation


@dataclass(frozen=True, slots=True)
class Lengths:
    """Whole token counts from a lognormal distribution, those above `most` set to `most`.

    Attributes:
        median: tokens, at least 1.
        sigma: standard deviation of the logarithm.
        most: tokens, at least the median.
    Raises:
        InvalidWorkload: a value is out of range.
    """

    median: float
    sigma: float
    most: float = MOST_CALL_TOKENS

    def __post_init__(self) -> None:
        if not 1 <= self.median <= self.most < math.inf:
            raise InvalidWorkload("median", self.median, f"must lie within 1 and {self.most}")
        if not 0 <= self.sigma <= _WIDEST:
            raise InvalidWorkload("sigma", self.sigma, f"must lie within 0 and {_WIDEST}")

    def sample(self, rng: np.random.Generator) -> int:
        """One length, at least 1."""
        tokens = self.median * math.exp(self.sigma * rng.standard_normal())
        return max(round(min(tokens, self.most)), 1)

    def quantile(self, level: float) -> float:
        """The length not exceeded with this probability, before rounding; level in (0, 1)."""
        return min(self.median * math.exp(self.sigma * _NORMAL.inv_cdf(level)), self.most)

    @property
    def mean(self) -> float:
        """The mean length, before rounding."""
        if self.sigma == 0:
            return self.median
        cut = math.log(self.most / self.median) / self.sigma
        below = self.median * math.exp(self.sigma**2 / 2) * _NORMAL.cdf(cut - self.sigma)
        return below + self.most * (1 - _NORMAL.cdf(cut))


def by_mean_and_median(*, mean: float, median: float, most: float = MOST_CALL_TOKENS) -> Lengths:
    """The distribution with this mean and this median, with what is cut off taken into account.

    A lognormal has two parameters: other numbers of a table are then a check, not reproduced.

    Raises:
        InvalidWorkload: the mean is below the median, or too far above it for `most`.
    """
    if not (median <= mean and Lengths(median, _WIDEST, most).mean >= mean):
        raise InvalidWorkload("mean", mean, f"no lognormal of median {median} has it")
    low, high = 0.0, _WIDEST
    for _ in range(60):  # the mean ascends with sigma
        sigma = (low + high) / 2
        if Lengths(median, sigma, most).mean < mean:
            low = sigma
        else:
            high = sigma
    return Lengths(median, high, most)


def by_mean_and_std(*, mean: float, std: float, most: float = MOST_CALL_TOKENS) -> Lengths:
    """The lognormal distribution with this mean and standard deviation, were nothing cut off.

    Raises:
        InvalidWorkload: a value is out of range.
    """
    if not (mean > 0 and std >= 0):
        raise InvalidWorkload("mean", mean, "mean must be above 0, and std at least 0")
    variance = math.log1p((std / mean) ** 2)
    return Lengths(mean * math.exp(-variance / 2), math.sqrt(variance), most)


def by_median_and_quantile(
    *, median: float, upper: float, level: float, most: float = MOST_CALL_TOKENS
) -> Lengths:
    """The distribution with this median and this upper quantile at `level`, above 0.5.

    Raises:
        InvalidWorkload: the quantile is below the median, or the level not within (0.5, 1).
    """
    if not (0.5 < level < 1 and 0 < median <= upper):
        raise InvalidWorkload("upper", upper, f"must be a quantile above the median {median}")
    return Lengths(median, math.log(upper / median) / _NORMAL.inv_cdf(level), most)


@dataclass(frozen=True, slots=True)
class Pair:
    """The lengths of a prompt and of its answer, drawn independently (no table relates them)."""

    prompt: Lengths
    output: Lengths


def _medians(
    *, prompt: tuple[float, float], output: tuple[float, float], most: float = MOST_CALL_TOKENS
) -> Pair:
    """Rows of a table with (mean, P50)."""
    return Pair(
        by_mean_and_median(mean=prompt[0], median=prompt[1], most=most),
        by_mean_and_median(mean=output[0], median=output[1], most=most),
    )


def _deviations(*, prompt: tuple[float, float], output: tuple[float, float]) -> Pair:
    """Rows of a table with (mean, standard deviation)."""
    return Pair(
        by_mean_and_std(mean=prompt[0], std=prompt[1]),
        by_mean_and_std(mean=output[0], std=output[1]),
    )


# Wu (2025), table 6.1 (mean, P50); its chatbot rows are those of Tempo, table 2. The P95 come
# out within 20% of the table's; the standard deviation of deep-research prompts does not (the
# table's 2,781 is too little for a lognormal with its mean and P50).
CHATBOT = _medians(prompt=(93, 27), output=(318, 225))
CHATBOT_PROGRAM = _medians(prompt=(1300, 1097), output=(4458, 4417), most=MOST_PROGRAM_TOKENS)
DEEP_RESEARCH = _medians(prompt=(1911, 403), output=(534, 410))
DEEP_RESEARCH_PROGRAM = _medians(
    prompt=(12223, 10807), output=(3541, 3148), most=MOST_PROGRAM_TOKENS
)

# Tempo, table 2, "LC-Workload": mean, P50.
LONG_ANSWERS = _medians(prompt=(76, 49), output=(482, 422))
LONG_ANSWERS_PROGRAM = _medians(prompt=(1064, 983), output=(6744, 6703), most=MOST_PROGRAM_TOKENS)

# SLOs-Serve, table 4: mean, standard deviation. Its P99 are not reproduced.
CHAT = _deviations(prompt=(763, 424), output=(266, 160))
CODER = _deviations(prompt=(847, 617), output=(26, 47))
SUMMARIZER = _deviations(prompt=(1333, 444), output=(202, 234))
TOOLS = _deviations(prompt=(690, 356), output=(116, 66))
REASONING = _deviations(prompt=(127, 83), output=(4693, 1442))  # the thinking
REASONING_RESPONSE = by_mean_and_std(mean=803, std=280)

# Bari et al., table 1 (openchat_sharegpt4): median, P90. Its standard deviation of the decode
# length (101) cannot be meant beside a P90 419 above the median, so that it is left out.
SHAREGPT = Pair(
    by_median_and_quantile(median=1730, upper=5696, level=0.9),
    by_median_and_quantile(median=415, upper=834, level=0.9),
)
