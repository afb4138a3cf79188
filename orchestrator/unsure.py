"""External effects of which nobody can be sure: they began, and did not end well."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from store.records import Effects, Status, StepKind, StepRecord


class Unsure(NamedTuple):
    """One such effect.

    Attributes:
        path: of the step that it was begun as.
        has_failed: whether the tool itself has said so, by an error; else it was cut off.
    """

    path: str
    has_failed: bool


class UnsureEffects:
    """Those of a run, by the tool's name and a digest of its arguments: whichever step comes to
    the same effect again comes to one of these."""

    def __init__(self, steps: Iterable[StepRecord] = ()) -> None:
        self._effects: dict[tuple[str, bytes | None], list[Unsure]] = defaultdict(list)
        for step in steps:
            is_effect = step.kind is StepKind.TOOL and step.effects is Effects.EXTERNAL
            if is_effect and step.status is not Status.COMPLETED:
                self.add(step, has_failed=step.status is Status.FAILED)

    def add(self, step: StepRecord, *, has_failed: bool) -> None:
        """An effect has failed, or was cut off."""
        self._effects[step.name, step.arguments].append(Unsure(step.path, has_failed))

    def like(self, step: StepRecord) -> Unsure | None:
        """The one that a step begins again; its own, if there is that."""
        found = self._effects.get((step.name, step.arguments), [])
        own = (each for each in found if each.path == step.path)
        return next(own, found[0] if found else None)

    def settled(self, step: StepRecord, effect: Unsure) -> None:
        """It is known by now, or done again."""
        found = self._effects[step.name, step.arguments]
        if effect in found:
            found.remove(effect)
