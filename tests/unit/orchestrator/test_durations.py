"""Durations: which texts and numbers are accepted, and how durations are formatted."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.durations import Duration, seconds_of, shown
from orchestrator.errors import InvalidDuration

UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


@given(
    number=st.decimals(min_value="0.001", max_value=10**9, places=3),
    unit=st.sampled_from(sorted(UNIT_S)),
    before=st.sampled_from(["", " ", "\t "]),
    between=st.sampled_from(["", " "]),
)
def test_the_seconds_of_a_text_are_its_number_times_its_unit(
    number: Decimal, unit: str, before: str, between: str
) -> None:
    assert seconds_of(f"{before}{number}{between}{unit}\n") == float(number) * UNIT_S[unit]


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False))
def test_a_positive_finite_number_is_that_many_seconds(seconds: float) -> None:
    assert seconds_of(seconds) == seconds


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("60s", 60),
        ("2m", 120),
        ("1.5h", 5400),
        ("30d", 2_592_000),
        ("500ms", 0.5),
        ("7", 7),
        (".5s", 0.5),
        ("3.", 3),
        ("2 minutes", 120),
        ("1 minute", 60),
        ("1h 30m", 5400),
        ("1h30m", 5400),
        ("1 hour 30 minutes 1 second", 5401),
        ("1 day 2h", 93_600),
        ("5sec", 5),
        ("1.5 min", 90),
        ("1s 500 milliseconds", 1.5),
        (timedelta(minutes=2), 120),
        (timedelta(microseconds=1), 1e-6),
    ],
)
def test_common_forms_of_durations_are_accepted(written: Duration, seconds: float) -> None:
    assert seconds_of(written) == seconds


@pytest.mark.parametrize(
    "bad",
    [
        *("", " ", "s", "ms", "parsecs", "5 parsecs", "5 S", "5secs", "1,5s", "1_000s"),
        *("1h 30", "30m 1h", "1h 1h", "2 Minutes", "1h and 5m", "1h -5m", "1h 2s 3m"),
        *("-1s", "+1s", "1e3", "1e3s", "0x10", "nan", "inf", "infinity", "NaNs", "٣s", "5s\0"),
        *("0", "0s", "0.0h", "0ms", 0, 0.0, -0.0, -1, -0.5, math.nan, math.inf, -math.inf),
        *("9" * 400, "9" * 5000 + "h", 10**400, -(10**400), 10**5000),
        *(timedelta(0), timedelta(seconds=-1)),
        *(None, True, False, b"5s", [5], (5,), {"s": 5}, object, 5j, Decimal(5)),
    ],
    ids=lambda bad: str(type(bad).__name__) if isinstance(bad, int) else repr(bad)[:20],
)
def test_anything_but_a_positive_finite_time_is_refused_with_an_example(bad: object) -> None:
    with pytest.raises(InvalidDuration, match=r"60s, 2m, 1\.5h or 500ms") as refused:
        seconds_of(bad)  # type: ignore[arg-type]
    assert isinstance(refused.value, ValueError)


@given(st.text())
def test_any_text_is_a_positive_finite_duration_or_refused(text: str) -> None:
    try:
        seconds = seconds_of(text)
    except InvalidDuration:
        return
    assert 0 < seconds < math.inf


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0204, "20 ms"),
        (0.9996, "1.0 s"),
        (1, "1.0 s"),
        (59.94, "59.9 s"),
        (119.96, "2.0 min"),
        (120, "2.0 min"),
        (7199, "2.0 h"),
        (7200, "2.0 h"),
        (-3, "-3.0 s"),
    ],
)
def test_a_duration_is_formatted_in_a_suitable_unit(seconds: float, text: str) -> None:
    assert shown(seconds) == text


@given(st.floats(min_value=0.001, max_value=1e7))
def test_a_formatted_duration_is_within_5_percent_of_its_value(seconds: float) -> None:
    number, unit = shown(seconds).split(" ")
    shown_s = float(number) * {"ms": 0.001, "s": 1, "min": 60, "h": 3600}[unit]
    assert shown_s == pytest.approx(seconds, rel=0.5 if seconds < 0.02 else 0.05)
