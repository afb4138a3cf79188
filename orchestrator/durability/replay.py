"""What a run recorded before it was interrupted, as its code comes by again."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Sequence

from orchestrator.durability.identity import (
    GATHER,
    TASK,
    WRAP_UP,
    StepPath,
    branch_prefix,
    parent_key,
    paths_to,
)
from orchestrator.errors import FlowChanged, OutcomeUnknown
from store.records import CallRecord, Effects, Status, StepKind, StepRecord

_WRAPPING_UP = f"[{WRAP_UP}]"

_OTHERWISE = (
    "with other arguments (what is not the same each time comes from now(), random(), uuid() or a"
    " step; and what a step changes in its arguments is not changed again)"
)

logger = logging.getLogger("orchestrate")


class RecordedSteps:
    """The recorded steps of a run; empty for one that begins.

    A flow that is resumed begins anew, and must begin the same steps from each place, in the same
    order, with the same arguments. Which of them come first over all places does not matter:
    parallel branches may be faster or slower than before.

    Args:
        forget: is told the paths of what is not to be come by again.
        allow_changed: whether that may be what a changed flow does not come by.
    """

    def __init__(
        self,
        run_id: str = "",
        steps: Sequence[StepRecord] = (),
        calls: Sequence[CallRecord] = (),
        *,
        forget: Callable[[Sequence[str]], None] = lambda _: None,
        allow_changed: bool = False,
    ) -> None:
        self._run_id = run_id
        self._forget = forget
        self._allow_changed = allow_changed
        self._by_path = {step.path: step for step in steps}
        self._by_place: dict[str, dict[int, StepRecord]] = defaultdict(dict)
        for step in steps:
            self._by_place[parent_key(step.path)][step.place] = step
        self._met: set[str] = set()
        self._calls: dict[str, list[CallRecord]] = defaultdict(list)
        for call in calls:
            for path in paths_to(call.step_path):
                self._calls[path].append(call)

    def __bool__(self) -> bool:
        return bool(self._by_path)

    def of(
        self, step_path: StepPath, kind: StepKind, arguments: bytes | None = None
    ) -> StepRecord | None:
        """What is recorded of the step that begins in this scope; None if it is new.

        Args:
            arguments: a digest of what it is called with; None: that is not compared.
        Raises:
            FlowChanged: another step began from the same place at this point, or this one with
                other arguments.
            OutcomeUnknown: that is an external effect whose end is not known.
        """
        if not self._by_path:
            return None
        key = parent_key(step_path.text)
        recorded = self._by_place[key].get(step_path.place)
        if recorded is None:
            return None
        now = f"{kind} {step_path.text}"
        if (recorded.path, recorded.kind) != (step_path.text, kind):
            self._differs(key, recorded, now)
            return None
        is_compared = (
            None not in (arguments, recorded.arguments) and _WRAPPING_UP not in step_path.text
        )
        if is_compared and arguments != recorded.arguments:
            if recorded.effects is Effects.EXTERNAL and not _has_ended(recorded):
                raise OutcomeUnknown(self._run_id, recorded.path)  # whatever may be forgotten
            self._differs(key, recorded, f"{now} {_OTHERWISE}")
            return None
        self._met.add(step_path.text)
        return recorded

    def calls_of(self, path: str) -> Sequence[CallRecord]:
        """The calls that a step made, or is."""
        return self._calls.get(path, ())

    def require_no_other(self, step_path: StepPath, name: str) -> None:
        """Require that a new external effect, which a task of its own begins with, is new.

        Raises:
            FlowChanged: one of that name is recorded of a task that has not come by yet. This may
                be that one, with arguments that another execution does not get.
        """
        key = parent_key(step_path.text)
        tasks = key[: key.rindex("[") + 1] + TASK
        for path, step in self._by_path.items():
            if (
                (step.kind, step.effects, step.name) == (StepKind.TOOL, Effects.EXTERNAL, name)
                and path not in self._met
                and parent_key(path).startswith(tasks)
            ):
                self._differs(key, step, f"{step.kind} {step_path.text} {_OTHERWISE}")
                return

    def ended(self, step_path: StepPath) -> None:
        """All code of a scope has run.

        Raises:
            FlowChanged: more steps are recorded from it.
        """
        if self._by_path and (left := self._by_place[step_path.key].get(step_path.num_entered)):
            self._differs(step_path.key, left, "nothing more")

    def _differs(self, key: str, recorded: StepRecord, now: str) -> None:
        """Forget a recorded step and all that came after it in its scope, if that is allowed.

        Args:
            key: of the scope from which it began.
            now: what the code comes to instead.
        Raises:
            FlowChanged: it is not.
        """
        was = f"{recorded.kind} {recorded.path}"
        if not self._allow_changed:
            raise FlowChanged(self._run_id, was, now)
        logger.warning("run %s: %s is recorded where the flow comes to %s", self._run_id, was, now)
        self._forget_from(key, recorded.place)

    def succeeded(self, step_path: StepPath) -> None:
        """A step has come to its result. If it had ended the run before, then what is recorded
        after it is what was done about that, and does not come again."""
        if (step := self._by_path.get(step_path.text)) is not None and step.ended_run:
            self._forget_from(parent_key(step_path.text), step_path.place + 1)

    def _forget_from(self, key: str, place: int) -> None:
        """Forget what began from a scope at this place and later."""
        later = [step for at, step in self._by_place[key].items() if at >= place]
        gathered = [
            step
            for path, step in self._by_path.items()
            for branches in self._gathers_from(key, place)
            if branches.match(parent_key(path))
        ]
        for step in later + gathered:
            self._forget(self._removed(step.path))

    def _gathers_from(self, key: str, place: int) -> list[re.Pattern[str]]:
        """What the keys of the branches are like of each gather that began there or later."""
        steps = sorted(self._by_place[key].items())
        gathers = [at for at, step in steps if step.name.startswith(GATHER)]
        return [
            re.compile(re.escape(f"{key}[{branch_prefix(number)}") + r"\d+]")
            for number, at in enumerate(gathers, start=1)
            if at >= place
        ]

    def _removed(self, path: str) -> list[str]:
        """The paths of a step and of all within it, which are known no more."""
        gone = [each for each in self._by_path if each == path or each.startswith(f"{path}/")]
        for each in gone:
            step = self._by_path.pop(each)
            del self._by_place[parent_key(each)][step.place]
        return gone


def _has_ended(step: StepRecord) -> bool:
    """Whether it is known how a step ended."""
    return step.ended_run or step.status in (Status.COMPLETED, Status.FAILED)
