"""attach(): runs an existing LangGraph graph as a recorded run with a deadline and a wrap-up.

    from orchestrator.langgraph import attach

    graph = attach(builder.compile(), deadline="60s", on_deadline="wrap_up", wrap_up=summarise)
    graph.invoke({"topic": "tides"})

It uses the public API of LangGraph 1.2 and langchain-core: callbacks passed in the config,
`stream` and `astream` with the modes "values" and "updates", and a Pregel's `stream_mode`,
`output_channels` and `stream_channels_list`. Two things are not documented there, and are tested:
the metadata `langgraph_checkpoint_ns`, `langgraph_node`, `langgraph_step` and `langgraph_path`, and
the behaviour of inline handlers that callbacks.py describes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.pregel import Pregel

from orchestrator.durations import Duration, seconds_of
from orchestrator.environment.workspace import Workspace
from orchestrator.errors import InvalidDuration
from orchestrator.execution.deadline_handling import DeadlineHandling, OnDeadline
from orchestrator.langgraph.event_loops import (
    await_on_loop,
    iterate_on_loop,
    loop_for_sync_call,
    loop_of_run,
    run_on_loop,
)
from orchestrator.langgraph.invocation import GraphRun, Limits, WrapUp
from orchestrator.langgraph.workspaces import GraphWorkspaces, WorkspaceOption

_END = object()
_UPDATES = ("update_state", "aupdate_state", "bulk_update_state", "abulk_update_state")


def attach(
    graph: Pregel[Any, Any, Any, Any],
    *,
    deadline: Duration | None = None,
    on_deadline: OnDeadline = "fail",
    wrap_up: WrapUp | None = None,
    tail: Duration | None = None,
    name: str | None = None,
    workspace: WorkspaceOption | None = None,
) -> AttachedGraph:
    """Wrap a graph so that each invocation is a recorded run; the graph itself is not changed.

    Each node is recorded as a step, and each call of a chat model or a tool as a call with its
    causal parents. Calls of ChatOrchestrate carry their sub-deadlines to the engine, and are
    aborted there when the deadline passes. Calls of other models are recorded; at the deadline
    the code that awaits them is cancelled. Records are not replayed: to resume a graph, use
    LangGraph's checkpointer.

    Within a run, as in a node of another attached graph, an invocation is a step of that run. It
    can shorten the run's deadline for itself, but not extend it.

    Args:
        graph: a compiled StateGraph, or an entrypoint of the functional API.
        deadline: of each invocation ("60s", or seconds); None: none.
        on_deadline: "fail": raise DeadlineExceeded; "wrap_up": return what `wrap_up` makes of the
            last known state; "best_so_far": return that state.
        wrap_up: a function, async or not, or a Runnable. Its argument is the state after the last
            finished superstep; for an entrypoint, the results of its tasks by name.
        tail: how much of the deadline is reserved for `wrap_up`: a duration ("5s"), a share of the
            deadline (a number below 1) or seconds (from 1); None: a tenth of the deadline.
        name: under which the runs are recorded; the graph's own name by default.
        workspace: a folder, or `workspace(folder, ...)` with options, which each invocation opens
            anew. Nodes and tools have it by `current_workspace()`. With a checkpointer it begins
            in the state that belongs to the checkpoint from which the graph continues; a graph
            without one begins with the folder as it is.
    Raises:
        InvalidDuration: the deadline or the tail is not a duration, or the tail is not shorter
            than the deadline.
        ValueError: an unknown on_deadline, or wrap_up without on_deadline="wrap_up", or a
            workspace that has begun.
    """
    deadline_s = None if deadline is None else seconds_of(deadline)
    DeadlineHandling(on_deadline, None if wrap_up is None else _nothing)
    limits = Limits(deadline_s, on_deadline, wrap_up, _tail_s(tail, deadline_s))
    workspaces = None if workspace is None else GraphWorkspaces(workspace)
    return AttachedGraph(graph, name or graph.get_name(), limits, workspaces)


class AttachedGraph(Runnable[Any, Any]):
    """A graph made by `attach`, used like the graph itself: other attributes are the graph's.

    The synchronous methods run the graph in a thread of its own, so that they return at the
    deadline even if a node blocks; that node's thread is abandoned.

    Attributes:
        graph: the wrapped graph.
    Raises (each invocation):
        DeadlineExceeded: the deadline passed first, and on_deadline is "fail".
        StoreError: the run could not be recorded.
        WouldBlock: a synchronous method was called on the event loop of the open runtime.
        BaseRefused, BaseChanged, StateLost: the workspace cannot begin as the checkpoint needs it.
        And what the graph raises.
    """

    def __init__(
        self,
        graph: Pregel[Any, Any, Any, Any],
        name: str,
        limits: Limits,
        workspaces: GraphWorkspaces | None = None,
    ) -> None:
        self.graph = graph
        self.name = name
        self._limits = limits
        self._workspaces = workspaces

    def __getattr__(self, name: str) -> Any:
        if name == "graph":  # not set yet, as while an instance is being copied
            raise AttributeError(name)
        if name in _UPDATES and self._workspaces is not None:
            return getattr(self._workspaces.for_update(self.graph), name)
        return getattr(self.graph, name)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Run the graph; parameters and result as for the graph's own `invoke`."""
        run = self._run(input, config, kwargs, in_thread=True)
        with loop_for_sync_call() as loop:
            return run_on_loop(loop, f"{self.name}.invoke", run.invoke)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Run the graph; parameters and result as for the graph's own `ainvoke`."""
        return await await_on_loop(loop_of_run(), self._run(input, config, kwargs).invoke)

    def stream(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """Stream the graph, which proceeds as it is iterated; the result of wrap_up comes last."""
        run = self._run(input, config, kwargs, in_thread=True)
        with loop_for_sync_call() as loop:
            yield from iterate_on_loop(loop, f"{self.name}.stream", run.stream())

    async def astream(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Stream the graph, which proceeds as it is iterated; the result of wrap_up comes last."""
        loop, chunks = loop_of_run(), self._run(input, config, kwargs).stream()

        async def next_chunk() -> Any:
            return await anext(chunks, _END)

        try:
            while (chunk := await await_on_loop(loop, next_chunk)) is not _END:
                yield chunk
        finally:
            await await_on_loop(loop, chunks.aclose)

    def workspace_at(self, config: RunnableConfig) -> AbstractAsyncContextManager[Workspace]:
        """The workspace in the state of a checkpoint: to look around, compare and apply.

        What is done there is not part of the graph, which does not see it.

        Args:
            config: as for `get_state`; without a checkpoint_id, the state in which the graph would
                continue.
        Raises (on entering):
            LookupError: there is no such checkpoint.
            BaseRefused, BaseChanged, StateLost: the state cannot be shown.
        Raises:
            ValueError: the graph has no workspace of its own, or no checkpointer.
        """
        if self._workspaces is None:
            raise ValueError(f"{self.name} was attached without workspace=")
        return self._workspaces.at(self.graph, config)

    def with_config(self, config: RunnableConfig | None = None, **kwargs: Any) -> AttachedGraph:
        """The same for the graph with another config."""
        graph = self.graph.with_config(config, **kwargs)
        return AttachedGraph(graph, self._name(), self._limits, self._workspaces)

    def get_graph(self, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """The graph's structure, for drawing."""
        return self.graph.get_graph(config, **kwargs)

    def get_input_schema(self, config: RunnableConfig | None = None) -> Any:
        """The graph's own."""
        return self.graph.get_input_schema(config)

    def get_output_schema(self, config: RunnableConfig | None = None) -> Any:
        """The graph's own."""
        return self.graph.get_output_schema(config)

    def _name(self) -> str:
        assert self.name is not None
        return self.name

    def _run(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None,
        options: dict[str, Any],
        *,
        in_thread: bool = False,
    ) -> GraphRun:
        return GraphRun(
            self.graph,
            self._name(),
            self._limits,
            input,
            config,
            options,
            in_thread=in_thread,
            workspaces=self._workspaces,
        )


def _tail_s(tail: Duration | None, deadline_s: float | None) -> float | None:
    if tail is None or deadline_s is None:
        return None
    if isinstance(tail, int | float) and 0 < tail < 1:
        seconds = deadline_s * tail
    else:
        seconds = seconds_of(tail)
    if seconds >= deadline_s:
        raise InvalidDuration(tail, f"leaves nothing of the deadline of {deadline_s:g} s")
    return seconds


async def _nothing(_: Any) -> None:
    """A placeholder for the check that on_deadline and wrap_up go together."""
