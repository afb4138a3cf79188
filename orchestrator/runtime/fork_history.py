"""What a fork keeps of a run: all up to the outcome of one step. Pure.

The outcomes of a run are numbered in the order in which they reached the flow, also where branches
run side by side, and a resumed run gets them in that order again. A fork at a step keeps the
outcomes with numbers up to that step's. So of a parallel branch it has the steps that ended before,
and what was in progress there begins anew.

| of the run | in the fork |
|---|---|
| a step with a kept outcome, and all within it | as it was |
| a step around one that is kept, which ended later | is in progress |
| any other step | begins anew |
| a step that was cut off before, by a limit or a failing branch | as it was, as in a resumed run |
| a recorded value, such as a time or a random number | kept if it came before the outcome |

A value came before if the flow's code passes it on its way to something kept or, in a branch
beside, if it was recorded earlier.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.durability.identity import (
    GATHER,
    gather_number,
    parent_key,
    paths_to,
    split_branch,
)
from orchestrator.durability.replay import answers_to_ask_again, is_up_to
from orchestrator.durability.uncertain_effects import uncertain_effect_of
from orchestrator.errors import NoForkPoint
from store.records import (
    GONE,
    CallRecord,
    EdgeRecord,
    Effects,
    StageRecord,
    Status,
    StepKind,
    StepRecord,
)
from store.state_records import CheckpointRecord, StateEdgeRecord


@dataclass(frozen=True, slots=True)
class RunHistory:
    """What is recorded of a run beside its own record."""

    steps: Sequence[StepRecord]
    calls: Sequence[CallRecord]
    edges: Sequence[EdgeRecord]
    stages: Sequence[StageRecord]
    state_edges: Sequence[StateEdgeRecord] = ()
    checkpoints: Sequence[CheckpointRecord] = ()


@dataclass(frozen=True, slots=True)
class ForkHistory:
    """What a fork begins with.

    Attributes:
        at: the step at which the run is forked, as the run has it.
        kept: what the fork has of the run, as its own records.
        lost_effects: the external effects that took place in the run, or may have, and of which
            the fork does not know: paths of their steps.
    """

    at: StepRecord
    kept: RunHistory
    lost_effects: tuple[str, ...]

    @property
    def outcome_number(self) -> int:
        """Up to which number the run's outcomes are kept."""
        assert self.at.outcome_number is not None, "see find_fork_point"
        return self.at.outcome_number

    @property
    def age_s(self) -> float:
        """Seconds from the run's start to the step's outcome, on the run's clock."""
        return _ended_s(self.at)


def find_fork_point(
    run_id: str,
    steps: Sequence[StepRecord],
    at: str,
    checkpoints: Sequence[CheckpointRecord] = (),
) -> StepRecord:
    """The step that `at` names.

    Its path; or the name of the checkpoint that it made, the last one of that name; or the
    beginning or the end of its path alone.

    Raises:
        NoForkPoint: there is none with an outcome, or several.
    """
    ended = [step for step in steps if step.outcome_number is not None]
    ended.sort(key=lambda step: step.outcome_number or 0)
    for step in ended:
        if step.path == at:
            return step
    paths = {each.path for each in checkpoints if each.name == at}
    if named := [step for step in ended if step.path in paths]:
        return named[-1]
    if any(step.path == at for step in steps):
        reason = "it has no outcome yet, or is a recorded value; steps with an outcome"
        raise NoForkPoint(run_id, at, reason, tuple(step.path for step in ended))
    found = [step for step in ended if at and (step.path.startswith(at) or step.path.endswith(at))]
    if len(found) == 1:
        return found[0]
    reason = "several steps begin or end so" if found else "it has no such step; with an outcome"
    raise NoForkPoint(run_id, at, reason, tuple(step.path for step in found or ended))


def history_up_to(at: StepRecord, run: RunHistory, *, fork_id: str) -> ForkHistory:
    """What a fork at a step begins with.

    Args:
        at: a step of the run with an outcome.
        fork_id: the fork's run id.
    """
    return _Fork(at, run).history(fork_id)


