"""Lengths: samples have the statistics that the papers print."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.sim.programs import lengths
from serving.sim.programs.lengths import (
    Lengths,
    by_mean_and_median,
    by_mean_and_std,
    by_median_and_quantile,
)
from serving.workload_errors import InvalidWorkload
from tests.strategies import law

medians = st.floats(1, 10_000)
seeds = st.integers(0, 2**32)

WU_AND_TEMPO = {  # mean, P50, P95
    "chatbot prompt": (lengths.CHATBOT.prompt, 93, 27, 391),
    "chatbot output": (lengths.CHATBOT.output, 318, 225, 1024),
    "chatbot program prompt": (lengths.CHATBOT_PROGRAM.prompt, 1300, 1097, 2767),
    "chatbot program output": (lengths.CHATBOT_PROGRAM.output, 4458, 4417, 6452),
    "deep research prompt": (lengths.DEEP_RESEARCH.prompt, 1911, 403, 7573),
    "deep research output": (lengths.DEEP_RESEARCH.output, 534, 410, 1544),
    "deep research program prompt": (lengths.DEEP_RESEARCH_PROGRAM.prompt, 12223, 10807, 29282),
    "deep research program output": (lengths.DEEP_RESEARCH_PROGRAM.output, 3541, 3148, 7525),
    "long answers prompt": (lengths.LONG_ANSWERS.prompt, 76, 49, 229),
    "long answers output": (lengths.LONG_ANSWERS.output, 482, 422, 1024),
    "long answers program prompt": (lengths.LONG_ANSWERS_PROGRAM.prompt, 1064, 983, 1713),
    "long answers program output": (lengths.LONG_ANSWERS_PROGRAM.output, 6744, 6703, 8120),
}
SLOS_SERVE = {  # mean, standard deviation
    "chat prompt": (lengths.CHAT.prompt, 763, 424),
    "chat output": (lengths.CHAT.output, 266, 160),
    "coder prompt": (lengths.CODER.prompt, 847, 617),
    "coder output": (lengths.CODER.output, 26, 47),
    "reasoning prompt": (lengths.REASONING.prompt, 127, 83),
    "reasoning thinking": (lengths.REASONING.output, 4693, 1442),
    "reasoning response": (lengths.REASONING_RESPONSE, 803, 280),
    "summarizer prompt": (lengths.SUMMARIZER.prompt, 1333, 444),
    "summarizer output": (lengths.SUMMARIZER.output, 202, 234),
    "tools prompt": (lengths.TOOLS.prompt, 690, 356),
    "tools output": (lengths.TOOLS.output, 116, 66),
}


def draw(distribution: Lengths, count: int = 20_000) -> np.ndarray:
    rng = np.random.default_rng(5)
    return np.array([distribution.sample(rng) for _ in range(count)])


@pytest.mark.parametrize(
    ("distribution", "mean", "median", "p95"), WU_AND_TEMPO.values(), ids=WU_AND_TEMPO.keys()
)
def test_tables_with_percentiles_are_reproduced(
    distribution: Lengths, mean: float, median: float, p95: float
) -> None:
    sample = draw(distribution)
    standard_error = sample.std() / math.sqrt(len(sample))
    assert sample.mean() == pytest.approx(mean, abs=4 * standard_error + 0.5)
    assert np.median(sample) == pytest.approx(median, rel=0.05)
    assert distribution.quantile(0.95) == pytest.approx(p95, rel=0.2)


@pytest.mark.parametrize(
    ("distribution", "mean", "std"), SLOS_SERVE.values(), ids=SLOS_SERVE.keys()
)
def test_tables_with_deviations_are_reproduced(
    distribution: Lengths, mean: float, std: float
) -> None:
    sample = draw(distribution)
    assert sample.mean() == pytest.approx(mean, abs=4 * std / math.sqrt(len(sample)) + 0.5)
    assert sample.std() == pytest.approx(std, rel=0.1)


@pytest.mark.parametrize(
    ("distribution", "median", "p90"),
    [(lengths.SHAREGPT.prompt, 1730, 5696), (lengths.SHAREGPT.output, 415, 834)],
)
def test_a_table_with_a_p90_is_reproduced(distribution: Lengths, median: float, p90: float) -> None:
    assert distribution.median == median
    assert distribution.quantile(0.9) == pytest.approx(p90)
    assert np.percentile(draw(distribution), 90) == pytest.approx(p90, rel=0.05)


@law
@given(medians, st.floats(0, 5), seeds)
def test_a_length_is_a_whole_number_within_its_limits(
    median: float, sigma: float, seed: int
) -> None:
    length = Lengths(median, sigma).sample(np.random.default_rng(seed))
    assert isinstance(length, int)
    assert 1 <= length <= lengths.MAX_CALL_TOKENS


@law
@given(medians, st.floats(1, 3), st.floats(1, 1e5))
def test_the_fitted_mean_holds_after_the_cut_at_the_cap(
    median: float, times: float, cap: float
) -> None:
    try:
        distribution = by_mean_and_median(mean=median * times, median=median, cap=cap)
    except InvalidWorkload:
        assert cap < median * times * 3
    else:
        assert distribution.mean == pytest.approx(median * times, rel=1e-6)


@law
@given(medians, st.floats(0, 2))
def test_the_mean_holds_for_any_standard_deviation(mean: float, relative_std: float) -> None:
    distribution = by_mean_and_std(mean=10 + mean, std=relative_std * (10 + mean), cap=1e12)
    assert distribution.mean == pytest.approx(10 + mean)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lengths(0.5, 1.0),
        lambda: Lengths(10.0, -1.0),
        lambda: Lengths(10.0, math.nan),
        lambda: Lengths(math.nan, 1.0),
        lambda: Lengths(10.0, 1.0, cap=5.0),
        lambda: by_mean_and_median(mean=5, median=10),
        lambda: by_mean_and_median(mean=90, median=10, cap=100),
        lambda: by_mean_and_std(mean=0, std=1),
        lambda: by_mean_and_std(mean=1, std=-1),
        lambda: by_median_and_quantile(median=10, upper=5, level=0.9),
        lambda: by_median_and_quantile(median=10, upper=50, level=0.5),
    ],
)
def test_statistics_that_fit_no_distribution_are_rejected(make: object) -> None:
    assert callable(make)
    with pytest.raises(InvalidWorkload):
        make()
