"""How often a dead engine is started again."""

from __future__ import annotations

import pytest

from serving.engine.healing.restart_limit import WINDOW_S, may_restart


@pytest.mark.parametrize(
    ("limit", "starts_s", "expected"),
    [
        (0, [], False),
        (1, [], True),
        (2, [1.0], True),
        (2, [1.0, 2.0], False),
        (2, [10.0 - WINDOW_S, 2.0], True),
    ],
)
def test_only_the_starts_of_the_last_ten_minutes_count(
    limit: int, starts_s: list[float], expected: bool
) -> None:
    assert may_restart(limit, starts_s, 10.0) is expected
