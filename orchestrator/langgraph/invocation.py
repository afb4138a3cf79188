"""One invocation of an attached graph: a run of its own, or a step of the current run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import set_config_context
from langgraph.pregel import Pregel

from orchestrator.cancellation import until_ended
from orchestrator.durability.values import ValueCodec
from orchestrator.execution.context import CallContext, current_context, current_context_or_none
from orchestrator.execution.deadline_handling import (
    DeadlineHandling,
    OnDeadline,
    run_by_own_deadline,
)
from orchestrator.execution.step_execution import StepSpec, run_step
from orchestrator.execution.threads import run_in_thread
from orchestrator.kept_runtime import shared_runtime
from orchestrator.langgraph.callbacks import (
    GraphCallbacks,
    outer_config_without_ours,
    with_callbacks,
)
from orchestrator.langgraph.event_loops import run_on_loop
from orchestrator.langgraph.recording import GraphRecorder, record_graphs
from orchestrator.langgraph.state_codec import STATE
from orchestrator.langgraph.streaming import GraphResult, GraphStream
from orchestrator.langgraph.workspaces import GraphWorkspaces
from orchestrator.sdk.flow import Flow
from store.records import StepKind

WrapUp = Callable[[Any], Any] | Runnable[Any, Any]

Deliver = Callable[[Any], Awaitable[None] | None]

_END = object()


@dataclass(frozen=True, slots=True)
class Limits:
    """The deadline of a graph's invocations and what happens then; see `attach`."""

    deadline_s: float | None
    on_deadline: OnDeadline
    wrap_up: WrapUp | None
    tail_s: float | None


