"""How far the foretold rest of programs was off: of each user, and of all for who is new."""

from __future__ import annotations

import numpy as np
import pytest

from serving.engine.observers.future_bias import (
    CHANCE,
    MOST_OF_OTHERS,
    MOST_OFF,
    PRIOR_CALLS,
    FutureBias,
)
from serving.slo import FutureWork, Slo
from tests.unit.serving.serving_examples import compound

STAGES, TOKENS = 4, 100


def told(stage: int, decode_tokens: float | None, *, stage_calls: int = 1) -> Slo:
    future = None if decode_tokens is None else FutureWork(1, 0, decode_tokens, 0.0, 0.0)
    return compound(60.0, stage=stage, stage_calls=stage_calls, future=future)


class Engine:
    """Programs of four stages of 100 tokens, whose first says that there are so many to come."""

    def __init__(self, users: int = 3) -> None:
        self.bias = FutureBias()
        self.count = 0
        for user in range(users):
            self.bias.begin(user)

    def run(
        self,
        user: int,
        programs: int,
        *,
        off: float,
        errors: float = 0.0,
        calls: int = 1,
        until: int = STAGES,
        is_whole: bool = True,
    ) -> None:
        """Each call foretells what is to come times `off`, and as much more or less by turns."""
        rng = np.random.default_rng(0)
        for _ in range(programs):
            self.count += 1
            for stage in range(until):
                to_come = (STAGES - 1 - stage) * TOKENS * off * np.exp(errors * rng.normal())
                slo = told(stage, to_come, stage_calls=calls)
                names = [f"{self.count}/{stage}/{call}" for call in range(calls)]
                for place, name in enumerate(names):
                    is_new = stage == place == 0
                    self.bias.arrived(name, self.count, slo, is_new=is_new)
                for name in names:
                    self.bias.ended(name, user, TOKENS // calls, is_whole=is_whole)

    def ratios(self, *users: int) -> list[float]:
        found: list[float] = self.bias.ratios(np.array(users, dtype=np.int64)).tolist()
        return found


def test_futures_are_taken_as_foretold_until_some_calls_ended() -> None:
    engine = Engine()
    assert engine.ratios(2, 0, 2) == [1.0, 1.0, 1.0]
    assert engine.ratios() == []
    engine.run(0, 3, off=2.0)
    assert engine.ratios(0) == [1.0]


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize("off", [0.5, 2.0, 3.0])
def test_futures_that_are_off_by_a_factor_are_put_right(off: float, calls: int) -> None:
    engine = Engine()
    engine.run(0, 600, off=off, calls=calls)
    left = np.exp(CHANCE / PRIOR_CALLS**0.5)  # more than is left after so many
    [ratio] = engine.ratios(0)
    assert 1.0 / left < ratio * off < left
    assert (ratio - 1.0) * (1.0 / off - 1.0) > 0.0


def test_what_is_off_by_chance_is_left_alone() -> None:
    engine = Engine()
    engine.run(0, 100, off=1.0, errors=0.4)
    assert engine.ratios(0) == pytest.approx([1.0], abs=0.1)


def test_programs_that_are_given_up_half_way_tell_alike() -> None:
    whole, half = Engine(), Engine()
    whole.run(0, 300, off=2.0)
    half.run(0, 450, off=2.0, until=3)
    assert half.ratios(0) == pytest.approx(whole.ratios(0), rel=0.02)


def test_calls_that_were_given_up_tell_nothing() -> None:
    engine = Engine()
    engine.run(0, 100, off=2.0, is_whole=False)
    assert engine.ratios(0) == [1.0]


def test_who_is_new_is_foretold_as_others_are_up_to_a_factor() -> None:
    engine = Engine()
    engine.run(0, 900, off=3.0)
    engine.run(1, 300, off=1.0)
    theirs, own, new = engine.ratios(0, 1, 2)
    assert theirs < new < own
    engine.run(0, 3000, off=1e6)
    assert engine.ratios(2)[0] > 0.9 / MOST_OF_OTHERS
    assert engine.ratios(0)[0] >= 1.0 / MOST_OFF


def test_a_number_that_is_given_anew_begins_anew() -> None:
    engine = Engine()
    engine.run(0, 300, off=0.3)
    engine.run(1, 1000, off=1.0)
    before = engine.ratios(0)[0]
    engine.bias.begin(0)
    assert before > engine.ratios(0)[0] == engine.ratios(2)[0]


def test_stages_of_which_nothing_was_foretold_tell_nothing() -> None:
    engine = Engine()
    for number in range(200):
        for stage, tokens in enumerate((500.0, None, 400.0)):
            slo = told(stage, tokens)
            engine.bias.arrived(f"{number}/{stage}", number, slo, is_new=not stage)
            engine.bias.ended(f"{number}/{stage}", 0, TOKENS, is_whole=True)
    assert engine.ratios(0) == [1.0]
