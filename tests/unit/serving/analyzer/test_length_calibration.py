"""Calibrations: the coverage of levels, over all calls and for each step."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.analyzer.calibration import (
    BOUND_INDEX,
    MIN_SCORES,
    WATCHED_CALLS,
    WINDOW_SCORES,
    Calibration,
)
from serving.analyzer.step_calibration import BLENDING_SCORES, MAX_STEPS, Score, StepCalibrations
from serving.length_sketch import LENGTH_LEVELS
from tests.strategies import law

scores = st.floats(-2, 3)


@law
@given(st.lists(scores, max_size=120))
def test_calibrated_levels_ascend(given_scores: list[float]) -> None:
    levels = Calibration(given_scores).levels
    assert list(levels) == sorted(levels)
    assert len(levels) == len(LENGTH_LEVELS)


@law
@given(st.lists(scores, min_size=MIN_SCORES, max_size=400))
def test_a_calibrated_level_covers_its_share_of_the_scores(given_scores: list[float]) -> None:
    """Counting one future call, the covered share is the level, within one score and ties."""
    bound = Calibration(given_scores).levels[BOUND_INDEX]
    num = len(given_scores)
    assert sum(score <= bound for score in given_scores) >= min(math.ceil(0.9 * (num + 1)), num)
    assert sum(score < bound for score in given_scores) < 0.9 * (num + 1)


@pytest.mark.parametrize("num_scores", [0, MIN_SCORES - 1])
def test_with_few_scores_levels_are_not_remapped(num_scores: int) -> None:
    assert Calibration([0.3] * num_scores).levels == LENGTH_LEVELS


def test_misses_raise_the_level_at_once() -> None:
    calibration = Calibration(number / 400 for number in range(400))
    levels = [calibration.levels[BOUND_INDEX]]
    for _ in range(10):
        calibration.observe(0.5, bound=10.0, truth=20.0)
        levels.append(calibration.levels[BOUND_INDEX])
    assert levels == sorted(levels)
    assert levels[-1] > levels[0] + 0.03


def test_a_miss_changes_less_the_longer_coverage_was_right() -> None:
    def change_after(num_calls: int) -> float:
        calibration = Calibration(number / 400 for number in range(400))
        for number in range(num_calls):
            missed = number % 10 == 9
            calibration.observe(number % 400 / 400, bound=10.0, truth=20.0 if missed else 5.0)
        before = calibration.levels[BOUND_INDEX]
        calibration.observe(0.5, bound=10.0, truth=20.0)
        return calibration.levels[BOUND_INDEX] - before

    assert 0 < change_after(400) < change_after(0) / 2


@pytest.mark.parametrize(("score", "highest"), [(2.0, 2.0), (0.1, LENGTH_LEVELS[-1])])
def test_too_few_scores_for_a_level_give_the_highest_score_or_the_level_itself(
    score: float, highest: float
) -> None:
    """The 0.99 level needs a hundred scores."""
    assert Calibration([score] * MIN_SCORES).levels[-1] == highest


@pytest.mark.parametrize(("truth", "is_shift"), [(20.0, True), (10.0, False), (5.0, True)])
def test_too_many_misses_and_too_loose_bounds_are_shifts(truth: float, is_shift: bool) -> None:
    """An answer exactly at its bound is covered, and does not show that the bound is loose."""
    calibration = Calibration()
    outcomes = [calibration.observe(0.5, bound=10.0, truth=truth) for _ in range(WATCHED_CALLS)]
    assert any(outcomes) == is_shift


def test_only_the_newest_scores_count() -> None:
    calibration = Calibration([5.0] * 1000 + [0.5] * WINDOW_SCORES)
    assert calibration.num_scores == WINDOW_SCORES
    assert set(calibration.levels) == {0.5}


@law
@given(st.lists(st.tuples(st.integers(0, 2), scores), max_size=200), st.integers(0, 3))
def test_the_levels_of_a_step_ascend(given_scores: list[tuple[int, float]], step: int) -> None:
    levels = StepCalibrations(Score(*each) for each in given_scores).levels(step)
    assert all(
        low <= high or low == pytest.approx(high) for low, high in itertools.pairwise(levels)
    )


def test_the_levels_of_a_new_step_are_blended_with_the_common_levels() -> None:
    """The weight of a step's own levels grows with its number of scores."""
    for num_own, share in ((MIN_SCORES - 1, 0.0), (60, 60 / (60 + BLENDING_SCORES))):
        others = [Score(1, 0.2)] * (WINDOW_SCORES - num_own)
        calibrations = StepCalibrations([Score(7, 0.6)] * num_own + others)
        common = calibrations.levels(99)[2]
        assert common == 0.2
        assert calibrations.levels(7)[2] == pytest.approx(0.2 + share * 0.4)


def test_the_number_of_calibrated_steps_is_limited() -> None:
    own = [Score(7, 0.6)] * MIN_SCORES
    others = [Score(100 + step, 0.2) for step in range(MAX_STEPS)]
    calibrations = StepCalibrations([*own, *others])
    assert calibrations.levels(7) == calibrations.levels(8)
