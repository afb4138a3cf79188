"""The highest load at which a policy keeps a given share of its promises, found by bisection.

So many machines as one policy needs for a load, another one needs more or fewer: the share that is
saved is 1 - capacity of the other / capacity of the one.

Source: Wu (2025), abstract and chapter 6, first observation (resources saved at the same goodput;
how they are computed is not given); Chen et al., SLOs-Serve (2025), section 6 (capacity at 90% of
the SLOs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, NamedTuple

from serving.sim.compare.capacity import CAPACITY_SEEDS, capacity_of, measurements_of
from serving.sim.compare.compare import Plan, label_of
from serving.sim.compare.experiments import Experiment
from serving.sim.compare.runner import Runner
from serving.sim.compare.task_progress import Progress, TrackedTasks
from serving.workload_errors import InvalidWorkload

LEAST_LOAD, MOST_LOAD = 1 / 64, 64.0
"""Loads beyond which no search goes."""

RESOLUTION = 1.03
"""A search ends when the lowest load that is too high / the highest that is not is at most this."""

MAX_REPLICAS = 64

_BRACKETING = 2
"""Tries that are expected until a search is bracketed."""


@dataclass(frozen=True, slots=True)
class LoadSearch:
    """A search for the highest load at which enough promises are kept.

    It doubles or halves the load until the limit is bracketed, then bisects on a log scale. More
    promises may be kept at a higher load by chance: then it finds one of several limits.

    Attributes:
        kept_at: the highest load at which enough were kept; 0: none yet.
        missed_at: the lowest load at which they were not; infinity: none yet.
        is_stopped: whether it ended early, at a load without any promise.
    """

    kept_at: float = 0.0
    missed_at: float = math.inf
    is_stopped: bool = False

    @property
    def has_limit(self) -> bool:
        """Whether the limit lies between two loads that were tried."""
        return self.kept_at > 0 and math.isfinite(self.missed_at)

    @property
    def next_load(self) -> float | None:
        """The load to try next; None: the search has ended."""
        if self.is_stopped:
            return None
        if not self.kept_at and math.isinf(self.missed_at):
            return 1.0
        if math.isinf(self.missed_at):
            return 2 * self.kept_at if self.kept_at < MOST_LOAD else None
        if not self.kept_at:
            return self.missed_at / 2 if self.missed_at > LEAST_LOAD else None
        is_narrow = self.missed_at / self.kept_at <= RESOLUTION
        return None if is_narrow else float(f"{math.sqrt(self.kept_at * self.missed_at):.4g}")

    def after(self, load: float, *, is_kept: bool) -> LoadSearch:
        """The search after a try."""
        return replace(self, kept_at=load) if is_kept else replace(self, missed_at=load)

    @property
    def tries_left(self) -> int:
        """How many tries are expected until it ends."""
        if self.next_load is None:
            return 0
        ratio = self.missed_at / self.kept_at if self.has_limit else 2.0
        bisections = math.ceil(math.log2(math.log(ratio) / math.log(RESOLUTION)))
        return bisections + (0 if self.has_limit else _BRACKETING)


class Machines(NamedTuple):
    """A policy on a number of machines; `policy` is its label."""

    policy: str
    replicas: int


class Kept(NamedTuple):
    """How many of the promises were kept in the runs of all seeds together."""

    met: int
    promised: int

    @property
    def share(self) -> float:
        """The share that was kept; not a number without promises."""
        return self.met / self.promised if self.promised else math.nan

    @property
    def standard_error(self) -> float:
        """That of the share, as if promises were kept independently of each other."""
        return math.sqrt(self.share * (1 - self.share) / self.promised)


@dataclass(frozen=True, slots=True)
class PromiseCapacities:
    """The results of `find_capacities`.

    Attributes:
        kept_share: the share of the promises that was asked for.
        capacity_programs_s: load 1.0 of one machine, in programs per second.
        searches: in the order of policies, then numbers of machines. A load is per machine.
        tries: of each search, what was kept at each load that was tried, in the order of tries.
        code: version of the code that computed all results.
    """

    plan: Plan
    kept_share: float
    capacity_programs_s: float
    searches: Mapping[Machines, LoadSearch]
    tries: Mapping[Machines, Mapping[float, Kept]]
    code: str

    def kept(self, machines: Machines) -> Kept | None:
        """What was kept at the highest load at which enough was; None: it was at no load."""
        return self.tries[machines].get(self.searches[machines].kept_at)

    def programs_s(self, machines: Machines) -> float | None:
        """The capacity of all machines together, in programs per second; None: not found."""
        kept_at = self.searches[machines].kept_at
        return kept_at * machines.replicas * self.capacity_programs_s if kept_at else None

    def saving(self, machines: Machines, other: str) -> float | None:
        """The share of another policy's machines that this one does not need.

        Negative if it needs more; None if the limit of either was not found.
        """
        own = self.searches[machines]
        reference = self.searches[machines._replace(policy=other)]
        if not (own.has_limit and reference.has_limit):
            return None
        return 1.0 - reference.kept_at / own.kept_at


def check_kept_share(kept_share: float) -> None:
    """Raises InvalidWorkload if this is no share of promises."""
    if not 0 < kept_share < 1:
        raise InvalidWorkload("capacity", kept_share, "must be a share between 0 and 1, like 0.9")


def check_replicas(replicas: Sequence[int]) -> None:
    """Raises InvalidWorkload for numbers of machines that are out of range or repeated."""
    if not replicas or not all(1 <= each <= MAX_REPLICAS for each in replicas):
        reason = f"give numbers of machines from 1 to {MAX_REPLICAS}"
        raise InvalidWorkload("replicas", tuple(replicas), reason)
    if len(set(replicas)) < len(replicas):
        raise InvalidWorkload("replicas", tuple(replicas), "give each number only once")


def find_capacities(
    plan: Plan,
    kept_share: float,
    runner: Runner,
    *,
    replicas: Sequence[int] = (1,),
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> PromiseCapacities:
    """Find each policy's capacity on each number of machines; the plan's loads are not used.

    A promise is a counted program with an SLO; it is kept if the program met it. The share is over
    all seeds together. All open searches try their next loads at once. A search ends early at a
    load so low that no program with an SLO arrives.

    Args:
        kept_share: between 0 and 1.
        replicas: numbers of machines, each with the default router.
    Raises:
        InvalidWorkload: a value is out of range, or no counted program has an SLO at 1.0.
        WorkerDied, CodeChanged, TraceMissing, BadTrace: as `compare.compare`.
    """
    check_kept_share(kept_share)
    check_replicas(replicas)
    config, seeds = plan.config, plan.seeds
    policies = {label_of(policy): policy for policy in plan.policies}
    searches = {Machines(label, number): LoadSearch() for label in policies for number in replicas}
    tries: dict[Machines, dict[float, Kept]] = {machines: {} for machines in searches}
    tracked = TrackedTasks(on_progress)
    tracked.expect(len(CAPACITY_SEEDS) + _left(searches) * len(seeds))
    capacity = capacity_of(tracked.run("capacity", runner, measurements_of(config)))
    while loads := _next_loads(searches):
        config.check(
            rate_per_s=capacity * min(load * each.replicas for each, load in loads.items()),
            seeds=seeds,
        )
        tasks = {
            machines: [
                Experiment(
                    config=config,
                    policy=policies[machines.policy],
                    load=load,
                    rate_per_s=load * machines.replicas * capacity,
                    seed=seed,
                    replicas=machines.replicas,
                )
                for seed in seeds
            ]
            for machines, load in loads.items()
        }
        later_weight = sum(
            (searches[machines].tries_left - 1) * task.weight
            for machines, own in tasks.items()
            for task in own
        )
        tracked.expect(
            tracked.num_done + _left(searches) * len(seeds),
            later_weight=later_weight,
        )
        results = iter(tracked.run("runs", runner, list(chain.from_iterable(tasks.values()))))
        for machines, load in loads.items():
            kept = tries[machines][load] = kept_of(list(islice(results, len(seeds))))
            searches[machines] = _after(searches[machines], load, kept, kept_share)
    if not any(kept.promised for each in tries.values() for kept in each.values()):
        reason = "no program with an SLO arrived in the window: choose a longer one"
        raise InvalidWorkload("window_s", config.window_s, reason)
    return PromiseCapacities(plan, kept_share, capacity, searches, tries, runner.code)


def kept_of(documents: Sequence[Mapping[str, Any]]) -> Kept:
    """The promises that the runs of some seeds made and kept together."""
    counts = [document["report"]["counts"] for document in documents]
    return Kept(sum(each["met"] for each in counts), sum(each["promised"] for each in counts))


def _after(search: LoadSearch, load: float, kept: Kept, kept_share: float) -> LoadSearch:
    if not kept.promised:
        return replace(search, is_stopped=True)
    return search.after(load, is_kept=kept.share >= kept_share)


def _next_loads(searches: Mapping[Machines, LoadSearch]) -> dict[Machines, float]:
    return {
        machines: search.next_load
        for machines, search in searches.items()
        if search.next_load is not None
    }


def _left(searches: Mapping[Machines, LoadSearch]) -> int:
    return sum(search.tries_left for search in searches.values())
