"""Records the execution of a LangGraph graph, as its callbacks report it, as steps and calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.outputs import LLMResult
from langgraph.errors import GraphBubbleUp, NodeCancelledError, ParentCommand

from orchestrator.durability.identity import StepPath
from orchestrator.durability.values import ValueCodec
from orchestrator.errors import RunEnded
from orchestrator.execution.calls import run_llm_call, run_tool_call
from orchestrator.execution.carried_slo import SloHandover
from orchestrator.execution.causality import frontier
from orchestrator.execution.context import CallContext, using_context
from orchestrator.execution.engines import Engines
from orchestrator.execution.step_execution import StepSpec, run_step
from orchestrator.langgraph.dependencies import Activity, FanOuts, PendingCall, ReservedPath
from orchestrator.langgraph.external_model import ExternalModel, ExternalReply, model_name
from orchestrator.langgraph.write_order import RecordTasks
from serving.generation import GenerationRequest
from store.records import Effects, StepKind

T = TypeVar("T")

NAMESPACE = "langgraph_checkpoint_ns"
"""LangGraph's metadata key of the task that something belongs to: "node:id", or "outer:id|inner:id"
within a subgraph."""

_NOTHING = ValueCodec("a step of a graph", type(None))


class GraphRecorder:
    """Records one execution of a graph within a run.

    Its events arrive from any thread and are handled on the run's event loop, in order. Each step
    and call is recorded by a task of its own, after those that it depends on. The graph does not
    wait for these tasks, except for calls of ChatOrchestrate.

    Attributes:
        loop: the run's event loop.
    """

    def __init__(self, context: CallContext, *, what: str) -> None:
        self.loop = asyncio.get_running_loop()
        self._context = context
        self._what = what
        self._thread = threading.get_ident()
        self._root = Activity(context.step_path, dependencies=(PendingCall(frontier()),))
        self._fan_outs = FanOuts()
        self._activities: dict[UUID, Activity] = {}
        # By model call: its start on the run's clock, and the seconds to its first token.
        self._first_tokens: dict[UUID, tuple[float, float | None]] = {}
        self._tasks = RecordTasks()
        self._closed = False

    async def close(self) -> None:
        """Refuse new activities, cancel those in progress, and wait until all is recorded."""
        self._closed = True
        for activity in self._activities.values():
            if activity.outcome is not None:
                activity.outcome.cancel()
        await self._tasks.close()

    def last_calls(self) -> list[frozenset[int]]:
        """The calls on which the code after the graph depends."""
        return [call.nodes for call in self._root.last_calls()]

    def require_recorded(self) -> None:
        """Raise the error, if there was one, that kept something from being recorded."""
        if self._tasks.failure is not None:
            raise self._tasks.failure

    def require_open(self) -> None:
        """Raise RunEnded after `close`, or the error that stopped the recording; any thread."""
        self.require_recorded()
        if self._closed:
            raise RunEnded(self._what)

    def handover(self) -> SloHandover:
        """For a model call that begins: how its HTTP request will get its SLO; any thread."""
        return SloHandover(self.loop, lambda: self._closed, self._what)

    def post(self, event: Callable[[], None]) -> bool:
        """Handle an event on the run's thread: at once if this is it, else soon.

        Returns:
            Whether this is the run's thread.
        """
        if threading.get_ident() == self._thread:
            event()
            return True
        if not self._closed:
            self.loop.call_soon_threadsafe(event)
        return False

    def context(self, run_id: UUID) -> CallContext | None:
        """The context of an activity in progress; None if it has ended or is not known here."""
        activity = self._activities.get(run_id)
        return None if activity is None else self._context_of(activity)

    async def run_model_call(self, run_id: UUID, work: Callable[[CallContext], Awaitable[T]]) -> T:
        """Run the work of a call of ChatOrchestrate that began in the graph, in its context."""
        self.require_open()
        activity = self._activities[run_id]
        context = self._context_of(activity)
        activity.call = self._tasks.begin_call(activity.dependencies, lambda: work(context))
        value: T = await self._tasks.wait_for_answer(activity.call)
        return value

    # The methods below are called on the run's event loop, by post().

    def chain_began(
        self,
        run_id: UUID,
        parent_id: UUID | None,
        metadata: Mapping[str, Any],
        *,
        hidden: bool = False,
    ) -> None:
        """A graph, a node or another runnable has begun; a hidden one is LangGraph's own."""
        parent = self._parent(parent_id)
        namespace = str(metadata.get(NAMESPACE, parent.namespace))
        if hidden or parent is self._root or namespace in ("", parent.namespace):
            self._add(run_id, parent, namespace=namespace, step_path=parent.step_path)
            return
        node = str(metadata.get("langgraph_node", "node"))
        superstep = None
        # The index of a Send; of a task that another task called, a tuple.
        index = (*(metadata.get("langgraph_path") or ()), None, None)[1]
        if parent.is_own_task(namespace) and not isinstance(index, tuple | list):
            superstep = int(metadata.get("langgraph_step", 0))
        outer = parent.step_path
        if superstep is not None and isinstance(index, int):
            outer = self._fan_outs.step_path(parent, superstep, index)
        activity = self._add(
            run_id,
            parent,
            namespace=namespace,
            step_path=outer.enter(node),
            node=node,
            superstep=superstep,
        )
        context = self._context_of(activity, ReservedPath(outer, activity.step_path))
        self._tasks.record(activity, self._step(context, node, self._outcome(activity)))

    def tool_began(self, run_id: UUID, parent_id: UUID | None, name: str) -> None:
        """A tool or a retriever has begun."""
        parent = self._parent(parent_id)
        outer = parent.step_path
        step_path = outer.enter(name)
        activity = self._add(run_id, parent, namespace=parent.namespace, step_path=step_path)
        context = self._context_of(activity, ReservedPath(outer, step_path))
        spec = StepSpec(name, StepKind.TOOL, _NOTHING, Effects.EXTERNAL)
        outcome = self._outcome(activity)

        async def until_done(_: CallContext) -> None:
            await outcome

        def call() -> Awaitable[Any]:
            return run_tool_call(context, spec, until_done)

        activity.call = self._tasks.begin_call(activity.dependencies, call)
        self._tasks.record(activity, activity.call.task)

    def model_began(
        self,
        run_id: UUID,
        parent_id: UUID | None,
        *,
        handover: SloHandover | None,
        prompt: str,
        parameters: Mapping[str, Any],
        metadata: Mapping[str, Any],
    ) -> None:
        """A model call has begun.

        Args:
            handover: gets its SLO; None: a call of ChatOrchestrate, which `run_model_call` records.
        """
        parent = self._parent(parent_id)
        activity = self._add(run_id, parent, namespace=parent.namespace, step_path=parent.step_path)
        if handover is None:
            return
        self._first_tokens[run_id] = (self._context.run.clock.now_s(), None)
        outcome, context = self._outcome(activity), self._context_of(activity)
        handover.begin(context, outcome.done)
        model = ExternalModel(model_name(parameters, metadata), outcome, handover)
        context = context.derive(run=replace(context.run, engines=Engines(model)))
        max_tokens, temperature = parameters.get("max_tokens"), parameters.get("temperature")
        request = GenerationRequest(
            request_id="",
            prompt=prompt,
            max_tokens=max_tokens if isinstance(max_tokens, int) else None,
            temperature=temperature if isinstance(temperature, int | float) else 1.0,
        )

        def call() -> Awaitable[Any]:
            return run_llm_call(context, request)

        activity.call = self._tasks.begin_call(activity.dependencies, call)
        assert activity.call.task is not None, "begin_call starts it"
        activity.call.task.add_done_callback(handover.recorded)
        self._tasks.record(activity, activity.call.task)

    def token_received(self, run_id: UUID) -> None:
        """A model has returned a token; only the first one of a call matters."""
        began_s, ttft_s = self._first_tokens.get(run_id, (0.0, 0.0))
        if ttft_s is None:
            self._first_tokens[run_id] = (began_s, self._context.run.clock.now_s() - began_s)

    def model_ended(self, run_id: UUID, result: LLMResult) -> None:
        """A model has answered."""
        began_s, ttft_s = self._first_tokens.pop(run_id, (0.0, None))
        self.ended(run_id, ExternalReply(result, ttft_s, self._context.run.clock.now_s() - began_s))

    def ended(self, run_id: UUID, value: object = None, error: BaseException | None = None) -> None:
        """An activity has ended; an interrupt, which waits for the user, counts as cancelled."""
        activity = self._activities.pop(run_id, None)
        if activity is None:
            return
        if activity.parent is not None:
            activity.parent.child_ended(activity)
        outcome = activity.outcome
        if outcome is None or outcome.done():
            return
        activity.error = error
        if error is None or isinstance(error, ParentCommand):
            outcome.set_result(value)
        elif isinstance(error, Exception) and not isinstance(error, GraphBubbleUp | StopIteration):
            outcome.set_exception(error)
            outcome.exception()  # retrieved, so that asyncio does not log it if nothing waits
        else:
            outcome.cancel()

    async def _step(self, context: CallContext, name: str, outcome: asyncio.Future[Any]) -> None:
        async def until_done(_: CallContext) -> None:
            await outcome

        await run_step(context, StepSpec(name, StepKind.STEP, _NOTHING), until_done)

    def _parent(self, run_id: UUID | None) -> Activity:
        return self._root if run_id is None else self._activities.get(run_id, self._root)

    def _add(
        self,
        run_id: UUID,
        parent: Activity,
        *,
        namespace: str,
        step_path: StepPath,
        superstep: int | None = None,
        node: str = "",
    ) -> Activity:
        activity = Activity(
            step_path,
            namespace,
            parent,
            parent.begin_child(superstep=superstep, node=node),
            node,
            superstep,
        )
        self._activities[run_id] = activity
        return activity

    def _context_of(self, activity: Activity, step_path: StepPath | None = None) -> CallContext:
        return self._context.derive(
            step_path=step_path or activity.step_path,
            owner=None,  # LangGraph starts tasks of its own, and resumes its graphs itself
            stage_calls=activity.num_parallel_tasks(),
        )

    def _outcome(self, activity: Activity) -> asyncio.Future[Any]:
        if activity.outcome is None:
            activity.outcome = self.loop.create_future()
        return activity.outcome


async def record_graphs(
    context: CallContext, *, what: str, work: Callable[[GraphRecorder], Awaitable[T]]
) -> T:
    """Run work with a recorder for the graphs in it; the code afterwards depends on their calls.

    Args:
        what: names the work in errors.
    Raises:
        StoreError: something could not be recorded.
        And what the work raises.
    """
    recorder = GraphRecorder(context, what=what)
    try:
        with using_context(context):
            value = await work(recorder)
    except NodeCancelledError:  # LangGraph's for a CancelledError that a node raises in a thread
        if context.remaining_s() <= 0:
            raise asyncio.CancelledError from None
        raise
    finally:
        await recorder.close()
        context.run.causality.join(recorder.last_calls())
    recorder.require_recorded()
    return value
