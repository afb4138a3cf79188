"""StepHistory: what a step's recent answers say about its next one."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque

HISTORY_LENGTHS = 64
"""How many of a step's answers are remembered: enough for a p90, few enough to follow a drift."""

MAX_STEPS = 4096
"""Identities remembered at once; beyond, the one that ended longest ago is forgotten."""

NUM_HISTORY_FEATURES = 5


class StepHistory:
    """The recent output lengths of one step of one model, in tokens, in order of their end."""

    __slots__ = ("_ordered", "_recent", "_total", "count")

    def __init__(self) -> None:
        self.count = 0
        self._recent: deque[int] = deque()
        self._ordered: list[int] = []
        self._total = 0

    def add(self, output_tokens: int) -> None:
        """An answer ended; the oldest one of a full window is forgotten."""
        assert output_tokens >= 0, "an answer has no negative length"
        if len(self._recent) == HISTORY_LENGTHS:
            oldest = self._recent.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
            self._total -= oldest
        self._recent.append(output_tokens)
        insort(self._ordered, output_tokens)
        self._total += output_tokens
        self.count += 1

    @property
    def ordered(self) -> list[int]:
        """The remembered lengths, shortest first; a copy."""
        return self._ordered.copy()

    def features(self) -> tuple[float, ...]:
        """NUM_HISTORY_FEATURES numbers: how many ever, last, mean, median, p90; each log(1 + x).

        All 0 before the first answer.
        """
        if not self._recent:
            return (0.0,) * NUM_HISTORY_FEATURES
        last = len(self._ordered) - 1
        return (
            math.log1p(self.count),
            math.log1p(self._recent[-1]),
            math.log1p(self._total / len(self._recent)),
            math.log1p(self._ordered[last // 2]),
            math.log1p(self._ordered[math.ceil(0.9 * last)]),
        )


class StepHistories:
    """The history of every step, by identity ("model:step"); at most MAX_STEPS of them."""

    def __init__(self) -> None:
        self._steps: OrderedDict[str, StepHistory] = OrderedDict()

    def __len__(self) -> int:
        return len(self._steps)

    def of(self, identity: str) -> StepHistory:
        """This step's history; an empty one, not kept, where nothing has ended yet."""
        return self._steps.get(identity) or StepHistory()

    def add(self, identity: str, output_tokens: int) -> None:
        """An answer of this step ended."""
        history = self._steps.get(identity)
        if history is None:
            if len(self._steps) == MAX_STEPS:
                self._steps.popitem(last=False)
            history = self._steps[identity] = StepHistory()
        self._steps.move_to_end(identity)
        history.add(output_tokens)
