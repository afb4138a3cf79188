"""How many replicas a load needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.replicas.scaling import wanted_replicas
from tests.strategies import law

pressures = st.lists(st.floats(0.0, 50.0), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("given_pressures", "current", "wanted"),
    [
        ([0.0, 0.0], 2, 1),
        ([0.7, 0.7], 2, 2),
        ([0.9, 0.9], 2, 3),
        ([2.4], 1, 3),
        ([0.4, 0.4], 2, 2),  # one alone would have 0.8
        ([0.2, 0.2], 2, 1),
        ([], 1, 1),  # none has reported yet
        ([0.9], 3, 2),  # two of three still load
    ],
)
def test_replicas_are_added_under_pressure_and_removed_with_a_margin(
    given_pressures: list[float], current: int, wanted: int
) -> None:
    assert wanted_replicas(given_pressures, current) == wanted


@law
@given(pressures)
def test_a_wanted_number_is_kept_under_the_same_load(given_pressures: list[float]) -> None:
    wanted = wanted_replicas(given_pressures, len(given_pressures))
    assert wanted_replicas(given_pressures, wanted) == wanted
