"""What a run recorded before it was interrupted, as its code comes by again."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from orchestrator.errors import FlowChanged
from orchestrator.identity import Scope, parent_key, paths_to
from store.records import CallRecord, StepKind, StepRecord

logger = logging.getLogger("orchestrate")


class Past:
    """The recorded steps of a run; empty for one that begins.

    A flow that is resumed begins anew, and must begin the same steps from each place, in the same
    order. Which of them come first over all places does not matter: parallel branches may be
    faster or slower than before.

    Args:
        allow_changed: forget what a changed flow does not come by again, instead of an error.
    Attributes:
        forgotten: paths of steps that were.
    """

    def __init__(
        self,
        run_id: str = "",
        steps: Sequence[StepRecord] = (),
        calls: Sequence[CallRecord] = (),
        *,
        allow_changed: bool = False,
    ) -> None:
        self.forgotten: list[str] = []
        self._run_id = run_id
        self._allow_changed = allow_changed
        self._by_path = {step.path: step for step in steps}
        self._by_place: dict[str, dict[int, StepRecord]] = defaultdict(dict)
        for step in steps:
            self._by_place[parent_key(step.path)][step.place] = step
        self._calls: dict[str, list[CallRecord]] = defaultdict(list)
        for call in calls:
            for path in paths_to(call.step_path):
                self._calls[path].append(call)

    def __bool__(self) -> bool:
        return bool(self._by_path)

    def of(self, scope: Scope, kind: StepKind) -> StepRecord | None:
        """What is recorded of the step that begins in this scope; None if it is new.

        Raises:
            FlowChanged: another step began from the same place at this point.
        """
        if not self._by_path:
            return None
        key = parent_key(scope.path)
        recorded = self._by_place[key].get(scope.place)
        if recorded is None or (recorded.path == scope.path and recorded.kind is kind):
            return recorded
        self._differs(key, scope.place, recorded, f"{kind} {scope.path}")
        return None

    def calls_of(self, path: str) -> Sequence[CallRecord]:
        """The calls that a step made, or is."""
        return self._calls.get(path, ())

    def ended(self, scope: Scope) -> None:
        """All code of a scope has run.

        Raises:
            FlowChanged: more steps are recorded from it.
        """
        if self._by_path and (left := self._by_place[scope.key].get(scope.num_entered)):
            self._differs(scope.key, scope.num_entered, left, "nothing more")

    def _differs(self, key: str, place: int, recorded: StepRecord, now: str) -> None:
        was = f"{recorded.kind} {recorded.path}"
        if not self._allow_changed:
            raise FlowChanged(self._run_id, was, now)
        logger.warning("run %s: %s is recorded where the flow comes to %s", self._run_id, was, now)
        for step in [step for at, step in self._by_place[key].items() if at >= place]:
            self._forget(step.path)

    def _forget(self, path: str) -> None:
        """Forget a step and all within it."""
        gone = [each for each in self._by_path if each == path or each.startswith(f"{path}/")]
        for each in gone:
            step = self._by_path.pop(each)
            del self._by_place[parent_key(each)][step.place]
        self.forgotten += gone
