"""A suite's comparisons in few numbers: how one policy compares with the best of the others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from serving.policies.table import DEFAULT_POLICY
from serving.sim.compare.compare import Comparison, Goodputs, label_of

BASELINES = ("to_best_rival", "to_fcfs", "of_bound")
"""Kinds of ratios: fields of a Row."""

GOODPUTS = ("tokens", "requests", "mean")
"""Goodputs of a ratio: attributes of Ratios."""

FCFS = "fcfs"
LEAST_RATIO, MOST_RATIO = 0.01, 100.0
"""Limits of a ratio in a geometric mean, which one goodput of 0 would otherwise decide alone."""


class Ratios(NamedTuple):
    """Both goodputs of a policy / those that it is compared with."""

    tokens: float
    requests: float

    @property
    def mean(self) -> float:
        """The mean of the two."""
        return (self.tokens + self.requests) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The reference policy on one workload at one load.

    Attributes:
        goodputs: its own.
        to_best_rival: over the best of the other policies in each goodput; None without others.
        best_rivals: which ones: by tokens, by requests; empty without others.
        to_fcfs: over those of fcfs; None if fcfs is not another policy of the comparison.
        of_bound: share of the upper bound; None if there is none.
    """

    workload: str
    load: float
    goodputs: Goodputs
    to_best_rival: Ratios | None
    best_rivals: tuple[str, ...]
    to_fcfs: Ratios | None
    of_bound: Ratios | None


class Summary(NamedTuple):
    """One kind of ratio over several rows.

    Attributes:
        worst_workload: a workload at which the worst is.
        geometric_mean: of the ratios, each cut to LEAST_RATIO and MOST_RATIO.
        num_cut: how many were cut.
    """

    worst: float
    worst_workload: str
    median: float
    geometric_mean: float
    num_cut: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteReport:
    """A suite's comparisons, summarised for one policy.

    Attributes:
        reference: label of the policy that is compared with the others: calm if it takes part,
            else the last one.
        policies: labels of all policies.
        rows: by load, then in the order of the comparisons.
        goodputs: (workload, load, policy) -> mean over the seeds.
        bounds: (workload, load) -> mean upper bound; empty if there is none.
    """

    reference: str
    policies: tuple[str, ...]
    loads: tuple[float, ...]
    workloads: tuple[str, ...]
    rows: tuple[Row, ...]
    goodputs: Mapping[tuple[str, float, str], Goodputs]
    bounds: Mapping[tuple[str, float], Goodputs]

    def rows_at(self, load: float | None) -> list[Row]:
        """The rows of one load; None: of all."""
        return [row for row in self.rows if load is None or row.load == load]

    def summary(self, baseline: str, goodput: str, load: float | None) -> Summary | None:
        """The summary over the workloads at one load, or over workloads and loads.

        Args:
            baseline: of BASELINES.
            goodput: of GOODPUTS; the mean of both is taken for each row first.
            load: None: all.
        Returns:
            None if there is nothing to compare with.
        """
        found = [(row, getattr(row, baseline)) for row in self.rows_at(load)]
        values = [(row.workload, getattr(ratios, goodput)) for row, ratios in found if ratios]
        return summary_of(values) if values else None


def ratio(value: float, by: float) -> float:
    """value / by for numbers of at least 0; 0 / 0 is 1, and else x / 0 is infinite."""
    if by > 0:
        return value / by
    return math.inf if value > 0 else 1.0


def summary_of(values: Sequence[tuple[str, float]]) -> Summary:
    """Summarise (workload, ratio) pairs; at least one."""
    worst_workload, worst = min(values, key=lambda each: each[1])
    ratios = [value for _, value in values]
    cut = [min(max(value, LEAST_RATIO), MOST_RATIO) for value in ratios]
    return Summary(
        worst,
        worst_workload,
        statistics.median(ratios),
        statistics.geometric_mean(cut),
        sum(value != kept for value, kept in zip(ratios, cut, strict=True)),
    )


def report_of(comparisons: Mapping[str, Comparison]) -> SuiteReport:
    """Summarise comparisons of the same policies and loads, by the name of their workload."""
    plan = next(iter(comparisons.values())).plan
    policies = tuple(map(label_of, plan.policies))
    reference = DEFAULT_POLICY if DEFAULT_POLICY in policies else policies[-1]
    goodputs = {
        (name, load, policy): mean_goodputs(each.goodputs(policy, load))
        for name, each in comparisons.items()
        for load in plan.loads
        for policy in policies
    }
    bounds = {
        (name, load): mean_goodputs(each.bounds_at(load))
        for name, each in comparisons.items()
        for load in plan.loads
        if each.bounds
    }
    rivals = [policy for policy in policies if policy != reference]

    def row(name: str, load: float) -> Row:
        own = goodputs[name, load, reference]
        others = {policy: goodputs[name, load, policy] for policy in rivals}
        best = tuple(max(others, key=lambda policy: others[policy][at]) for at in (0, 1) if others)
        of_best = Goodputs(others[best[0]].tokens, others[best[1]].requests) if best else None
        return Row(
            workload=name,
            load=load,
            goodputs=own,
            to_best_rival=_ratios(own, of_best),
            best_rivals=best,
            to_fcfs=_ratios(own, others.get(FCFS)),
            of_bound=_ratios(own, bounds.get((name, load))),
        )

    return SuiteReport(
        reference=reference,
        policies=policies,
        loads=plan.loads,
        workloads=tuple(comparisons),
        rows=tuple(row(name, load) for load in plan.loads for name in comparisons),
        goodputs=goodputs,
        bounds=bounds,
    )


def mean_goodputs(seeds: Sequence[Goodputs]) -> Goodputs:
    """The mean of each goodput over the seeds."""
    return Goodputs(
        statistics.fmean(each.tokens for each in seeds),
        statistics.fmean(each.requests for each in seeds),
    )


def _ratios(own: Goodputs, others: Goodputs | None) -> Ratios | None:
    if others is None:
        return None
    return Ratios(ratio(own.tokens, others.tokens), ratio(own.requests, others.requests))
