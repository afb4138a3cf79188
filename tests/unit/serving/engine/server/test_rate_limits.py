"""Limits on the requests of a key, with a clock that the test sets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from serving.engine.server.api_keys import ApiKey
from serving.engine.server.rate_limits import BUSY_S, MINUTE_S, RateLimits


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_requests_beyond_the_rate_are_refused_until_a_minute_has_passed() -> None:
    clock = Clock()
    limits, key = RateLimits(clock), ApiKey(b"a", requests_per_minute=2)
    assert limits.begin(key) is None
    clock.now_s += 20.5
    assert limits.begin(key) is None
    assert limits.begin(key) == 40  # 39.5 s, rounded up
    clock.now_s += 39.5
    assert limits.begin(key) is None
    assert limits.begin(key) == 21


def test_requests_beyond_the_concurrency_are_refused_until_one_ends() -> None:
    limits, key = RateLimits(Clock()), ApiKey(b"a", concurrency=2)
    assert [limits.begin(key) for _ in range(3)] == [None, None, BUSY_S]
    limits.end(key)
    assert limits.begin(key) is None


def test_a_refused_request_does_not_count() -> None:
    clock = Clock()
    limits, key = RateLimits(clock), ApiKey(b"a", requests_per_minute=2, concurrency=1)
    assert limits.begin(key) is None
    assert limits.begin(key) == BUSY_S
    limits.end(key)
    assert limits.begin(key) is None, "the refused one did not count for the rate"
    limits.end(key)
    assert limits.begin(key) == MINUTE_S
    clock.now_s += MINUTE_S
    assert limits.begin(key) is None, "the refused one does not run"


def test_keys_are_counted_apart_and_without_limits_nothing_is_refused() -> None:
    limits = RateLimits(Clock())
    first, second = ApiKey(b"a", concurrency=1), ApiKey(b"b", concurrency=1)
    assert (limits.begin(first), limits.begin(second)) == (None, None)
    assert all(limits.begin(ApiKey(b"c")) is None for _ in range(1000))


@given(
    waits_s=st.lists(st.floats(min_value=0, max_value=40), max_size=40),
    rate=st.integers(min_value=1, max_value=5),
)
def test_no_minute_has_more_requests_than_the_rate(waits_s: list[float], rate: int) -> None:
    clock = Clock()
    limits, key = RateLimits(clock), ApiKey(b"a", requests_per_minute=rate)
    begun_s = []
    for wait_s in waits_s:
        clock.now_s += wait_s
        if limits.begin(key) is None:
            begun_s.append(clock.now_s)
    windows = zip(begun_s, begun_s[rate:], strict=False)
    assert all(later - earlier >= MINUTE_S for earlier, later in windows)
    assert all(earlier <= later for earlier, later in pairwise(begun_s))
