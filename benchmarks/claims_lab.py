"""Runs the settings of the papers: means over seeds, and the highest rate that keeps a promise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.claims_runs import ArrivalTrace, ClaimRun, Conditions
from benchmarks.command import say
from benchmarks.comparing import Session
from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.promise_capacity import LoadSearch
from serving.sim.compare.seeds import check_seeds
from serving.sim.workloads.load_generator import Source

CLUSTERED = "clustered arrivals (gamma)"
AZURE_CONVERSATIONS = "traces/AzureLLMInferenceTrace_conv.csv"
RESOLUTION = 1.1
"""A search for a rate ends when the lowest that is too high is at most so much above the highest
that is not."""

Documents = Sequence[Mapping[str, Any]]


class Cell(NamedTuple):
    """One policy under one set of conditions; all seeds are run."""

    config: ExperimentConfig
    conditions: Conditions
    policy: PolicySpec
    rate_per_s: float


@dataclass(frozen=True, slots=True)
class Lab:
    """What all papers share.

    Attributes:
        azure: the arrivals of Azure's conversations; None: they are not at hand.
        window_s, warmup_s: replace those of every setting, for tests; None: the setting's own.
    Raises:
        InvalidWorkload: a seed, the window or the warm-up is out of range.
    """

    session: Session
    seeds: Sequence[int]
    azure: ArrivalTrace | None = None
    window_s: float | None = None
    warmup_s: float | None = None

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        self.config(ExperimentConfig(source=Source.generator("mixed")))

    @property
    def arrivals(self) -> str:
        """The name of the arrivals that `at_azure_times` gives."""
        return CLUSTERED if self.azure is None else "Azure arrivals"

    def config(self, config: ExperimentConfig) -> ExperimentConfig:
        """A setting's config with this lab's window."""
        return replace(
            config,
            window_s=config.window_s if self.window_s is None else self.window_s,
            warmup_s=config.warmup_s if self.warmup_s is None else self.warmup_s,
        )

    def documents(self, name: str, cells: Sequence[Cell]) -> list[Documents]:
        """The documents of each cell, one per seed; equal cells are run once."""
        tasks = {
            (index, seed): ClaimRun(
                config=self.config(cell.config),
                conditions=cell.conditions,
                policy=cell.policy,
                rate_per_s=cell.rate_per_s,
                seed=seed,
            )
            for index, cell in enumerate(cells)
            if cell not in cells[:index]
            for seed in self.seeds
        }
        done = dict(zip(tasks, self.session.run(name, list(tasks.values())), strict=True))
        firsts = [cells.index(cell) for cell in cells]
        return [[done[first, seed] for seed in self.seeds] for first in firsts]

    def highest_rate(
        self, name: str, cell: Cell, is_kept: Callable[[Documents], bool]
    ) -> float | None:
        """The highest rate, in programs a second, at which the runs of all seeds keep a promise.

        Args:
            cell: its rate is the first one tried.
        Returns:
            None: the promise is kept at no rate that was tried, or at all of them.
        """
        search = LoadSearch()
        while (load := search.next_load) is not None:
            if search.kept_at and search.missed_at / search.kept_at <= RESOLUTION:
                break
            tried = cell._replace(rate_per_s=load * cell.rate_per_s)
            [documents] = self.documents(name, [tried])
            search = search.after(load, is_kept=is_kept(documents))
        if not search.has_limit:
            beyond = "above the highest" if search.kept_at else "below the lowest"
            say(f"{name}: unknown, {beyond} rate that was tried (simulated)")
            return None
        say(f"{name}: {search.kept_at * cell.rate_per_s:.2f} programs a second (simulated)")
        return search.kept_at * cell.rate_per_s


def mean(documents: Documents, name: str) -> float:
    """The mean of one metric over the seeds."""
    return fmean(each[name] for each in documents)


def quotient(value: float | None, other: float | None) -> float | None:
    """value / other; infinite if only the other is 0.

    None: one of them is unknown, or both are 0 or infinite.
    """
    if value is None or other is None:
        return None
    if value == other and (not value or math.isinf(value)):
        return None
    return value / other if other else math.inf


def azure_arrivals(data: Path | None) -> ArrivalTrace | None:
    """The trace below the data folder; None, with a message, if no folder is given.

    Raises:
        TraceMissing, BadTrace: the folder has no such trace, or it cannot be read.
    """
    if data is None:
        say(f"without --data, clustered arrivals (gamma) replace {AZURE_CONVERSATIONS}")
        return None
    return ArrivalTrace.of(data / AZURE_CONVERSATIONS)


def at_azure_times(
    lab: Lab, config: ExperimentConfig, conditions: Conditions | None = None
) -> tuple[ExperimentConfig, Conditions]:
    """The same with Azure's arrivals, or clustered ones where the trace is not at hand."""
    conditions = conditions or Conditions()
    if lab.azure is None:
        return replace(config, arrivals="gamma"), conditions
    return config, replace(conditions, arrivals=lab.azure)
