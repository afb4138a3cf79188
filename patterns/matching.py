"""Matches a live run with past runs that began with the same calls, to predict its next stage.

A live prefix is extended stage by stage. Patterns without the calls that it has made are pruned;
the distances of the others are updated by those of the new stage, so that the cost of a stage does
not depend on the length of the run. The prediction is the kernel-weighted mean of the nearest
patterns.

Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems, section 4.1
(pattern-graph matching); Zhang et al. (2025), Tempo, section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from patterns.censoring import completed_outlooks
from patterns.features import Bools, Call, Floats, Outlook, PatternTable, calls_of, stage_features
from patterns.kernel import StageKernel
from patterns.stages import Stage

BEST_K = 16
"""Number of patterns in an estimate; chosen by benchmarks/patterns.py."""

_FIELDS = Outlook._fields
_SHARE, _ELAPSED, _STAGE = (_FIELDS.index(f) for f in ("share", "elapsed_s", "stage_s"))


class Match(NamedTuple):
    """A past pattern in an estimate.

    Attributes:
        row: its row in the matcher's table.
        similarity: of its prefix and the live one, in [0, 1].
        weight: its weight in the mean; the weights of all matches sum to 1.
    """

    row: int
    similarity: float
    weight: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """The prediction of the stage that begins now, from the matching past runs.

    Attributes:
        outlook: kernel-weighted means of the past runs' seconds and tokens; `share` is computed
            from the means: (elapsed_s + stage_s) / (elapsed_s + rest_s).
        share_before: the accumulated share at the end of the previous stage, 0 for the first.
        spread: weighted standard deviation of the matches' own accumulated shares.
        matches: nearest first; of equally near ones the later rows, which are newer, first.
        num_candidates: patterns that began with the same calls; `matches` are the nearest of them.
    """

    outlook: Outlook
    share_before: float
    spread: float
    matches: tuple[Match, ...]
    num_candidates: int

    def heaviest(self) -> list[Match]:
        """The BEST_K matches with the largest weights, the largest first."""
        return sorted(self.matches, key=lambda match: -match.weight)[:BEST_K]


@dataclass(frozen=True, eq=False, slots=True)
class LiveMatch:
    """The match of a live run's prefix with all n patterns. Immutable: `extend` returns a new one.

    Attributes:
        num_stages: stages of the prefix.
        squared: shape (n,), squared distances summed over these stages.
        alive: shape (n,), whether a pattern has made all the calls of the prefix.
    """

    matcher: Matcher
    num_stages: int
    squared: Floats
    alive: Bools

    @property
    def is_possible(self) -> bool:
        """Whether any pattern has made all the calls of the prefix."""
        return bool(self.alive.any())

    def extend(self, stage: Stage) -> LiveMatch:
        """The match of the prefix and a further stage; all calls of this stage have ended."""
        table, kernel = self.matcher.table, self.matcher.kernel
        if self.num_stages >= table.features.shape[1]:
            none_alive = np.zeros_like(self.alive)
            return LiveMatch(self.matcher, self.num_stages + 1, self.squared, none_alive)
        past = table.features[:, self.num_stages]
        return LiveMatch(
            self.matcher,
            self.num_stages + 1,
            self.squared + kernel.squared_distances(past, stage_features(stage)),
            self.alive & self._has_calls(calls_of(stage)),
        )

    def estimate(self, known_calls: Iterable[Call] = (), *, best: int = BEST_K) -> Estimate | None:
        """The prediction of the stage after the prefix; None if no pattern matches.

        Args:
            known_calls: calls that are known to be made in it.
            best: number of nearest patterns to use, plus those exactly as near as the last one.
                A medoid counts as one pattern, although its weight is the number of runs that it
                represents: otherwise a few medoids would make up the estimate.
        """
        table = self.matcher.table
        if self.num_stages >= table.features.shape[1]:
            return None
        candidates = np.flatnonzero(self.alive & self._has_calls(known_calls))
        if not len(candidates):
            return None
        rows, squared = self._nearest(candidates, best)
        # Relative to the nearest pattern: otherwise all weights could underflow to 0.
        relative = self.matcher.kernel.similarity(squared - squared[0], self.num_stages)
        weights = relative * self.matcher.weights[rows]
        weights /= weights.sum()
        outlooks = self.matcher.outlooks[rows, self.num_stages]
        similarity = self.matcher.kernel.similarity(squared, self.num_stages)
        return _estimate(rows, similarity, weights, outlooks, len(candidates))

    def _has_calls(self, calls: Iterable[Call]) -> Bools:
        """Shape (n,): whether a pattern makes all these calls in the stage after the prefix."""
        table = self.matcher.table
        has_calls: Bools = table.stages_with(calls)[table.signature[:, self.num_stages]]
        return has_calls

    def _nearest(self, candidates: np.ndarray, best: int) -> tuple[np.ndarray, Floats]:
        """Rows and squared distances of the nearest candidates; nearest first, then newest."""
        squared = self.squared[candidates]
        order = len(candidates) - 1 - np.argsort(squared[::-1], kind="stable")
        limit = squared[order[min(best, len(order)) - 1]]
        order = order[: int(np.searchsorted(squared[order], limit, side="right"))]
        return candidates[order], squared[order]


@dataclass(frozen=True, eq=False)
class Matcher:
    """Matches live runs with the n patterns of a library.

    Args:
        weights: shape (n,), number of runs that each pattern represents; > 0.
    """

    table: PatternTable
    kernel: StageKernel
    weights: Floats

    @cached_property
    def outlooks(self) -> Floats:
        """Shape (n, s, 12): of the patterns, completed where their runs were cut off."""
        return completed_outlooks(self.table, self.weights)

    def begin(self) -> LiveMatch:
        """The match of a run that has made no call yet: all patterns are alive."""
        num = len(self.table)
        return LiveMatch(self, 0, np.zeros(num), np.ones(num, dtype=bool))

    def match(self, prefix: Sequence[Stage]) -> LiveMatch:
        """The match of a whole prefix."""
        live = self.begin()
        for stage in prefix:
            live = live.extend(stage)
        return live


def _estimate(
    rows: np.ndarray,
    similarity: Floats,
    weights: Floats,
    outlooks: Floats,
    num_candidates: int,
) -> Estimate:
    mean = Outlook(*(weights @ outlooks).tolist())
    shares = outlooks[:, _SHARE]
    spread = float(np.sqrt(weights @ np.square(shares - weights @ shares)))
    total_s = mean.elapsed_s + mean.rest_s
    # A stage that is the last one in every match has share 1 exactly, without a rounding error.
    is_last = mean.later_s == 0.0
    share = 1.0 if is_last else min((mean.elapsed_s + mean.stage_s) / total_s, 1.0)
    matches = zip(rows.tolist(), similarity.tolist(), weights.tolist(), strict=True)
    return Estimate(
        outlook=mean._replace(share=share),
        share_before=mean.elapsed_s / total_s,
        spread=spread,
        matches=tuple(Match(*match) for match in matches),
        num_candidates=num_candidates,
    )