class GraphRun:
    """One invocation; `invoke` or `stream` is called once, on the event loop of the run.

    Args:
        options: keyword arguments of the graph's `invoke` or `stream`, without the config.
        in_thread: use the graph's synchronous methods, in a thread.
        workspaces: opens the graph's workspace; None: it has none of its own.
    """

    def __init__(
        self,
        graph: Pregel[Any, Any, Any, Any],
        name: str,
        limits: Limits,
        input: Any,  # noqa: A002
        config: RunnableConfig | None,
        options: Mapping[str, Any],
        *,
        in_thread: bool,
        workspaces: GraphWorkspaces | None = None,
    ) -> None:
        self._graph = graph
        self._name = name
        self._limits = limits
        self._input = input
        self._config = config
        self._options = dict(options)
        self._in_thread = in_thread
        self._workspaces = workspaces
        self._is_complete = False  # whether the graph ended before its deadline
        self._wrap_up_results: list[Any] = []

    async def invoke(self) -> Any:
        """Run the graph to its end, or to its deadline; returns its result."""
        result = GraphResult(self._graph, self._options)
        stream = self._make_stream()

        def value() -> Any:
            if self._wrap_up_results:
                return self._wrap_up_results[0]
            return result.value() if self._is_complete else result.output_of(stream.state)

        return await self._run_recorded(stream, result.add, value)

    async def stream(self) -> AsyncGenerator[Any, None]:
        """The graph's stream; the graph pauses until the next chunk is requested."""
        stream, chunks = self._make_stream(), asyncio.Queue[Any]()
        delivered: list[Any] = []
        is_step = current_context_or_none() is not None  # then all chunks are its result

        async def deliver(chunk: Any) -> None:
            if is_step:
                delivered.append(chunk)
            chunks.put_nowait(chunk)
            await chunks.join()

        def value() -> list[Any]:
            final = [stream.final_chunk(result) for result in self._wrap_up_results]
            return [*delivered, *final]

        task = asyncio.create_task(self._run_recorded(stream, deliver, value))
        task.add_done_callback(_retrieve_error)
        task.add_done_callback(lambda _: chunks.put_nowait(_END))
        try:
            while (chunk := await chunks.get()) is not _END:
                yield chunk
                chunks.task_done()
            for chunk in (await task)[len(delivered) :]:  # of a replayed step: all chunks
                yield chunk
        finally:
            task.cancel()
            await until_ended([task])

    def _make_stream(self) -> GraphStream:
        modes = self._options.pop("stream_mode", None) or self._graph.stream_mode
        stream = GraphStream(
            modes,
            subgraphs=bool(self._options.get("subgraphs")),
            version=self._options.get("version", "v1"),
        )
        self._options["stream_mode"] = stream.modes
        return stream

    async def _run_recorded(
        self, stream: GraphStream, deliver: Deliver, value: Callable[[], Any]
    ) -> Any:
        """Execute the graph as a run, or as a step of the current run.

        Args:
            deliver: called with each chunk of the stream.
            value: called at the end; returns the result.
        """

        async def body() -> None:
            async with AsyncExitStack() as resources:
                context = await self._open_workspace(resources)
                await record_graphs(
                    context,
                    what=self._name,
                    work=lambda recorder: self._execute(recorder, stream, deliver),
                )
            self._is_complete = True

        context = current_context_or_none()
        if context is not None:
            return await self._run_as_step(context, body, stream, value)
        flow = Flow(
            body=body,  # a local function, so no resume can find it: LangGraph resumes its graphs
            name=self._name,
            deadline_s=self._limits.deadline_s,
            deadline_handling=self._deadline_handling(stream),
        )
        async with shared_runtime() as runtime:
            await runtime.run(flow)
        return value()

    async def _open_workspace(self, resources: AsyncExitStack) -> CallContext:
        """Open the graph's workspace, if it has one; returns the context of what it does."""
        if self._workspaces is None:
            return current_context("attach()")
        opened = await resources.enter_async_context(
            self._workspaces.opened(
                self._graph, self._config, self._input, in_thread=self._in_thread
            )
        )
        self._graph = opened.graph
        if opened.tracker is not None:
            self._config = with_callbacks(self._config, opened.tracker)
        return opened.context

    async def _run_as_step(
        self,
        context: CallContext,
        body: Callable[[], Awaitable[None]],
        stream: GraphStream,
        value: Callable[[], Any],
    ) -> Any:
        async def work(here: CallContext) -> Any:
            deadline_handling = self._deadline_handling(stream)
            await run_by_own_deadline(
                here, self._name, self._limits.deadline_s, deadline_handling, body
            )
            return value()

        spec = StepSpec(self._name, StepKind.STEP, STATE)
        return await run_step(context, spec, work, is_whole=False)

    async def _execute(
        self, recorder: GraphRecorder, stream: GraphStream, deliver: Deliver
    ) -> None:
        config = with_callbacks(self._config, GraphCallbacks(recorder))
        execute = self._execute_in_thread if self._in_thread else self._execute_here
        outer_config = outer_config_without_ours()
        if outer_config is None:
            await execute(recorder, stream, deliver, config)
            return
        with set_config_context(outer_config) as context:
            work = execute(recorder, stream, deliver, config)
            await asyncio.create_task(work, context=context)

    async def _execute_here(
        self,
        recorder: GraphRecorder,
        stream: GraphStream,
        deliver: Deliver,
        config: RunnableConfig,
    ) -> None:
        chunks: Any = self._graph.astream(self._input, config, **self._options)
        async with aclosing(chunks):
            async for chunk in chunks:
                for requested in stream.accept(chunk):
                    await _await_if_needed(deliver(requested))

    async def _execute_in_thread(
        self,
        recorder: GraphRecorder,
        stream: GraphStream,
        deliver: Deliver,
        config: RunnableConfig,
    ) -> None:
        loop, delivering = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        async def deliver_on_loop(chunk: Any) -> None:
            recorder.require_open()
            task = asyncio.current_task()
            assert task is not None
            delivering.add(task)
            try:
                await _await_if_needed(deliver(chunk))
            finally:
                delivering.discard(task)

        def work() -> None:
            chunks: Any = self._graph.stream(self._input, config, **self._options)
            try:
                for chunk in chunks:
                    for requested in stream.accept(chunk):
                        run_on_loop(loop, self._name, partial(deliver_on_loop, requested))
            finally:
                chunks.close()

        try:
            await run_in_thread(work, name=self._name)
        finally:
            for task in delivering:
                task.cancel()

    def _deadline_handling(self, stream: GraphStream) -> DeadlineHandling:
        """What happens at the deadline.

        "best_so_far" is a wrap-up too, one that does nothing: the stream already has the state.
        """
        limits = self._limits
        if limits.on_deadline == "fail":
            return DeadlineHandling()

        async def wrap_up(_: Any) -> None:
            if limits.wrap_up is not None:
                await self._wrap_up(limits.wrap_up, stream.state)

        tail_s = 0.0 if limits.wrap_up is None and limits.tail_s is None else limits.tail_s
        return DeadlineHandling("wrap_up", wrap_up, tail_s)

    async def _wrap_up(self, wrap_up: WrapUp, state: Any) -> None:
        """Wrap up as a step of the run, in which calls of LangChain models are recorded too."""

        async def call(recorder: GraphRecorder) -> Any:
            with set_config_context({"callbacks": [GraphCallbacks(recorder)]}) as context:
                return await asyncio.create_task(_call_wrap_up(wrap_up, state), context=context)

        async def work(here: CallContext) -> None:
            self._wrap_up_results.append(await record_graphs(here, what="wrap-up", work=call))

        spec = StepSpec("wrap-up", StepKind.STEP, ValueCodec("wrap-up", type(None)))
        await run_step(current_context("attach()"), spec, work)


async def _call_wrap_up(wrap_up: WrapUp, state: Any) -> Any:
    if isinstance(wrap_up, Runnable):
        return await wrap_up.ainvoke(state)
    if inspect.iscoroutinefunction(wrap_up):
        return await wrap_up(state)
    result = await run_in_thread(partial(wrap_up, state), name="wrap-up")
    return await result if inspect.isawaitable(result) else result


async def _await_if_needed(result: Awaitable[None] | None) -> None:
    if result is not None:
        await result


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's error, so that asyncio does not log it if nothing awaits the task."""
    if not task.cancelled():
        task.exception()
