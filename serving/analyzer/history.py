"""StepHistory: the recent output lengths of a step, and features of them."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque

HISTORY_LENGTHS = 64
"""Newest answers of a step that are kept: enough for a p90, few enough to follow a drift."""

MAX_STEPS = 4096
"""Limit on the number of steps; the one with the oldest last answer is forgotten first."""

NUM_HISTORY_FEATURES = 5


class StepHistory:
    """The recent output lengths of one step of one model, in tokens, in the order of their ends.

    Attributes:
        count: number of all answers, forgotten ones included.
    """

    __slots__ = ("_ordered", "_recent", "_total", "count")

    def __init__(self) -> None:
        self.count = 0
        self._recent: deque[int] = deque()
        self._ordered: list[int] = []
        self._total = 0

    def add(self, output_tokens: int) -> None:
        """Add an answer; the oldest of HISTORY_LENGTHS answers is forgotten."""
        assert output_tokens >= 0, "a length is not negative"
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
        """A copy of the kept lengths, shortest first."""
        return self._ordered.copy()

    def features(self) -> tuple[float, ...]:
        """log(1 + x) of count, last, mean, median and p90; all 0 before the first answer."""
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
    """The histories of at most MAX_STEPS steps, by identity ("model:step")."""

    def __init__(self) -> None:
        self._steps: OrderedDict[str, StepHistory] = OrderedDict()

    def __len__(self) -> int:
        return len(self._steps)

    def of(self, identity: str) -> StepHistory:
        """This step's history; a new, empty one (not stored) if it has no answer yet."""
        return self._steps.get(identity) or StepHistory()

    def add(self, identity: str, output_tokens: int) -> None:
        """Add an answer of this step."""
        history = self._steps.get(identity)
        if history is None:
            if len(self._steps) == MAX_STEPS:
                self._steps.popitem(last=False)
            history = self._steps[identity] = StepHistory()
        self._steps.move_to_end(identity)
        history.add(output_tokens)
