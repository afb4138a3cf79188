"""Replay: finds the recorded step for each step that a resumed run begins."""

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
from orchestrator.durability.outcome_order import OutcomeOrder
from orchestrator.durability.outcomes import end_of
from orchestrator.errors import FlowChanged, OutcomeUnknown
from store.records import CallRecord, Effects, Status, StepKind, StepRecord

_WRAP_UP_MARK = f"[{WRAP_UP}]"

_OTHER_ARGUMENTS = (
    "with other arguments (take values that differ in each execution from now(), random(), uuid()"
    " or a step; and do not change arguments in place: a replayed step does not change them again)"
)

logger = logging.getLogger("orchestrate")


class RecordedSteps:
    """The recorded steps of a run; empty for one that begins.

    A resumed flow executes from its start, and must begin the same steps from each path, in the
    same order, with the same arguments. The order across paths does not matter: parallel branches
    may be faster or slower than before.

    Args:
        calls: the run's recorded calls.
        order: told which recorded steps begin, and which do not.
        forget: called with the paths of steps, to delete their records.
        allow_changed: where the flow begins another step than is recorded, forget the recorded
            one and all that followed it, instead of raising FlowChanged.
        not_compared: the arguments of steps with outcomes up to this number are not compared: they
            are those of the run that this one was forked from.
    """

    def __init__(
        self,
        run_id: str = "",
        steps: Sequence[StepRecord] = (),
        calls: Sequence[CallRecord] = (),
        *,
        order: OutcomeOrder | None = None,
        forget: Callable[[Sequence[str]], None] = lambda _: None,
        allow_changed: bool = False,
        not_compared: int = -1,
    ) -> None:
        self._run_id = run_id
        self._order = order or OutcomeOrder(run_id)
        self._forget = forget
        self._allow_changed = allow_changed
        self._not_compared = not_compared
        self._by_path = {step.path: step for step in steps}
        self._by_place: dict[str, dict[int, StepRecord]] = defaultdict(dict)
        for step in steps:
            self._by_place[parent_key(step.path)][step.place] = step
        self._replayed: set[str] = set()
        self._actions: dict[str, list[StepRecord]] = defaultdict(list)
        for step in sorted(filter(_is_ended_action, steps), key=end_of):
            for path in paths_to(step.path):
                self._actions[path].append(step)
        self._calls: dict[str, list[CallRecord]] = defaultdict(list)
        for call in calls:
            for path in paths_to(call.step_path):
                self._calls[path].append(call)

    def __bool__(self) -> bool:
        return bool(self._by_path)

    def find(
        self, step_path: StepPath, kind: StepKind, arguments: bytes | None = None
    ) -> StepRecord | None:
        """The record of the step that begins now; None if it is new.

        Args:
            arguments: a digest of its arguments; None: they are not compared.
        Raises:
            FlowChanged: another step is recorded at this place, or this step with other
                arguments.
            OutcomeUnknown: this step is recorded with other arguments, as an external effect with
                an unknown outcome.
        """
        if not self._by_path:
            return None
        key = parent_key(step_path.text)
        recorded = self._by_place[key].get(step_path.place)
        if recorded is None:
            return None
        now = f"{kind} {step_path.text}"
        if (recorded.path, recorded.kind) != (step_path.text, kind):
            self._forget_changed(key, recorded, now)
            return None
        is_compared = (
            None not in (arguments, recorded.arguments)
            and _WRAP_UP_MARK not in step_path.text
            and not is_up_to(recorded, self._not_compared)
        )
        if is_compared and arguments != recorded.arguments:
            if recorded.effects is Effects.EXTERNAL and not _has_known_outcome(recorded):
                raise OutcomeUnknown(self._run_id, recorded.path)  # even with allow_changed
            self._forget_changed(key, recorded, f"{now} {_OTHER_ARGUMENTS}")
            return None
        self._replayed.add(step_path.text)
        self._order.begin(recorded)
        return recorded

    def at(self, path: str) -> StepRecord | None:
        """The record of the step with this path; None if there is none."""
        return self._by_path.get(path)

    def calls_of(self, path: str) -> Sequence[CallRecord]:
        """The calls made within a step; of a call's own step, that call."""
        return self._calls.get(path, ())

    @property
    def workspaces(self) -> set[str]:
        """The names of all workspaces."""
        return {step.workspace for step in self._by_path.values() if step.workspace is not None}

    def actions_of(self, path: str) -> Sequence[StepRecord]:
        """The ended steps with a workspace within a step, and that step itself, in their order."""
        return self._actions.get(path, ())

    def require_new_effect(self, step_path: StepPath, name: str) -> None:
        """Make sure that a task's first step, a new external effect, did not happen before.

        A task that the runtime did not start is identified by its first step and the arguments of
        that. If the arguments differ in each execution, the same effect would look like a new one.

        Raises:
            FlowChanged: an external effect of this name is recorded under such a task, and has
                not been replayed yet: it may be the same effect with other arguments.
        """
        key = parent_key(step_path.text)
        tasks = key[: key.rindex("[") + 1] + TASK
        for path, step in self._by_path.items():
            if (
                (step.kind, step.effects, step.name) == (StepKind.TOOL, Effects.EXTERNAL, name)
                and path not in self._replayed
                and parent_key(path).startswith(tasks)
            ):
                now = f"{step.kind} {step_path.text} {_OTHER_ARGUMENTS}"
                self._forget_changed(key, step, now)
                return

    def require_left(self, answer: StepRecord) -> None:
        """Make sure that the flow reads no further in an answer that it left before.

        Raises:
            FlowChanged: always, unless changes are allowed.
        """
        recorded = self._by_path.get(answer.path)
        if recorded is not None:
            self._forget_changed(parent_key(answer.path), recorded, "to read all of its answer")

    def require_no_more(self, step_path: StepPath) -> None:
        """Make sure, when all code at a path has run, that no further step is recorded there.

        Raises:
            FlowChanged: there is one.
        """
        if self._by_path and (left := self._by_place[step_path.key].get(step_path.num_entered)):
            self._forget_changed(step_path.key, left, "no further step")

    def _forget_changed(self, key: str, recorded: StepRecord, now: str) -> None:
        """Forget a recorded step and all that followed it at its path, if `allow_changed`.

        Args:
            key: of the path from which it began.
            now: what the flow does instead.
        Raises:
            FlowChanged: changes are not allowed.
        """
        was = f"{recorded.kind} {recorded.path}"
        if not self._allow_changed:
            raise FlowChanged(self._run_id, was, now)
        logger.warning(
            "run %s: %s is recorded where the flow now begins %s; the record is discarded",
            self._run_id,
            was,
            now,
        )
        self._forget_from(key, recorded.place)

    def step_succeeded(self, step_path: StepPath) -> None:
        """A step has its result.

        If its error ended the run before, the steps recorded after it handled that error. They
        are forgotten, as this time there is none.
        """
        if (step := self._by_path.get(step_path.text)) is not None and step.ended_run:
            self._forget_from(parent_key(step_path.text), step_path.place + 1)

    def _forget_from(self, key: str, place: int) -> None:
        """Forget the steps begun from a path at this place and later, and all within them."""
        later = [step for at, step in self._by_place[key].items() if at >= place]
        gathered = [
            step
            for path, step in self._by_path.items()
            for branches in self._gathers_from(key, place)
            if branches.match(parent_key(path))
        ]
        for step in later + gathered:
            self._forget(self._remove(step.path))

    def _gathers_from(self, key: str, place: int) -> list[re.Pattern[str]]:
        """For each gather begun at this place or later, a pattern of its branches' keys."""
        steps = sorted(self._by_place[key].items())
        gathers = [at for at, step in steps if step.name.startswith(GATHER)]
        return [
            re.compile(re.escape(f"{key}[{branch_prefix(number)}") + r"\d+]")
            for number, at in enumerate(gathers, start=1)
            if at >= place
        ]

    def _remove(self, path: str) -> list[str]:
        """Remove a step and all steps within it; returns their paths."""
        removed = [each for each in self._by_path if each == path or each.startswith(f"{path}/")]
        for each in removed:
            step = self._by_path.pop(each)
            del self._by_place[parent_key(each)][step.place]
        self._order.drop(*removed)
        return removed


