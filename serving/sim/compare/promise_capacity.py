"""The highest load at which a policy keeps a given share of its promises, found by bisection.

So many machines as one policy needs for a load, another one needs more or fewer: the share that is
saved is 1 - capacity of the other / capacity of the one.

Source: Wu (2025), chapter 1 and section 6.2 (resource savings at equal goodput); Chen et al.,
SLOs-Serve (2025), section 6 (capacity at 90% of the SLOs).
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
    """

    kept_at: float = 0.0
    missed_at: float = math.inf

    @property
    def next_load(self) -> float | None:
        """The load to try next; None: the search has ended."""
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
        has_bracket = self.kept_at and not math.isinf(self.missed_at)
        ratio = self.missed_at / self.kept_at if has_bracket else 2.0
        bisections = math.ceil(math.log2(math.log(ratio) / math.log(RESOLUTION)))
        return bisections + (0 if has_bracket else _BRACKETING)


class Machines(NamedTuple):
    """A policy on a number of machines; `policy` is its label."""

    policy: str
    replicas: int


@dataclass(frozen=True, slots=True)
class PromiseCapacities:
    """The results of `find_capacities`.

    Attributes:
        kept_share: the share of the promises that was asked for.
        capacity_programs_s: load 1.0 of one machine, in programs per second.
        searches: in the order of policies, then numbers of machines. A load is per machine.
        code: version of the code that computed all results.
    """

    plan: Plan
    kept_share: float
    capacity_programs_s: float
    searches: Mapping[Machines, LoadSearch]
    code: str

    def programs_s(self, machines: Machines) -> float:
        """The capacity of all machines together, in programs per second."""
        return self.searches[machines].kept_at * machines.replicas * self.capacity_programs_s

    def saving(self, machines: Machines, other: str) -> float | None:
        """The share of another policy's machines that this one does not need; None: it has none.

        Negative if it needs more.
        """
        own = self.searches[machines].kept_at
        if not own:
            return None
        return 1.0 - self.searches[machines._replace(policy=other)].kept_at / own


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
    all seeds together. All open searches try their next loads at once.

    Args:
        kept_share: between 0 and 1.
        replicas: numbers of machines, each with the default router.
    Raises:
        InvalidWorkload: a value is out of range, or no counted program has an SLO.
        WorkerDied, CodeChanged, TraceMissing, BadTrace: as `compare.compare`.
    """
    check_kept_share(kept_share)
    check_replicas(replicas)
    config, seeds = plan.config, plan.seeds
    policies = {label_of(policy): policy for policy in plan.policies}
    searches = {Machines(label, number): LoadSearch() for label in policies for number in replicas}
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
            is_kept = kept_of(list(islice(results, len(seeds)))) >= kept_share
            searches[machines] = searches[machines].after(load, is_kept=is_kept)
    return PromiseCapacities(plan, kept_share, capacity, searches, runner.code)


def kept_of(documents: Sequence[Mapping[str, Any]]) -> float:
    """The share of the promises that the runs of some seeds kept together.

    Raises:
        InvalidWorkload: they made none.
    """
    counts = [document["report"]["counts"] for document in documents]
    promised = sum(each["promised"] for each in counts)
    if not promised:
        reason = "no program with an SLO arrived in the window: choose a longer one"
        raise InvalidWorkload("window_s", tuple(documents[0]["report"]["window_s"]), reason)
    return float(sum(each["met"] for each in counts) / promised)


def _next_loads(searches: Mapping[Machines, LoadSearch]) -> dict[Machines, float]:
    return {
        machines: search.next_load
        for machines, search in searches.items()
        if search.next_load is not None
    }


def _left(searches: Mapping[Machines, LoadSearch]) -> int:
    return sum(search.tries_left for search in searches.values())
