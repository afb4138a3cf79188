"""FutureBias: the ratio of true to predicted future tokens, of a user and of all users."""

from __future__ import annotations

import numpy as np
import pytest

from serving.engine.observers.future_bias import (
    CHANCE,
    MAX_RATIO,
    MAX_SHARED_RATIO,
    PRIOR_CALLS,
    FutureBias,
)
from serving.slo import FutureWork, Slo
from tests.unit.serving.serving_examples import compound

NUM_STAGES, STAGE_TOKENS = 4, 100


def slo_of(stage: int, decode_tokens: float | None, *, stage_calls: int = 1) -> Slo:
    """The SLO of a call that predicts this future."""
    future = None if decode_tokens is None else FutureWork(1, 0, decode_tokens, 0.0, 0.0)
    return compound(60.0, stage=stage, stage_calls=stage_calls, future=future)


class Engine:
    """Runs programs of four stages with 100 decode tokens each."""

    def __init__(self, num_users: int = 3) -> None:
        self.bias = FutureBias()
        self.num_programs = 0
        for user in range(num_users):
            self.bias.begin(user)

    def run(
        self,
        user: int,
        programs: int,
        *,
        factor: float,
        errors: float = 0.0,
        calls: int = 1,
        until: int = NUM_STAGES,
        is_complete: bool = True,
    ) -> None:
        """Run programs; calls predict `factor` times the true future, with log-normal errors."""
        rng = np.random.default_rng(0)
        for _ in range(programs):
            self.num_programs += 1
            for stage in range(until):
                noise = np.exp(errors * rng.normal())
                predicted = (NUM_STAGES - 1 - stage) * STAGE_TOKENS * factor * noise
                slo = slo_of(stage, predicted, stage_calls=calls)
                names = [f"{self.num_programs}/{stage}/{call}" for call in range(calls)]
                for index, name in enumerate(names):
                    is_new = stage == index == 0
                    self.bias.arrived(name, self.num_programs, slo, is_new=is_new)
                for name in names:
                    self.bias.ended(name, user, STAGE_TOKENS // calls, is_complete=is_complete)

    def ratios(self, *users: int) -> list[float]:
        ratios: list[float] = self.bias.ratios(np.array(users, dtype=np.int64)).tolist()
        return ratios


def test_futures_are_not_corrected_before_enough_calls_have_ended() -> None:
    engine = Engine()
    assert engine.ratios(2, 0, 2) == [1.0, 1.0, 1.0]
    assert engine.ratios() == []
    engine.run(0, 3, factor=2.0)
    assert engine.ratios(0) == [1.0]


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize("factor", [0.5, 2.0, 3.0])
def test_futures_that_are_wrong_by_a_factor_are_corrected(factor: float, calls: int) -> None:
    engine = Engine()
    engine.run(0, 600, factor=factor, calls=calls)
    tolerance = np.exp(CHANCE / PRIOR_CALLS**0.5)  # more than remains after so many calls
    [ratio] = engine.ratios(0)
    assert 1.0 / tolerance < ratio * factor < tolerance
    assert (ratio - 1.0) * (1.0 / factor - 1.0) > 0.0


def test_random_errors_are_not_corrected() -> None:
    engine = Engine()
    engine.run(0, 100, factor=1.0, errors=0.4)
    assert engine.ratios(0) == pytest.approx([1.0], abs=0.1)


def test_programs_that_are_aborted_half_way_give_the_same_ratio() -> None:
    whole, half = Engine(), Engine()
    whole.run(0, 300, factor=2.0)
    half.run(0, 450, factor=2.0, until=3)
    assert half.ratios(0) == pytest.approx(whole.ratios(0), rel=0.02)


def test_aborted_calls_do_not_count() -> None:
    engine = Engine()
    engine.run(0, 100, factor=2.0, is_complete=False)
    assert engine.ratios(0) == [1.0]


def test_a_new_user_has_the_ratio_of_all_users_within_limits() -> None:
    engine = Engine()
    engine.run(0, 900, factor=3.0)
    engine.run(1, 300, factor=1.0)
    wrong, right, new = engine.ratios(0, 1, 2)
    assert wrong < new < right
    engine.run(0, 3000, factor=1e6)
    assert engine.ratios(2)[0] > 0.9 / MAX_SHARED_RATIO
    assert engine.ratios(0)[0] >= 1.0 / MAX_RATIO


def test_a_reused_number_has_the_ratio_of_a_new_user() -> None:
    engine = Engine()
    engine.run(0, 300, factor=0.3)
    engine.run(1, 1000, factor=1.0)
    before = engine.ratios(0)[0]
    engine.bias.begin(0)
    assert before > engine.ratios(0)[0] == engine.ratios(2)[0]


def test_stages_without_a_predicted_future_do_not_count() -> None:
    engine = Engine()
    for number in range(200):
        for stage, tokens in enumerate((500.0, None, 400.0)):
            slo = slo_of(stage, tokens)
            engine.bias.arrived(f"{number}/{stage}", number, slo, is_new=not stage)
            engine.bias.ended(f"{number}/{stage}", 0, STAGE_TOKENS, is_complete=True)
    assert engine.ratios(0) == [1.0]
