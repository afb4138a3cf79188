"""What is kept of one application's past runs, and what is let go.

A library never changes: each operation returns a new one. Times are seconds on any one clock,
which the caller reads; nothing here does.

Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems, section 4.1
(reuse decayed by 0.9 an hour; patterns of low reuse evicted; offline clustering).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from patterns.clustering import Clustering, cluster, cluster_by_silhouette
from patterns.features import PatternTable, tabulate
from patterns.fitting import fit_kernel
from patterns.kernel import DEFAULT_KERNEL, StageKernel, distances
from patterns.matching import Matcher
from patterns.stages import Stage

CAPACITY = 500
"""Most patterns of one application; the thesis finds accuracy saturated by then."""

DECAY_PER_HOUR = 0.9
HOT_S = 3600.0
"""A pattern used within this time is evicted only when no colder one is left."""


def decayed(uses: float, idle_s: float) -> float:
    """A reuse count after so many seconds without use."""
    return float(uses * DECAY_PER_HOUR ** (max(idle_s, 0.0) / 3600.0))


def used_more(uses: float, idle_s: float, amount: float) -> float:
    """A reuse count after so many seconds without use, and then a use of this amount."""
    return decayed(uses, idle_s) + amount


@dataclass(frozen=True, slots=True)
class KeptPattern:
    """A past run in the library.

    Attributes:
        key: the caller's name for it, unique in the library.
        recorded_at_s: when its run ended.
        weight: runs that it stands for, itself included.
        uses: how much estimates rested on it, its own run counting one, decayed to used_at_s.
        used_at_s: when it was last used; never before it was recorded.
    """

    key: int
    stages: tuple[Stage, ...]
    recorded_at_s: float
    weight: float = 1.0
    uses: float = 1.0
    used_at_s: float = -math.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "used_at_s", max(self.used_at_s, self.recorded_at_s))

    def reuse_rate(self, now_s: float) -> float:
        """Its uses against those of a pattern that was used as steadily for as long, unitless.

        Without that the newest would always have the fewest uses, and be the first to go: a
        library at its capacity would never learn again.
        """
        age_s = max(now_s - self.recorded_at_s, 1.0)
        return decayed(self.uses, now_s - self.used_at_s) / (1.0 - decayed(1.0, age_s))


@dataclass(frozen=True)
class PatternLibrary:
    """The patterns of one application and the kernel that compares them."""

    patterns: tuple[KeptPattern, ...] = ()
    kernel: StageKernel = DEFAULT_KERNEL

    def __post_init__(self) -> None:
        keys = {pattern.key for pattern in self.patterns}
        assert len(keys) == len(self.patterns), "a key names one pattern"

    def __len__(self) -> int:
        return len(self.patterns)

    @cached_property
    def table(self) -> PatternTable:
        """The patterns as arrays, a row each."""
        return tabulate([pattern.stages for pattern in self.patterns])

    @cached_property
    def matcher(self) -> Matcher:
        """The library made ready for matching; its rows are those of `patterns`."""
        weights = np.array([pattern.weight for pattern in self.patterns], dtype=np.float64)
        return Matcher(self.table, self.kernel, weights)

    def added(self, patterns: Sequence[KeptPattern]) -> PatternLibrary:
        """With further patterns, as recorded; the arrays of the others are kept."""
        table = self.table.extended([pattern.stages for pattern in patterns])
        return _with_table(PatternLibrary((*self.patterns, *patterns), self.kernel), table)

    def used(self, amounts: Mapping[int, float], at_s: float) -> PatternLibrary:
        """With further uses of these patterns, by key; unknown keys are of evicted ones."""
        changed = [
            replace(
                pattern,
                uses=used_more(pattern.uses, at_s - pattern.used_at_s, amounts[pattern.key]),
                used_at_s=max(pattern.used_at_s, at_s),
            )
            if pattern.key in amounts
            else pattern
            for pattern in self.patterns
        ]
        return _with_table(self._with(changed), self.table)

    def evicted(self, now_s: float, *, capacity: int = CAPACITY) -> PatternLibrary:
        """At most `capacity` patterns: the most reused for their age, and before all those that
        were used in the last hour.

        Of what is reused alike, the oldest goes.
        """
        if len(self) <= capacity:
            return self

        def worth(pattern: KeptPattern) -> tuple[bool, float, float, int]:
            is_hot = now_s - pattern.used_at_s <= HOT_S
            return is_hot, pattern.reuse_rate(now_s), pattern.recorded_at_s, pattern.key

        worthiest = sorted(self.patterns, key=worth, reverse=True)
        kept = {pattern.key for pattern in worthiest[:capacity]}
        return self._with([pattern for pattern in self.patterns if pattern.key in kept])

    def fitted(self) -> PatternLibrary:
        """With the kernel under which its patterns foretell each other best."""
        kernel = fit_kernel(self.table)
        return _with_table(PatternLibrary(self.patterns, kernel), self.table)

    def compacted(self, most: int, *, by_silhouette: bool = False, seed: int = 0) -> PatternLibrary:
        """At most `most` patterns, each standing for those like it.

        Every pattern counts as one run here, so compact what was recorded, not what was
        compacted. A medoid keeps its own uses.

        Args:
            by_silhouette: fewer, where the medoid silhouette says so.
        """
        if not self.patterns or (len(self) <= most and not by_silhouette):
            return self._with([replace(pattern, weight=1.0) for pattern in self.patterns])
        apart = distances(self.table, self.kernel)
        found: Clustering = (
            cluster_by_silhouette(apart, most, seed=seed)
            if by_silhouette
            else cluster(apart, most, seed=seed)
        )
        return self._with(
            [
                replace(self.patterns[row], weight=float(members))
                for row, members in zip(found.medoids, found.members, strict=True)
            ]
        )

    def _with(self, patterns: Sequence[KeptPattern]) -> PatternLibrary:
        return PatternLibrary(tuple(patterns), self.kernel)


def _with_table(library: PatternLibrary, table: PatternTable) -> PatternLibrary:
    """The library with arrays that its cached property need not compute again."""
    assert len(table) == len(library), "a row a pattern"
    library.__dict__["table"] = table
    return library
