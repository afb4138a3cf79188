"""The pattern library of one application: past runs, their reuse, eviction and compaction.

A library is immutable: each operation returns a new one. Times are seconds on one clock, which the
caller reads.

Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems, section 4.1
(reuse decayed by 0.9 an hour; patterns of low reuse evicted; offline clustering).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from patterns.clustering import Clustering, cluster, cluster_by_silhouette
from patterns.features import PatternTable, tabulate
from patterns.fitting import fit_kernel
from patterns.kernel import DEFAULT_KERNEL, StageKernel, distances
from patterns.library_svg import DrawnRun, patterns_picture
from patterns.matching import Matcher
from patterns.stages import Stage
from patterns.svg import Picture

CAPACITY = 500
"""Limit on the patterns of one application; by then accuracy is saturated (Wu (2025))."""

DECAY_PER_HOUR = 0.9
"""Factor by which a reuse count decays in an hour (Wu (2025), section 4.1)."""

HOT_S = 3600.0
"""A pattern that was used within so many seconds is evicted only when no other one is left."""


def decayed(uses: float, idle_s: float) -> float:
    """A reuse count after `idle_s` seconds without use."""
    return float(uses * DECAY_PER_HOUR ** (max(idle_s, 0.0) / 3600.0))


def used_more(uses: float, idle_s: float, amount: float) -> float:
    """A reuse count after `idle_s` seconds without use, followed by a use of this amount."""
    return decayed(uses, idle_s) + amount


@dataclass(frozen=True, slots=True)
class KeptPattern:
    """A past run in the library.

    Attributes:
        key: the caller's id for it, unique in the library.
        recorded_at_s: when its run ended.
        weight: number of runs that it represents, itself included.
        uses: sum of its weights in estimates, plus 1 for its own run; decayed to used_at_s.
        used_at_s: when it was last used; at least recorded_at_s.
        is_cut_off: whether its run was cut off by its deadline, so that it would have gone on.
    """

    key: int
    stages: tuple[Stage, ...]
    recorded_at_s: float
    weight: float = 1.0
    uses: float = 1.0
    used_at_s: float = -math.inf
    is_cut_off: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "used_at_s", max(self.used_at_s, self.recorded_at_s))

    def _repr_html_(self) -> str:
        return patterns_picture([_drawn(self)]).html

    def reuse_rate(self, now_s: float) -> float:
        """Its uses relative to its age, unitless: uses / (1 - decay over its age).

        The divisor is proportional to the uses of a pattern of the same age that is used steadily.
        Without it the newest patterns would have the fewest uses and be evicted first, so that a
        full library would never learn new patterns.
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
        assert len(keys) == len(self.patterns), "a key belongs to one pattern"

    def __len__(self) -> int:
        return len(self.patterns)

    @property
    def svg(self) -> str:
        """The patterns as a picture of its own: the share of time that each stage took."""
        return self._picture().svg

    def _repr_html_(self) -> str:
        return self._picture().html

    def _picture(self) -> Picture:
        newest_first = reversed(self.patterns)
        return patterns_picture([_drawn(pattern) for pattern in newest_first])

    @cached_property
    def table(self) -> PatternTable:
        """The patterns as arrays, one row each."""
        return tabulate(
            [pattern.stages for pattern in self.patterns],
            is_cut_off=[pattern.is_cut_off for pattern in self.patterns],
        )

    @cached_property
    def matcher(self) -> Matcher:
        """The matcher of these patterns; its rows are the indexes into `patterns`."""
        weights = np.array([pattern.weight for pattern in self.patterns], dtype=np.float64)
        return Matcher(self.table, self.kernel, weights)

    def added(self, patterns: Sequence[KeptPattern]) -> PatternLibrary:
        """The library with further patterns; the table is extended, not computed again."""
        table = self.table.extended(
            [pattern.stages for pattern in patterns],
            is_cut_off=[pattern.is_cut_off for pattern in patterns],
        )
        return _with_table(PatternLibrary((*self.patterns, *patterns), self.kernel), table)

    def without(self, keys: Collection[int]) -> PatternLibrary:
        """The library without the patterns of these keys."""
        kept = [pattern for pattern in self.patterns if pattern.key not in keys]
        return self if len(kept) == len(self) else self._with(kept)

    def used(self, amounts: Mapping[int, float], at_s: float) -> PatternLibrary:
        """The library with further uses of some patterns.

        Args:
            amounts: pattern key -> amount; keys of evicted patterns are ignored.
        """
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
        """The library with at most `capacity` patterns.

        Kept are first the patterns used within HOT_S, then those with the highest reuse rate; of
        equal ones the newest.
        """
        if len(self) <= capacity:
            return self

        def rank(pattern: KeptPattern) -> tuple[bool, float, float, int]:
            is_hot = now_s - pattern.used_at_s <= HOT_S
            return is_hot, pattern.reuse_rate(now_s), pattern.recorded_at_s, pattern.key

        best_first = sorted(self.patterns, key=rank, reverse=True)
        kept = {pattern.key for pattern in best_first[:capacity]}
        return self._with([pattern for pattern in self.patterns if pattern.key in kept])

    def fitted(self) -> PatternLibrary:
        """The library with the kernel with which its patterns predict each other best."""
        kernel = fit_kernel(self.table)
        return _with_table(PatternLibrary(self.patterns, kernel), self.table)

    def compacted(
        self, max_patterns: int, *, by_silhouette: bool = False, seed: int = 0
    ) -> PatternLibrary:
        """The medoids of the library's clusters; their weights are the sizes of the clusters.

        Every pattern counts as one run, whatever its weight, so compact recorded patterns rather
        than a compacted library. A medoid keeps its own uses.

        Args:
            by_silhouette: choose the number of medoids by the medoid silhouette.
        """
        if not self.patterns or (len(self) <= max_patterns and not by_silhouette):
            return self._with([replace(pattern, weight=1.0) for pattern in self.patterns])
        distance_matrix = distances(self.table, self.kernel)
        clustering: Clustering = (
            cluster_by_silhouette(distance_matrix, max_patterns, seed=seed)
            if by_silhouette
            else cluster(distance_matrix, max_patterns, seed=seed)
        )
        return self._with(
            [
                replace(self.patterns[row], weight=float(members))
                for row, members in zip(clustering.medoids, clustering.members, strict=True)
            ]
        )

    def _with(self, patterns: Sequence[KeptPattern]) -> PatternLibrary:
        return PatternLibrary(tuple(patterns), self.kernel)


def _drawn(pattern: KeptPattern) -> DrawnRun:
    return DrawnRun(pattern.weight, pattern.stages, pattern.is_cut_off)


def _with_table(library: PatternLibrary, table: PatternTable) -> PatternLibrary:
    """The library with this table cached, so that it is not computed again."""
    assert len(table) == len(library), "the table has one row for each pattern"
    library.__dict__["table"] = table
    return library
