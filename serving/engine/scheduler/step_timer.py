"""The duration of each engine step, reported to the tracker that fits a step's cost."""

from __future__ import annotations

import math
from collections import deque

from serving.engine.observers.step_tracker import StepTracker
from serving.step_cost import Composition


class StepTimer:
    """Steps one after the other: each has ended when the next one is launched."""

    def launched(self, tracker: StepTracker, composition: Composition, now_s: float) -> None:
        """A step begins."""
        tracker.begin(now_s, composition)

    def completed(self, tracker: StepTracker, now_s: float) -> None:
        """A step's tokens have arrived."""


class OverlappingStepTimer(StepTimer):
    """Steps that are planned while the one before them is computed (asynchronous scheduling).

    Each is timed from its own launch, or from the end of the step before it if that is later, to
    the arrival of its tokens. vLLM completes steps in the order of their launch.
    """

    def __init__(self) -> None:
        self._launched: deque[tuple[Composition, float]] = deque()
        self._last_end_s = -math.inf

    def launched(self, tracker: StepTracker, composition: Composition, now_s: float) -> None:
        """A step begins."""
        self._launched.append((composition, now_s))

    def completed(self, tracker: StepTracker, now_s: float) -> None:
        """A step's tokens have arrived."""
        composition, launched_s = self._launched.popleft()
        if composition.new_tokens:
            tracker.measured(composition, now_s - max(launched_s, self._last_end_s))
        self._last_end_s = now_s
