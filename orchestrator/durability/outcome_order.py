"""The order in which steps' outcomes reach a flow: it is recorded, and kept when they are replayed.

What a flow does next may depend on which of several steps ends first (asyncio.wait, as_completed,
a shared list). So each outcome gets a number, and reaches the flow's code only after those with
smaller numbers, when that code has had time to act on them. The same holds in a resumed run:
recorded outcomes come first, in their order, then new ones. A step that is executed again although
it has a number (its error ended the run) keeps that number, and what is within it comes just before
it; but while it is executed no other outcome waits for it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from orchestrator.durability.identity import parent_key, paths_to
from store.records import Status, StepRecord

SETTLING_PASSES = 10
"""Passes of the event loop between two outcomes that different tasks wait for.

A task that ends wakes the one that waits for it two passes later (asyncio.wait, gather, a queue),
so this is enough for five layers of tasks. A pass of an idle loop takes 1 to 2 microseconds.
"""

MIN_PASSES, SETTLING_S = 4, 0.002
"""On a busy loop fewer passes are enough, once so many seconds have passed: two layers of tasks."""

PATIENCE_S = 1.0
"""Seconds to wait for a recorded step to begin again, beyond twice the time that it took before."""

MAX_PATIENCE_S = 60.0

logger = logging.getLogger("orchestrate")


@dataclass(slots=True)
class _Outcome:
    """An outcome that has not reached the flow yet.

    Attributes:
        place: in the order; see `_place`.
        began_s: seconds from the run's start; of an outcome that was recorded before.
        ended_s: the same; 0 for a new outcome.
        is_replayed: whether it is known, so that it waits for its turn only.
        turn: what its task waits for.
    """

    number: int
    path: str
    place: tuple[float, ...]
    began_s: float = 0.0
    ended_s: float = 0.0
    is_replayed: bool = False
    turn: asyncio.Future[None] | None = None


class OutcomeOrder:
    """Lets one outcome of a run after another reach the flow's code.

    Args:
        run_id: for messages.
    """

    def __init__(self, run_id: str = "") -> None:
        self._run_id = run_id
        self._next_number = 0
        self._pending: dict[str, _Outcome] = {}  # by path
        self._places: list[tuple[tuple[float, ...], str]] = []  # a heap; also of dropped ones
        self._unbegun: set[str] = set()  # those of them that the flow has not begun
        self._again: dict[str, _Outcome] = {}  # by path, of numbered steps that are executed again
        self._interrupted: set[asyncio.Task[Any]] = set()  # their cancellation comes in a moment
        self._num_waiting = 0
        self._last_ended_s = 0.0
        self._last_task: asyncio.Task[Any] | None = None  # which got the last outcome
        self._is_settled = True
        self._is_settling = False
        self._num_held = 0
        self._overdue: _Outcome | None = None
        self._patience: asyncio.TimerHandle | None = None

    @property
    def is_replaying(self) -> bool:
        """Whether the next outcome is a known one that will reach its task in a moment."""
        return self._num_held > 0 or ((head := self._head()) is not None and head.is_replayed)

    @property
    def expects_more(self) -> bool:
        """Whether there are recorded outcomes of steps that the flow has not begun again."""
        return bool(self._unbegun)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """A block in which something else that is known reaches the flow: limits wait for it."""
        self._num_held += 1
        try:
            yield
        finally:
            self._num_held -= 1

    def expect(self, steps: Iterable[StepRecord]) -> None:
        """Take the recorded outcomes of a run, which come before all others.

        Those within a step with a known outcome are not expected: it is replayed as a whole.
        """
        steps = sorted(steps, key=lambda step: step.path.count("/"))  # outer ones first
        known = {step.path for step in steps if step.status in (Status.COMPLETED, Status.FAILED)}
        for step in steps:
            if step.outcome_number is None:
                continue
            self._next_number = max(self._next_number, step.outcome_number + 1)
            if known.isdisjoint(paths_to(step.path)[:-1]):
                outcome = self._add(step.path, step.outcome_number)
                outcome.began_s = step.started_s
                self._unbegun.add(step.path)
                outcome.ended_s = step.finished_s or step.started_s

    def begin(self, step: StepRecord) -> None:
        """The flow begins a recorded step."""
        outcome = self._pending.get(step.path)
        if outcome is None:
            return
        self._unbegun.discard(step.path)
        outcome.is_replayed = step.status in (Status.COMPLETED, Status.FAILED)
        if not outcome.is_replayed:
            self._again[step.path] = self._pending.pop(step.path)
        self._advance()

    def number(self, path: str) -> int:
        """The number of an outcome that comes now; `turn` or `drop` must follow."""
        again = self._again.pop(path, None)
        number = self._next_number if again is None else again.number
        outcome = self._pending.get(path) or self._add(path, number)
        self._next_number = max(self._next_number, number + 1)
        if self._unbegun:
            self.drop_unbegun(lambda each: each.startswith(f"{path}/"))
        return outcome.number

    async def turn(self, path: str) -> None:
        """Wait until all outcomes before this one have reached the flow; then it may.

        A cancellation comes after the outcome, which is recorded; but at once if a recorded step
        that comes first has not begun.
        """
        outcome = self._pending.get(path)
        if outcome is None:
            return
        task = asyncio.current_task()
        if outcome is self._head() and (self._is_settled or task is self._last_task):
            self._deliver(outcome, task)
            if self._num_waiting:
                self._advance()
            return
        was_cancelled = False
        self._num_waiting += 1
        try:
            while True:
                waits_for = outcome.turn = asyncio.get_running_loop().create_future()
                self._advance()
                try:
                    await waits_for
                    break
                except asyncio.CancelledError:
                    has_come = waits_for.done() and not waits_for.cancelled()
                    if task is None or not (has_come or self._will_come_soon()):
                        raise
                    was_cancelled = True
                    task.uncancel()
                    if has_come:
                        break
        finally:
            self._num_waiting -= 1
            self._pending.pop(path, None)
            self._advance()
        self._last_task = task
        if task is not None and was_cancelled:
            self._interrupt(task)

    def _will_come_soon(self) -> bool:
        """Whether nothing but outcomes that are there come before one that waits."""
        head = self._head()
        return head is not None and head.path not in self._unbegun

    def is_interrupted(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task got its outcome although it was cancelled: that comes in a moment."""
        return task in self._interrupted

    def _interrupt(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task that had to have its recorded outcome first, as in a resumed run."""
        self._interrupted.add(task)

        def interrupt() -> None:
            self._interrupted.discard(task)
            task.cancel()

        asyncio.get_running_loop().call_soon(interrupt)

    def drop(self, *paths: str) -> None:
        """These outcomes will not come, or have come: no other waits for them."""
        dropped = [path for path in paths if self._pending.pop(path, None) is not None]
        if dropped:
            self._unbegun.difference_update(dropped)
            self._advance()

    def drop_unbegun(self, is_left: Callable[[str], bool]) -> None:
        """The flow has left the code that began some recorded steps, without beginning them.

        Args:
            is_left: whether the step with this path is one of them.
        """
        self.drop(*filter(is_left, list(self._unbegun)))

    def _add(self, path: str, number: int) -> _Outcome:
        outcome = self._pending[path] = _Outcome(number, path, self._place(path, number))
        heapq.heappush(self._places, (outcome.place, path))
        return outcome

    def _place(self, path: str, number: int) -> tuple[float, ...]:
        """The place of an outcome: that of its number, but just before the steps around it.

        The places of 2, of 5 within it and of 9 within that are (2, inf), (2, 5, inf) and
        (2, 5, 9, inf), in the order from the last to the first.
        """
        if not self._again and not self._unbegun:
            return number, math.inf
        found = (
            self._pending.get(step) or self._again.get(step) for step in paths_to(path)[-2::-1]
        )
        around = next((each for each in found if each is not None), None)  # the innermost one
        before = takewhile(lambda each: each < number, around.place) if around else ()
        return (*before, number, math.inf)

    def _head(self) -> _Outcome | None:
        while self._places:
            place, path = self._places[0]
            outcome = self._pending.get(path)
            if outcome is not None and outcome.place == place:
                return outcome
            heapq.heappop(self._places)
        return None

    def _deliver(self, outcome: _Outcome, task: asyncio.Task[Any] | None) -> None:
        del self._pending[outcome.path]
        self._last_ended_s = max(self._last_ended_s, outcome.ended_s)
        self._last_task = task
        self._is_settled = False

    def _advance(self) -> None:
        """Let the next outcome reach its task, if there is one that waits and it may."""
        if not _is_on_loop():  # in a step's thread; the end of that step follows
            return
        head = self._head()
        is_overdue = head is not None and head.path in self._unbegun and self._num_waiting > 0
        self._watch(head if is_overdue else None)
        if head is None or head.turn is None or self._is_settling:
            return
        if head.turn.done():  # cancelled: its task waits anew, or leaves, in a moment
            return
        if self._is_settled:
            self._deliver(head, None)
            head.turn.set_result(None)
        else:
            self._is_settling = True
            self._settle(0, asyncio.get_running_loop().time())

    def _settle(self, num_passes: int, began_s: float) -> None:
        """Count a pass of the event loop; after enough of them the next outcome may come."""
        loop = asyncio.get_running_loop()
        is_slow = num_passes >= MIN_PASSES and loop.time() - began_s > SETTLING_S
        if num_passes < SETTLING_PASSES and not is_slow:
            loop.call_soon(self._settle, num_passes + 1, began_s)
            return
        self._is_settling, self._is_settled = False, True
        self._advance()

    def _watch(self, outcome: _Outcome | None) -> None:
        """Wait for a recorded step to begin, but not for ever: the flow may have changed."""
        if outcome is self._overdue:
            return
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._overdue = outcome
        if outcome is not None:
            took_s = max(outcome.began_s - self._last_ended_s, 0.0)
            patience_s = min(2 * took_s, MAX_PATIENCE_S) + PATIENCE_S
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(patience_s, self._give_up, outcome)

    def _give_up(self, outcome: _Outcome) -> None:
        logger.warning(
            "run %s: step %s ended before others, but is not begun again; they no longer wait",
            self._run_id,
            outcome.path,
        )
        key = parent_key(outcome.path)  # what comes after it on its path is not begun either
        self.drop_unbegun(
            lambda path: path == outcome.path or f"{parent_key(path)}/".startswith(f"{key}/")
        )


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