class _Fork:
    """Finds out what a fork at a step keeps."""

    def __init__(self, at: StepRecord, run: RunHistory) -> None:
        assert at.outcome_number is not None, "see find_fork_point"
        self._at, self._run, self._last = at, run, at.outcome_number
        self._age_s = _ended_s(at)
        self._places = _Places(run.steps)
        self._places_of_at = dict(self._places.of(at))
        asked_again = answers_to_ask_again(run.steps, run.calls)
        self._whole = {
            step.path
            for step in run.steps
            if is_up_to(step, self._last) and step.path not in asked_again and not step.ended_run
        }
        self._before = {step.path for step in run.steps if self._came_before(step)}
        self._passed: dict[str, int] = defaultdict(lambda: -1)
        for step in run.steps:
            if step.path in self._before:
                for key, place in self._places.of(step):
                    self._passed[key] = max(self._passed[key], place)
        self._first_open: dict[str, float] = defaultdict(lambda: math.inf)
        for step in run.steps:
            if step.kind is not StepKind.VALUE and step.path not in self._before:
                key = parent_key(step.path)
                self._first_open[key] = min(self._first_open[key], step.place)

    def history(self, fork_id: str) -> ForkHistory:
        """What the fork begins with."""
        steps, lost = [], []
        kept_paths: set[str] = set()
        for step in sorted(self._run.steps, key=lambda each: each.path.count("/")):
            kept = self._kept(step, kept_paths)
            if kept is not None:
                kept_paths.add(step.path)
                # The copy is not reused by other runs: a result's age counts from where it is made.
                steps.append(replace(kept, run_id=fork_id, reuse_key=None))
            elif _may_have_happened(step):
                lost.append(step)
        lost.sort(key=lambda step: step.started_s)
        calls = self._calls(fork_id)
        nodes, stages = {call.node for call in calls}, {call.stage for call in calls}
        return ForkHistory(
            at=self._at,
            kept=RunHistory(
                steps,
                calls,
                [
                    replace(edge, run_id=fork_id)
                    for edge in self._run.edges
                    if edge.parent in nodes and edge.child in nodes
                ],
                [
                    replace(stage, run_id=fork_id)
                    for stage in self._run.stages
                    if stage.stage in stages
                ],
                [
                    replace(edge, run_id=fork_id)
                    for edge in self._run.state_edges
                    if edge.path in self._before
                ],
                [
                    replace(checkpoint, run_id=fork_id)
                    for checkpoint in self._run.checkpoints
                    if checkpoint.path in self._before
                ],
            ),
            lost_effects=tuple(step.path for step in lost),
        )

    def _kept(self, step: StepRecord, kept_paths: set[str]) -> StepRecord | None:
        """A step as the fork has it; None if it begins anew there."""
        passed, is_external = self._passed[parent_key(step.path)], _is_external(step)
        if step.path in self._before:
            is_compared = step.outcome_number is not None or is_external
            return step if is_compared else replace(step, arguments=None)
        if step.kind is StepKind.VALUE:
            return step if step.place <= passed or self._value_is_kept(step, kept_paths) else None
        if step.place > passed:
            return None
        if step.place < passed and step.status in (Status.RUNNING, Status.CANCELLED):
            return step if is_external else replace(step, arguments=None)  # it was left as it is
        return None if is_external else _in_progress(step)

    def _came_before(self, step: StepRecord) -> bool:
        """Whether a step had its last state when the outcome came."""
        if not self._whole.isdisjoint(paths_to(step.path)):
            return True
        if step.ended_run:  # it is executed again, as in a resumed run
            return is_up_to(step, self._last)
        if f"[{GONE}" in step.path:
            return step.started_s <= self._age_s
        return step.status is Status.CANCELLED and self._is_earlier(step, step.finished_s)

    def _value_is_kept(self, value: StepRecord, kept_paths: set[str]) -> bool:
        """Whether a value that leads to nothing kept came before the outcome nevertheless."""
        around = paths_to(value.path)[:-1]
        key = parent_key(value.path)
        return (
            (not around or around[-1] in kept_paths)
            and value.place < self._first_open[key]
            and self._is_earlier(value, value.started_s)
        )

    def _is_earlier(self, step: StepRecord, at_s: float | None) -> bool:
        """Whether something that happened at a time came before the outcome.

        Equal times decide nothing, so what the flow's code reaches after the step is later.
        """
        is_after = any(
            place > self._places_of_at.get(key, math.inf) for key, place in self._places.of(step)
        )
        return at_s is not None and at_s <= self._age_s and not is_after

    def _calls(self, fork_id: str) -> list[CallRecord]:
        """The calls of the steps that are kept with their last state.

        Without what the prediction of lengths learns from completed ones: it has that from the run
        itself. Of one that was cut off the features tell how long its prompt was.
        """
        return [
            replace(
                call,
                run_id=fork_id,
                features=None if call.status is Status.COMPLETED else call.features,
            )
            for call in self._run.calls
            if call.step_path in self._before
        ]


class _Places:
    """Where in the flow's code steps are: at which place of each path that led to them."""

    def __init__(self, steps: Sequence[StepRecord]) -> None:
        self._by_path = {step.path: step for step in steps}
        self._gathers: dict[str, list[int]] = defaultdict(list)
        for step in sorted(steps, key=lambda each: each.place):
            if step.kind is StepKind.VALUE and step.name.startswith(GATHER):
                self._gathers[parent_key(step.path)].append(step.place)

    def of(self, step: StepRecord) -> Iterator[tuple[str, int]]:
        """The key and place of a step, of its gather, of the step around and so on.

        Of two steps the one with the higher place at a key of both is reached later.
        """
        within: StepRecord | None = step
        path = step.path
        while path:
            key = parent_key(path)
            if within is not None:
                yield key, within.place
            key, mark = split_branch(key)
            while mark:
                number = gather_number(mark)
                gathers = self._gathers[key]
                if number is not None and number <= len(gathers):
                    yield key, gathers[number - 1]
                key, mark = split_branch(key)
            path = key.removesuffix("/")
            within = self._by_path.get(path)


def _ended_s(step: StepRecord) -> float:
    return step.started_s if step.finished_s is None else step.finished_s


def _in_progress(step: StepRecord) -> StepRecord:
    """A step that has begun, and whose outcome is not known."""
    return replace(
        step,
        status=Status.RUNNING,
        finished_s=None,
        error_type=None,
        error_message=None,
        result=None,
        result_payload=None,
        arguments=None,
        ended_run=False,
        outcome_number=None,
        state_after=None,
    )


def _is_external(step: StepRecord) -> bool:
    return step.effects is Effects.EXTERNAL


def _may_have_happened(step: StepRecord) -> bool:
    """Whether a step is an external effect that took place, or may have."""
    if not _is_external(step) or step.kind is StepKind.VALUE:
        return False
    return step.status is Status.COMPLETED or not uncertain_effect_of(step).has_failed
