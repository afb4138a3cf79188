"""A foreign graph's execution -> steps and calls of a run, as its callbacks tell of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.outputs import LLMResult
from langgraph.errors import GraphBubbleUp, ParentCommand

from orchestrator.durability.values import ValueCodec
from orchestrator.errors import RunEnded
from orchestrator.execution.calls import run_llm_call, run_tool_call
from orchestrator.execution.causality import frontier
from orchestrator.execution.context import CallContext, using_context
from orchestrator.execution.step_execution import StepSpec, run_step
from orchestrator.langgraph.dependencies import FanOuts, GraphPlace, Reserved, Span
from orchestrator.langgraph.external_model import ExternalModel, ExternalReply, model_name
from orchestrator.langgraph.write_order import RecordTasks
from serving.generation import GenerationRequest
from store.records import Effects, StepKind

T = TypeVar("T")

NAMESPACE = "langgraph_checkpoint_ns"
"""Metadata of LangGraph: which task something belongs to, "node:id", within a subgraph
"outer:id|inner:id"."""

_NOTHING = ValueCodec("what a graph did", type(None))


class GraphRecorder:
    """Records what happens in one execution of a graph under a position of a run.

    Its events come from any thread, and are noted on the run's loop in their order. Each step and
    call is written by a task of its own, which waits for those that it depends on; the graph does
    not wait for that, except where the call is ours.

    Attributes:
        loop: the run's.
    """

    def __init__(self, context: CallContext, *, what: str) -> None:
        self.loop = asyncio.get_running_loop()
        self._context = context
        self._what = what
        self._thread = threading.get_ident()
        self._root = GraphPlace(context.step_path, entry=(Span(frontier()),))
        self._fan_outs = FanOuts()
        self._places: dict[UUID, GraphPlace] = {}
        self._first_tokens: dict[UUID, tuple[float, float | None]] = {}  # began, first token
        self._tasks = RecordTasks()
        self._closed = False

    async def close(self) -> None:
        """End what is under way, and return once all is recorded; nothing can begin any more."""
        self._closed = True
        for place in self._places.values():
            if place.outcome is not None:
                place.outcome.cancel()
        await self._tasks.close()

    def ends(self) -> list[frozenset[int]]:
        """What follows the graph waited for these calls."""
        return [span.nodes for span in self._root.exits()]

    def require_recorded(self) -> None:
        """Raise what kept something from being recorded, if something did."""
        if self._tasks.failure is not None:
            raise self._tasks.failure

    def require_open(self) -> None:
        """Raise what ended the recording, if something did; from any thread."""
        self.require_recorded()
        if self._closed:
            raise RunEnded(self._what)

    def post(self, event: Callable[[], None]) -> bool:
        """Note an event, at once on the run's own thread; returns whether that is where we are."""
        if threading.get_ident() == self._thread:
            event()
            return True
        if not self._closed:
            self.loop.call_soon_threadsafe(event)
        return False

    def context(self, run_id: UUID) -> CallContext | None:
        """The position of something under way; None where it is not, or not known here."""
        place = self._places.get(run_id)
        return None if place is None else self._context_of(place)

    async def answer(self, run_id: UUID, work: Callable[[CallContext], Awaitable[T]]) -> T:
        """Do the work of a model's call that began here, in its place."""
        self.require_open()
        place = self._places[run_id]
        context = self._context_of(place)
        place.span = self._tasks.span(place.entry, lambda: work(context))
        value: T = await self._tasks.answered(place.span)
        return value

    # What follows is called on the run's loop, by post().

    def chain_began(
        self,
        run_id: UUID,
        parent_id: UUID | None,
        metadata: Mapping[str, Any],
        *,
        hidden: bool = False,
    ) -> None:
        """A graph, a node or any other runnable has begun; a hidden one is LangGraph's own."""
        parent = self._parent(parent_id)
        namespace = str(metadata.get(NAMESPACE, parent.namespace))
        if hidden or parent is self._root or namespace in ("", parent.namespace):
            self._add(run_id, parent, namespace=namespace, step_path=parent.step_path)
            return
        node = str(metadata.get("langgraph_node", "node"))
        superstep = None
        index = (*(metadata.get("langgraph_path") or ()), None, None)[1]  # among those sent to
        if parent.is_task(namespace) and not isinstance(index, tuple | list):
            superstep = int(metadata.get("langgraph_step", 0))  # else it was called by a task
        outer = parent.step_path
        if superstep is not None and isinstance(index, int):
            outer = self._fan_outs.step_path(parent, superstep, index)
        place = self._add(
            run_id,
            parent,
            namespace=namespace,
            step_path=outer.enter(node),
            node=node,
            superstep=superstep,
        )
        context = self._context_of(place, Reserved(outer, place.step_path))
        self._tasks.write(place, self._step(context, node, self._outcome(place)))

    def tool_began(self, run_id: UUID, parent_id: UUID | None, name: str) -> None:
        """A tool or a retriever has begun."""
        parent = self._parent(parent_id)
        outer = parent.step_path
        place = self._add(run_id, parent, namespace=parent.namespace, step_path=outer.enter(name))
        context = self._context_of(place, Reserved(outer, place.step_path))
        spec = StepSpec(name, StepKind.TOOL, _NOTHING, Effects.EXTERNAL)
        outcome = self._outcome(place)

        async def until_done(_: CallContext) -> None:
            await outcome

        place.span = self._tasks.span(place.entry, lambda: run_tool_call(context, spec, until_done))
        self._tasks.write(place, place.span.task)

    def model_began(
        self,
        run_id: UUID,
        parent_id: UUID | None,
        *,
        ours: bool,
        prompt: str,
        parameters: Mapping[str, Any],
        metadata: Mapping[str, Any],
    ) -> None:
        """A model has been asked; one of ours is recorded by itself, in `answer`."""
        parent = self._parent(parent_id)
        place = self._add(run_id, parent, namespace=parent.namespace, step_path=parent.step_path)
        if ours:
            return
        self._first_tokens[run_id] = (self._context.run.clock.now_s(), None)
        foreign = ExternalModel(model_name(parameters, metadata), self._outcome(place))
        context = self._context_of(place)
        context = context.derive(run=replace(context.run, engine=foreign))
        max_tokens, temperature = parameters.get("max_tokens"), parameters.get("temperature")
        asked = GenerationRequest(
            request_id="",
            prompt=prompt,
            max_tokens=max_tokens if isinstance(max_tokens, int) else None,
            temperature=temperature if isinstance(temperature, int | float) else 1.0,
        )

        def call() -> Awaitable[Any]:
            return run_llm_call(context, asked)

        place.span = self._tasks.span(place.entry, call)
        self._tasks.write(place, place.span.task)

    def token_came(self, run_id: UUID) -> None:
        """A model has begun to answer."""
        began_s, first_s = self._first_tokens.get(run_id, (0.0, 0.0))
        if first_s is None:
            self._first_tokens[run_id] = (began_s, self._context.run.clock.now_s() - began_s)

    def model_ended(self, run_id: UUID, result: LLMResult) -> None:
        """A model has answered."""
        began_s, first_s = self._first_tokens.pop(run_id, (0.0, None))
        self.ended(
            run_id, ExternalReply(result, first_s, self._context.run.clock.now_s() - began_s)
        )

    def ended(self, run_id: UUID, value: object = None, error: BaseException | None = None) -> None:
        """Something has ended; an interrupt, with which a graph waits for its user, is no error."""
        place = self._places.pop(run_id, None)
        if place is None:
            return
        if place.parent is not None:
            place.parent.ended(place)
        outcome = place.outcome
        if outcome is None or outcome.done():
            return
        place.error = error
        if error is None or isinstance(error, ParentCommand):
            outcome.set_result(value)
        elif isinstance(error, Exception) and not isinstance(error, GraphBubbleUp | StopIteration):
            outcome.set_exception(error)
            outcome.exception()  # seen: asyncio is not to report it if nobody waits any more
        else:
            outcome.cancel()

    async def _step(self, context: CallContext, name: str, outcome: asyncio.Future[Any]) -> None:
        async def until_done(_: CallContext) -> None:
            await outcome

        await run_step(context, StepSpec(name, StepKind.STEP, _NOTHING), until_done)

    def _parent(self, run_id: UUID | None) -> GraphPlace:
        return self._root if run_id is None else self._places.get(run_id, self._root)

    def _add(
        self,
        run_id: UUID,
        parent: GraphPlace,
        *,
        superstep: int | None = None,
        node: str = "",
        **facts: Any,
    ) -> GraphPlace:
        entry = parent.begun(superstep=superstep, node=node)
        place = GraphPlace(parent=parent, entry=entry, superstep=superstep, node=node, **facts)
        self._places[run_id] = place
        return place

    def _context_of(self, place: GraphPlace, step_path: Any = None) -> CallContext:
        return self._context.derive(
            step_path=step_path or place.step_path,
            owner=None,  # LangGraph begins tasks as it likes, and goes on with its graphs itself
            stage_calls=place.side_by_side(),
        )

    def _outcome(self, place: GraphPlace) -> asyncio.Future[Any]:
        if place.outcome is None:
            place.outcome = self.loop.create_future()
        return place.outcome


async def recorded(
    context: CallContext, *, what: str, work: Callable[[GraphRecorder], Awaitable[T]]
) -> T:
    """Do work at a position, with what records the graphs in it; what follows waited for them.

    Raises:
        StoreError: something of it could not be recorded.
        And what the work raises.
    """
    recorder = GraphRecorder(context, what=what)
    try:
        with using_context(context):
            value = await work(recorder)
    finally:
        await recorder.close()
        context.run.causality.join(recorder.ends())
    recorder.require_recorded()
    return value
