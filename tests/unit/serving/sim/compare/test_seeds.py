"""Seeds: how they are written, shown and used."""

from __future__ import annotations

import pytest

from cli.errors import BadInput
from cli.work.bench_request import seeds_of
from serving.sim.compare.compare import compare
from serving.sim.compare.seeds import purpose_of, seeds_text
from serving.workload_errors import InvalidWorkload
from tests.unit.serving.sim.bench_examples import InProcessRunner, make_plan


@pytest.mark.parametrize(
    ("written", "seeds"),
    [
        ("1", (0,)),
        ("3", (0, 1, 2)),
        (" 3 ", (0, 1, 2)),
        ("10-11", (10, 11)),
        ("10-10", (10,)),
        ("10,12", (10, 12)),
        ("12, 3-4", (12, 3, 4)),
        ("1000", tuple(range(1000))),
    ],
)
def test_one_number_counts_seeds_and_all_else_names_them(
    written: str, seeds: tuple[int, ...]
) -> None:
    assert seeds_of(written) == seeds


@pytest.mark.parametrize("written", ["", "a", "-1", "1.5", "3-", "11-10", "10,,12", "10,", "1 2"])
def test_another_form_is_refused(written: str) -> None:
    with pytest.raises(BadInput, match=r"--seeds .*: write a number of seeds such as 3"):
        seeds_of(written)


@pytest.mark.parametrize("written", ["0", "1001", "9999999999", "3,3", "0-2,1", "0-9999999999"])
def test_none_too_many_and_repeated_seeds_are_refused(written: str) -> None:
    with pytest.raises(InvalidWorkload, match="seeds"):
        seeds_of(written)


@pytest.mark.parametrize(
    ("seeds", "purpose", "text"),
    [
        ((0,), "tuning", "seed 0 (for tuning)"),
        ((0, 1, 2), "tuning", "seeds 0-2 (for tuning)"),
        ((10, 11), "reporting", "seeds 10-11 (for reporting)"),
        ((12, 10), "reporting", "seeds 10,12 (for reporting)"),
        ((9, 10), None, "seeds 9-10"),
        ((0, 1, 5), "tuning", "seeds 0-1,5 (for tuning)"),
    ],
)
def test_a_report_says_what_its_seeds_are_for(
    seeds: tuple[int, ...], purpose: str | None, text: str
) -> None:
    assert purpose_of(seeds) == purpose
    assert seeds_text(seeds) == text


def test_a_comparison_runs_the_seeds_that_it_is_given() -> None:
    comparison = compare(make_plan("fcfs", seeds=(12, 10)), InProcessRunner())
    assert [run.seed for run in comparison.outcomes] == [12, 10, 12, 10]
    assert list(comparison.bounds) == [(0.7, 12), (0.7, 10), (2.0, 12), (2.0, 10)]
    assert [each.tokens for each in comparison.goodputs("fcfs", 2.0)] == [812.0, 810.0]
