"""Loads interrupted runs from the store: arguments and recorded steps, to resume them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.display.run_log import RunLog
from orchestrator.durability.arguments import Arguments, ArgumentsNotRecorded
from orchestrator.durability.liveness import is_orphaned
from orchestrator.durability.questions import age_s
from orchestrator.durability.replay import RecordedSteps, answers_to_ask_again, is_up_to
from orchestrator.durability.uncertain_effects import UncertainEffects
from orchestrator.durability.values import result_codec
from orchestrator.errors import ArgumentsDiffer, RunNotResumable
from orchestrator.execution.causality import CausalLog
from orchestrator.execution.context import CallTrace, LiveRun
from orchestrator.execution.flow_spec import FlowSpec
from orchestrator.execution.length_prediction import recorded_prompt_estimate
from orchestrator.learning.stage_deadlines import StageDeadline
from orchestrator.runtime.flow_loading import load_flow
from orchestrator.runtime.results import RunResult, usage_of
from serving.errors import InvalidReference
from serving.references import is_loaded
from store.errors import RunNotFound
from store.payload_codec import decoded
from store.records import CallRecord, EdgeRecord, RunRecord, Status, StepRecord

if TYPE_CHECKING:
    from store.session import Store

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class InterruptedRun:
    """A recorded run with its steps and calls.

    Attributes:
        input: the recorded arguments; None if they could not be recorded.
        output: the recorded result; None without one.
        checkpoint_names: path of a step -> the name of the checkpoint that it made.
    """

    record: RunRecord
    steps: Sequence[StepRecord]
    calls: Sequence[CallRecord]
    edges: Sequence[EdgeRecord]
    input: bytes | None
    output: bytes | None
    checkpoint_names: Mapping[str, str] = field(default_factory=dict)

    def flow(self, *, may_import: bool) -> FlowSpec[..., Any]:
        """Its flow.

        Args:
            may_import: import its code, which whoever can write the store may have chosen.
        Raises:
            RunNotResumable: its code is not known, cannot be imported or may not be.
        """
        entry = self.record.entry
        if not entry:
            reason = "the module of its flow was not recorded: give the flow itself"
            raise RunNotResumable(self.record.id, reason)
        if not (may_import or is_loaded(entry)):
            reason = (
                f"its flow is {entry}, which this process has not imported: if you trust that,"
                " import it before, or give may_import=True"
            )
            raise RunNotResumable(self.record.id, reason)
        try:
            return load_flow(entry)
        except InvalidReference as error:
            raise RunNotResumable(self.record.id, f"its flow {error}") from error

    def arguments(self, flow: FlowSpec[..., Any], given: Arguments | None = None) -> Arguments:
        """Its recorded arguments, and those of `given` that could not be recorded.

        Raises:
            RunNotResumable: some were not recorded, and are not given.
            ResultUnreadable: the flow's parameters, or their types, have changed.
        """
        if self.input is None:
            if given is not None:
                return given
            reason = "its arguments could not be recorded: call run() with them and its run_id"
            raise RunNotResumable(self.record.id, reason)
        try:
            return Arguments.load(flow.body, self.input, given=given)
        except ArgumentsNotRecorded as error:
            names = ", ".join(error.args[0])
            reason = f"not recorded of its arguments: {names}; call run() with them and its run_id"
            raise RunNotResumable(self.record.id, reason) from error

    @property
    def is_completed(self) -> bool:
        """Whether it has a result already, so that nothing is left to execute."""
        return self.record.status is Status.COMPLETED

    def result(self, flow: FlowSpec[..., R]) -> RunResult[R]:
        """The recorded result of a completed run; raises ResultUnreadable, RunNotResumable."""
        if self.output is None:
            raise RunNotResumable(self.record.id, "it has ended, but its result was not recorded")
        return RunResult(
            value=result_codec(flow.body, f"flow {flow.name}").load(self.output),
            run_id=self.record.id,
            deadline_s=self.record.deadline_s,
            elapsed_s=self.record.elapsed_s or 0.0,
            stages=(),
            usage=usage_of(self.calls),
            log=RunLog(self.record, calls=self.calls, steps=self.steps),
        )

    def require_same(self, flow: FlowSpec[..., Any], arguments: Arguments) -> None:
        """Raise RunNotResumable for another flow, ArgumentsDiffer for other arguments."""
        if self.record.flow != flow.name:
            reason = f"it is a run of {self.record.flow}, not of {flow.name}"
            raise RunNotResumable(self.record.id, reason)
        if self.input is None:
            return
        given = arguments.dump_partly(flow.body)
        if given is None or json.loads(given) != json.loads(self.input):
            raise ArgumentsDiffer(self.record.id)

    def require_orphaned(self) -> None:
        """Raise RunNotResumable while a process executes it."""
        if self.record.status is Status.RUNNING and not is_orphaned(self.record):
            process = f"process {self.record.process_id} on {self.record.host}"
            raise RunNotResumable(self.record.id, f"{process} is executing it")

    def age_s(self, now: datetime) -> float:
        """Seconds since it began, by its own clock."""
        return age_s(self.record, self.steps, now)

    def restore(self, live: LiveRun, *, allow_changed: bool) -> None:
        """Give a live run the recorded steps, the calls and their dependencies of this one."""
        origin = self.record.forked_from
        last_of_origin = -1 if origin is None else int(origin["outcome_number"])
        steps = self._replayable_steps(last_of_origin)
        live.recorder.order.expect(steps)
        live.recorded_steps = RecordedSteps(
            live.id,
            steps,
            self.calls,
            order=live.recorder.order,
            forget=live.recorder.writer.forget,
            allow_changed=allow_changed,
            not_compared=last_of_origin,
        )
        live.checkpoint_names = self.checkpoint_names
        live.uncertain_effects = UncertainEffects(self.steps)
        if live.log is not None:
            live.log.restore(self.calls, self.steps)
        live.causality = CausalLog()
        parents: dict[int, set[int]] = {call.node: set() for call in self.calls}
        for edge in self.edges:
            parents[edge.child].add(edge.parent)
        for call in self.calls:
            live.causality.add(call.node, frozenset(parents[call.node]))
            _restore_call(live, call)

    def _replayable_steps(self, last_of_origin: int) -> list[StepRecord]:
        """The steps; those that are to be executed again count as running.

        They are those that ended the run by errors, and answers that were left at its end. (Not
        at the point where it was forked from another run, which went on.)

        Args:
            last_of_origin: number of the last outcome that it has from another run; -1: none.
        """
        left = answers_to_ask_again(self.steps, self.calls)
        return [
            replace(step, status=Status.RUNNING)
            if step.ended_run or (step.path in left and not is_up_to(step, last_of_origin))
            else step
            for step in self.steps
        ]


async def load_interrupted(store: Store, run_id: str) -> InterruptedRun | None:
    """A recorded run with its steps and calls; None if there is no run with this id."""
    async with store.reading() as tx:
        try:
            record = await tx.runs.get(run_id)
        except RunNotFound:
            return None
        given, result = [
            None if payload_id is None else decoded(store.codec, await tx.payloads.get(payload_id))
            for payload_id in (record.input_payload, record.result_payload)
        ]
        return InterruptedRun(
            record,
            await tx.journal.of_run(run_id),
            await tx.calls.of_run(run_id),
            await tx.calls.edges_of_run(run_id),
            given,
            result,
            {each.path: each.name for each in await tx.states.checkpoints_of_run(run_id)},
        )


def _restore_call(live: LiveRun, call: CallRecord) -> None:
    trace = _trace(live, call)
    live.call_begins(trace)
    if call.finished_s is None:  # it lost its process
        return
    if call.status is Status.COMPLETED:
        live.call_completed(trace, live.started_s + call.finished_s)
    elif call.status is Status.CANCELLED:
        trace.prompt_estimate = recorded_prompt_estimate(call)
        live.call_was_cut_off(trace, live.started_s + call.finished_s)


def _trace(live: LiveRun, call: CallRecord) -> CallTrace:
    start_s = live.started_s
    sub_deadline_s = float("inf") if call.sub_deadline_s is None else start_s + call.sub_deadline_s
    return CallTrace(
        node=call.node,
        kind=call.kind.value,
        identity=call.identity,
        path=call.step_path,
        stage=call.stage,
        began_s=start_s + call.started_s,
        deadline=StageDeadline(sub_deadline_s, call.deadline_source or ""),
        prompt_tokens=call.prompt_tokens or 0,
        output_tokens=call.output_tokens or 0,
        cached_tokens=call.cached_tokens or 0,
    )