def answers_to_ask_again(steps: Sequence[StepRecord], calls: Sequence[CallRecord]) -> set[str]:
    """The paths of answers that the flow left early, after which nothing began in the run.

    So nothing depends on what it had read, and it may have left by the error that ended the run.
    """
    last_status = {
        call.step_path: call.status for call in sorted(calls, key=lambda each: each.node)
    }
    last_began_s = max((step.started_s for step in steps), default=0.0)
    return {
        step.path
        for step in steps
        if (step.kind, step.status) == (StepKind.LLM, Status.COMPLETED)
        and last_status.get(step.path) is Status.CANCELLED
        and (step.finished_s or 0.0) > last_began_s
    }


def is_up_to(step: StepRecord, outcome_number: int) -> bool:
    """Whether a step has an outcome with at most this number."""
    return step.outcome_number is not None and step.outcome_number <= outcome_number


def _is_ended_action(step: StepRecord) -> bool:
    """Whether a step acted in or beside a workspace, and came to its end or was cut off."""
    is_ended = step.outcome_number is not None or step.status is Status.CANCELLED
    return step.workspace is not None and is_ended


def _has_known_outcome(step: StepRecord) -> bool:
    """Whether it is known how a step ended."""
    return step.ended_run or step.status in (Status.COMPLETED, Status.FAILED)
