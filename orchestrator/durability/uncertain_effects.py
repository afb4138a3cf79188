"""External effects with uncertain outcomes: they began, and did not complete successfully."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from orchestrator.errors import McpServerFailed, ResultNotSerialisable
from store.records import Effects, Status, StepKind, StepRecord

_SAY_NOTHING = {
    ResultNotSerialisable.__name__,  # the tool did return a result; only recording it failed
    McpServerFailed.__name__,  # the server may have done it before it died
}
"""Types of errors that do not say whether the effect took place."""


class UncertainEffect(NamedTuple):
    """An external effect that began and did not complete successfully.

    Attributes:
        path: of the step that began it.
        has_failed: whether the tool itself raised an error; if not, the outcome is unknown.
    """

    path: str
    has_failed: bool


def uncertain_effect_of(step: StepRecord) -> UncertainEffect:
    """The uncertain effect of a recorded step that is not completed."""
    has_failed = step.status is Status.FAILED or step.ended_run
    return UncertainEffect(step.path, has_failed and step.error_type not in _SAY_NOTHING)


class UncertainEffects:
    """A run's uncertain effects, by the tool's name and a digest of its arguments.

    Any step that repeats an effect (the same tool with the same arguments) takes one of these.

    Args:
        steps: of an interrupted run. An effect that began after the end of an equal one had
            repeated that one.
    """

    def __init__(self, steps: Iterable[StepRecord] = ()) -> None:
        self._effects: dict[tuple[str, bytes | None], list[UncertainEffect]] = defaultdict(list)
        events: list[tuple[float, bool, StepRecord]] = []
        for step in steps:
            if step.kind is StepKind.TOOL and step.effects is Effects.EXTERNAL:
                ended_s = math.inf if step.finished_s is None else step.finished_s
                events += [(step.started_s, True, step), (ended_s, False, step)]
        for _, begins, step in sorted(events, key=lambda event: event[:2]):
            if begins:
                self.take(step)
            elif step.status is not Status.COMPLETED:
                self.add(step, uncertain_effect_of(step))

    def add(self, step: StepRecord, effect: UncertainEffect) -> None:
        """Add an effect that did not complete, or put back one that was taken in vain."""
        self._effects[step.name, step.arguments].append(effect)

    def take(self, step: StepRecord) -> UncertainEffect | None:
        """Remove and return the effect that a step repeats; None if it repeats none.

        Preferred is the effect of the same step, then one with an unknown outcome.
        """
        effects = self._effects.get((step.name, step.arguments))
        if not effects:
            return None
        effect = min(effects, key=lambda each: (each.path != step.path, each.has_failed))
        effects.remove(effect)
        return effect
