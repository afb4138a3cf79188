"""External effects of which nobody can be sure: they began, and did not end well."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from orchestrator.errors import ResultNotSerialisable
from store.records import Effects, Status, StepKind, StepRecord


class UncertainEffect(NamedTuple):
    """One such effect.

    Attributes:
        path: of the step that it was begun as.
        has_failed: whether the tool itself has said so, by an error; else nobody knows.
    """

    path: str
    has_failed: bool


def uncertain_effect_of(step: StepRecord) -> UncertainEffect:
    """An effect whose record says no good end."""
    has_failed = step.status is Status.FAILED or step.ended_run
    # What it gave could not be recorded: so it gave something.
    return UncertainEffect(
        step.path, has_failed and step.error_type != ResultNotSerialisable.__name__
    )


class UncertainEffects:
    """Those of a run, by the tool's name and a digest of its arguments: whichever step comes to
    the same effect again comes to one of these.

    Args:
        steps: of a run that was interrupted: what began after another one had ended took its place.
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
                self.claim(step)
            elif step.status is not Status.COMPLETED:
                self.add(step, uncertain_effect_of(step))

    def add(self, step: StepRecord, effect: UncertainEffect) -> None:
        """An effect did not end well, or was claimed for nothing."""
        self._effects[step.name, step.arguments].append(effect)

    def claim(self, step: StepRecord) -> UncertainEffect | None:
        """The one that a step begins again, which is known or done again by that: its own, else
        one of which nobody knows."""
        found = self._effects.get((step.name, step.arguments))
        if not found:
            return None
        effect = min(found, key=lambda each: (each.path != step.path, each.has_failed))
        found.remove(effect)
        return effect
