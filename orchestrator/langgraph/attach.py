"""attach(): a deadline, a record and a graceful end for a LangGraph graph that we did not write.

    from orchestrator.langgraph import attach

    graph = attach(builder.compile(), deadline="60s", on_deadline="wrap_up", wrap_up=summarise)
    graph.invoke({"topic": "tides"})

All rests on the public API of LangGraph 1.2 and langchain-core: callbacks passed by the config,
`stream` and `astream` with the modes "values" and "updates", and of a Pregel its `stream_mode`,
`output_channels` and `stream_channels_list`. Two things are no promise of theirs,
and tests hold them: the metadata `langgraph_checkpoint_ns`, `langgraph_node`, `langgraph_step` and
`langgraph_path` of what runs, and what graph_callbacks says of handlers that run inline.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.pregel import Pregel

from orchestrator.durations import seconds_of
from orchestrator.errors import InvalidDuration
from orchestrator.execution.deadline_handling import DeadlineHandling, OnDeadline
from orchestrator.langgraph.event_loops import (
    await_on_loop,
    borrowed_loop,
    home_loop,
    iterate_on_loop,
    run_on_loop,
)
from orchestrator.langgraph.invocation import GraphRun, Limits, WrapUp

_END = object()


def attach(
    graph: Pregel[Any, Any, Any, Any],
    *,
    deadline: str | float | None = None,
    on_deadline: OnDeadline = "fail",
    wrap_up: WrapUp | None = None,
    tail: str | float | None = None,
    name: str | None = None,
) -> AttachedGraph:
    """A graph whose every invocation is a recorded run with a deadline; the graph stays as it is.

    Each node is a recorded step, each call of a chat model and of a tool a recorded call with its
    causal parents. Calls of ChatOrchestrate carry their sub-deadlines to the engine, and are
    aborted there when the deadline passes. Other models are recorded, and cancelled where they
    are awaited. What is recorded is not replayed: LangGraph's checkpointer resumes a graph.

    Within a run, as in a node of another such graph, an invocation is a step of that run, whose
    deadline it can only shorten.

    Args:
        graph: a compiled StateGraph, or an entrypoint of the functional API.
        deadline: of each invocation ("60s", or seconds); None: none.
        on_deadline: raise DeadlineExceeded ("fail"); return what `wrap_up` makes of the last known
            state ("wrap_up"); return that state ("best_so_far").
        wrap_up: a function, async or not, or a Runnable, given the values of the state as the
            last finished superstep left them; of an entrypoint, the results of its tasks by name.
        tail: how much of the deadline is kept for it: a duration in words ("5s"), a share of the
            deadline (a number below 1) or seconds (from 1); None: a tenth of the deadline.
        name: what the runs are recorded under; the graph's own by default.
    Raises:
        InvalidDuration: the deadline or the tail is none, or the tail leaves no time.
        ValueError: another on_deadline, or a wrap_up where it is not used.
    """
    deadline_s = None if deadline is None else seconds_of(deadline)
    DeadlineHandling(on_deadline, None if wrap_up is None else _nothing)
    limits = Limits(deadline_s, on_deadline, wrap_up, _tail_s(tail, deadline_s))
    return AttachedGraph(graph, name or graph.get_name(), limits)


class AttachedGraph(Runnable[Any, Any]):
    """A graph under `attach`: it is used as the graph itself, and knows all that the graph knows.

    The synchronous forms run the graph in a thread of its own, so that they return at the
    deadline whatever a node is doing; a node that holds up its thread is left behind.

    Attributes:
        graph: as it was given.
    Raises (each invocation):
        DeadlineExceeded: the deadline passed first, and nothing else was asked for.
        StoreError: the run could not be recorded.
        WouldBlock: a synchronous form, called on the event loop on which the runtime is open.
        And what the graph raises.
    """

    def __init__(self, graph: Pregel[Any, Any, Any, Any], name: str, limits: Limits) -> None:
        self.graph = graph
        self.name = name
        self._limits = limits

    def __getattr__(self, name: str) -> Any:
        if name == "graph":  # not yet there, as while an instance is copied
            raise AttributeError(name)
        return getattr(self.graph, name)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Run the graph; parameters and result as the graph's own `invoke`."""
        run = self._run(input, config, kwargs, in_thread=True)
        with borrowed_loop() as loop:
            return run_on_loop(loop, f"{self.name}.invoke", run.invoked)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Run the graph; parameters and result as the graph's own `ainvoke`."""
        return await await_on_loop(home_loop(), self._run(input, config, kwargs).invoked)

    def stream(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """Stream the graph, which goes on as it is iterated; what wrap_up made comes last."""
        run = self._run(input, config, kwargs, in_thread=True)
        with borrowed_loop() as loop:
            yield from iterate_on_loop(loop, f"{self.name}.stream", run.streamed())

    async def astream(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Stream the graph, which goes on as it is iterated; what wrap_up made comes last."""
        loop, chunks = home_loop(), self._run(input, config, kwargs).streamed()

        async def next_chunk() -> Any:
            return await anext(chunks, _END)

        try:
            while (chunk := await await_on_loop(loop, next_chunk)) is not _END:
                yield chunk
        finally:
            await await_on_loop(loop, chunks.aclose)

    def with_config(self, config: RunnableConfig | None = None, **kwargs: Any) -> AttachedGraph:
        """The same with the graph under another config."""
        return AttachedGraph(self.graph.with_config(config, **kwargs), self._name(), self._limits)

    def get_graph(self, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """The graph's drawable form."""
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
            self.graph, self._name(), self._limits, input, config, options, in_thread=in_thread
        )


def _tail_s(tail: str | float | None, deadline_s: float | None) -> float | None:
    if tail is None or deadline_s is None:
        return None
    is_share = isinstance(tail, int | float) and 0 < tail < 1
    seconds = deadline_s * float(tail) if is_share else seconds_of(tail)
    if seconds >= deadline_s:
        raise InvalidDuration(tail, f"leaves nothing of a deadline of {deadline_s:g} s")
    return seconds


async def _nothing(_: Any) -> None:
    """Stands for a wrap_up."""
