"""The past runs that began like a live one, and what they say of its next stage.

A live prefix is extended stage by stage. Patterns that did not make the calls it has made are
pruned; the others' distances grow by one stage's at a time, so a stage costs the same however
long the run is. Not the nearest pattern answers but the kernel-weighted mean of the nearest.

Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems, section 4.1
(pattern-graph matching); Zhang et al. (2025), Tempo, section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from patterns.features import Bools, Call, Floats, Outlook, PatternTable, calls_of, stage_features
from patterns.kernel import StageKernel
from patterns.stages import Stage

BEST_K = 16
"""How many patterns the estimate rests on. benchmarks/patterns.py decides it."""

_FIELDS = Outlook._fields
_SHARE, _ELAPSED, _STAGE = (_FIELDS.index(f) for f in ("share", "elapsed_s", "stage_s"))


class Match(NamedTuple):
    """A past pattern that the estimate rests on.

    Attributes:
        row: its row in the matcher's table.
        similarity: of the prefixes, in [0, 1].
        weight: its part of the estimate; those of all matches add up to 1.
    """

    row: int
    similarity: float
    weight: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the matching past runs say of the stage that begins now.

    Attributes:
        outlook: kernel-weighted means, in the past runs' seconds and tokens; `share` is that of
            the means: (elapsed_s + stage_s) / (elapsed_s + rest_s).
        share_before: the accumulated share at the end of the stage before, 0 for the first.
        spread: weighted standard deviation of the matches' own accumulated shares.
        matches: nearest first; of equally near ones the later rows, which are newer.
        num_candidates: patterns that began alike, of which `matches` are the nearest.
    """

    outlook: Outlook
    share_before: float
    spread: float
    matches: tuple[Match, ...]
    num_candidates: int


@dataclass(frozen=True, eq=False, slots=True)
class LiveMatch:
    """A live run's prefix against all patterns; each further stage gives a new one.

    Attributes:
        num_stages: stages revealed so far.
        squared: shape (n,), distances added up over them.
        alive: shape (n,), which patterns made the same calls so far.
    """

    matcher: Matcher
    num_stages: int
    squared: Floats
    alive: Bools

    @property
    def is_possible(self) -> bool:
        """Whether any pattern made the same calls so far and went on."""
        return bool(self.alive.any())

    def extend(self, stage: Stage) -> LiveMatch:
        """The prefix with a further stage, now that it is known."""
        table, kernel = self.matcher.table, self.matcher.kernel
        if self.num_stages >= table.features.shape[1]:
            nobody = np.zeros_like(self.alive)
            return LiveMatch(self.matcher, self.num_stages + 1, self.squared, nobody)
        past = table.features[:, self.num_stages]
        return LiveMatch(
            self.matcher,
            self.num_stages + 1,
            self.squared + kernel.squared_distances(past, stage_features(stage)),
            self.alive & self._made(calls_of(stage)),
        )

    def estimate(self, begun: Iterable[Call] = (), *, best: int = BEST_K) -> Estimate | None:
        """What is to be expected of the stage after the revealed ones; None if nothing matches.

        Args:
            begun: calls that are known to be made in it.
            best: patterns to rest on; those that are exactly as near as the last one are not
                left out. A medoid weighs as much as the runs that it stands for, and is still one:
                else a few medoids would be all that a small library rests on.
        """
        table = self.matcher.table
        if self.num_stages >= table.features.shape[1]:
            return None
        candidates = np.flatnonzero(self.alive & self._made(begun))
        if not len(candidates):
            return None
        rows, squared = self._nearest(candidates, best)
        # Relative to the nearest: far from all past runs the nearest still count most.
        near = self.matcher.kernel.similarity(squared - squared[0], self.num_stages)
        weights = near * self.matcher.weights[rows]
        weights /= weights.sum()
        outlooks = table.outlooks[rows, self.num_stages]
        similarity = self.matcher.kernel.similarity(squared, self.num_stages)
        return _estimate(rows, similarity, weights, outlooks, len(candidates))

    def _made(self, calls: Iterable[Call]) -> Bools:
        """Shape (n,): which patterns make all these calls in the stage that comes next."""
        table = self.matcher.table
        made: Bools = table.stages_with(calls)[table.signature[:, self.num_stages]]
        return made

    def _nearest(self, candidates: np.ndarray, best: int) -> tuple[np.ndarray, Floats]:
        """Rows and squared distances of the nearest candidates: nearest first, then newest."""
        squared = self.squared[candidates]
        order = len(candidates) - 1 - np.argsort(squared[::-1], kind="stable")
        limit = squared[order[min(best, len(order)) - 1]]
        order = order[: int(np.searchsorted(squared[order], limit, side="right"))]
        return candidates[order], squared[order]


@dataclass(frozen=True, eq=False, slots=True)
class Matcher:
    """A library made ready for matching.

    Args:
        weights: shape (n,), the runs that each pattern stands for; above 0.
    """

    table: PatternTable
    kernel: StageKernel
    weights: Floats

    def begin(self) -> LiveMatch:
        """The match of a run that has made no call yet: everything is still possible."""
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
    # A stage that is the last in every match has share 1 exactly, whatever rounding did.
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
