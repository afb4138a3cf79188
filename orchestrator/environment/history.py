"""The states that a workspace has been in, and what led to each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from store.records import Effects, Status, StepRecord

REWIND = "ws.rewind"
"""The name of the steps that bring back a former state."""

APPLY = "ws.apply"
"""The name of the steps that write a state to its base."""

COMPENSATE = "compensate-"
"""The names of the calls that take back an effect begin so; the tool's name follows."""

Repeat = Callable[[Any], Awaitable[Any]]
"""Does an action again, given the Position of a workspace that is in the state before it."""

Compensate = Callable[[], Awaitable[Any]]
"""Takes back an effect on the outside world."""


@dataclass(frozen=True, slots=True)
class Moment:
    """An action that has ended, and the state that it left.

    Attributes:
        path: of its step; a number outside of a run.
        name: of the tool or operation.
        label: the name of the checkpoint that it made; None: it made none.
        repeat: None if it must not be done again, or cannot be.
        compensate: of an effect on the outside world; None: it cannot be taken back.
        is_taken_back: `compensate` has done so.
    """

    path: str
    name: str
    state: str
    effects: Effects = Effects.ENV
    label: str | None = None
    repeat: Repeat | None = None
    compensate: Compensate | None = None
    is_taken_back: bool = False


@dataclass(slots=True)
class History:
    """Moments of a workspace, the first of which is its beginning; a rewind cuts off the last."""

    moments: list[Moment] = field(default_factory=list)

    @property
    def state(self) -> str:
        """The id of the present state."""
        return self.moments[-1].state

    def add(self, moment: Moment) -> None:
        """One more action has ended."""
        self.moments.append(moment)

    def replayed(self, step: StepRecord, label: str | None = None) -> None:
        """A recorded action is not done again.

        Args:
            label: the name of the checkpoint that it made.
        """
        if step.status is Status.FAILED:  # it was taken back, or says that it did nothing
            return
        is_beside = step.effects is Effects.EXTERNAL and step.name != APPLY
        is_compensation = step.name.startswith(COMPENSATE)
        if step.status is Status.CANCELLED and (not is_beside or is_compensation):
            return
        state = self.state if is_beside else step.state_after or self.state
        if step.name == REWIND:
            if (index := self.index_of(state)) is not None:
                self.rewind_to(index)
        elif is_compensation:
            self.take_back(step.name.removeprefix(COMPENSATE))
        else:
            label = None if step.name == APPLY else label  # that names the state before
            self.add(Moment(step.path, step.name, state, step.effects, label))

    def describe(
        self,
        path: str,
        *,
        label: str | None,
        repeat: Repeat | None,
        compensate: Compensate | None,
    ) -> None:
        """Say of an action that was replayed what is not recorded of it."""
        index = self.index_of(path)
        if index is not None and self.moments[index].path == path:
            self.moments[index] = replace(
                self.moments[index], label=label, repeat=repeat, compensate=compensate
            )

    def index_of(self, path_or_state: str) -> int | None:
        """Where a step had ended, or where it was last in a state; None: never."""
        for index in range(len(self.moments) - 1, -1, -1):
            if path_or_state in (self.moments[index].path, self.moments[index].state):
                return index
        return None

    def index_of_checkpoint(self, label: str) -> int | None:
        """Where the last checkpoint with a name was made; None: nowhere."""
        for index in range(len(self.moments) - 1, -1, -1):
            if self.moments[index].label == label:
                return index
        return None

    def effects_after(self, index: int) -> Sequence[Moment]:
        """Effects on the outside world since a moment that are not taken back, the last first."""
        after = reversed(self.moments[index + 1 :])
        return [moment for moment in after if _is_lasting(moment)]

    def take_back(self, name_or_path: str) -> None:
        """The last effect of a tool, or the effect of a step, was compensated."""
        for index in range(len(self.moments) - 1, -1, -1):
            moment = self.moments[index]
            if name_or_path in (moment.name, moment.path) and _is_lasting(moment):
                self.moments[index] = replace(moment, is_taken_back=True)
                return

    def rewind_to(self, index: int) -> None:
        """Forget what came after a moment."""
        del self.moments[index + 1 :]

    def forked(self) -> History:
        """The same, for a fork."""
        return History(list(self.moments))

    def common_with(self, *others: History) -> str:
        """The last state of the past that all share; raises ValueError if there is none."""
        state = ""
        for ours, *theirs in zip(self.moments, *(each.moments for each in others), strict=False):
            if {(each.path, each.state) for each in theirs} - {(ours.path, ours.state)}:
                break
            state = ours.state
        if not state:
            raise ValueError("the workspaces have no common past: one must be a fork of the other")
        return state

    def adopt(self, fork: History, *others: History) -> None:
        """The last action took over a fork's state, and with it the past of that.

        Args:
            others: the forks that end with it; what they did outside stays done.
        """
        before = History(self.moments[:-1])
        self.moments = [*fork.moments, self.moments[-1]]
        self.take_effects(before, *others)

    def take_effects(self, *forks: History) -> None:
        """The last action merged forks: their effects on the outside world are now of this too."""
        known = {moment.path for moment in self.moments}
        new = [
            replace(moment, state=self.moments[-2].state)
            for fork in forks
            for moment in fork.moments
            if _is_lasting(moment) and moment.path not in known
        ]
        self.moments[-1:-1] = new

    def ways_to(self, index: int) -> Iterator[tuple[str, Sequence[Moment]]]:
        """States before a moment, the nearest first, with the actions that led from each to it.

        It ends before an action that cannot be done again.
        """
        way: list[Moment] = []
        for at in range(index, 0, -1):
            moment, before = self.moments[at], self.moments[at - 1].state
            if moment.state == before:
                continue
            if moment.repeat is None or moment.effects is Effects.EXTERNAL:
                return
            way.insert(0, moment)
            yield before, tuple(way)


def _is_lasting(moment: Moment) -> bool:
    return moment.effects is Effects.EXTERNAL and not moment.is_taken_back
