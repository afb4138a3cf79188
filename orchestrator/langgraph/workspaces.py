"""The workspace of an attached graph: it begins in the state that belongs to the checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.checkpoint.base import BaseCheckpointSaver

from orchestrator.environment.beginning import workspace
from orchestrator.environment.workspace import Workspace
from orchestrator.execution.context import CallContext, current_context, using_context
from orchestrator.langgraph.checkpoint_states import Start, reader, start_of, state_at
from orchestrator.langgraph.state_tracking import StateTracker
from orchestrator.langgraph.tied_savers import Graph, for_update, tracked
from orchestrator.wiring import runtime_around

logger = logging.getLogger("orchestrate")

WorkspaceOption = str | os.PathLike[str] | Workspace
"""A folder, or what `workspace` returns, which is not opened itself: it says how others begin."""


class Opened(NamedTuple):
    """A graph in a workspace of its own.

    Attributes:
        graph: a copy of the graph, whose checkpoints name states of the workspace.
        tracker: a callback handler for the invocation; None: there is no checkpointer.
        context: of the run or step that the invocation is.
    """

    graph: Graph
    tracker: StateTracker | None
    context: CallContext


class GraphWorkspaces:
    """Opens the workspaces of an attached graph, one for each invocation.

    Raises:
        ValueError: a workspace was given that has begun.
    """

    def __init__(self, given: WorkspaceOption) -> None:
        template = given if isinstance(given, Workspace) else workspace(given)
        if template.has_begun:
            raise ValueError(
                f"workspace {template.name} has begun, and each invocation needs one of its own:"
                " give the folder, or workspace(...) without `async with`"
            )
        self._template = template

    @asynccontextmanager
    async def opened(
        self, graph: Graph, config: RunnableConfig | None, given: object, *, in_thread: bool
    ) -> AsyncIterator[Opened]:
        """A workspace in the state that belongs to the checkpoint from which the graph continues.

        Args:
            given: the graph's input.
            in_thread: whether the graph's synchronous methods are used.
        Raises:
            ValueError: the graph is within another one, which has a checkpointer.
            BaseRefused, BaseChanged, StateLost: as Beginning.begin.
        """
        context, config = current_context("attach()"), _whole(graph, config)
        saver, start = _saver_of(graph, config), Start()
        if saver is not None:
            start = await start_of(reader(saver, in_thread=in_thread), config, given)
            _warn_without_state(start)
        if context.step_path.text and start.checkpoint is not None:
            # Steps of a former attempt are those of this one only if it began at the same place.
            mark = f"from-{start.checkpoint}"
            context = context.derive(step_path=context.step_path.isolated(mark))
        with using_context(context):
            async with self._template.anew(start.state) as ws:
                if saver is None:
                    yield Opened(graph, None, context)
                    return
                tracker = StateTracker(lambda: ws.state, start)
                yield Opened(tracked(graph, tracker), tracker, context)

    @asynccontextmanager
    async def at(self, graph: Graph, config: RunnableConfig) -> AsyncIterator[Workspace]:
        """As AttachedGraph.workspace_at."""
        config = _whole(graph, config)
        saver = _saver_of(graph, config)
        if saver is None:
            raise ValueError("the graph has no checkpointer, so there is no state to come back to")
        start = await state_at(reader(saver), config)
        _warn_without_state(start)
        runtime = runtime_around()
        place = None if runtime is None else runtime.environments
        async with self._template.anew(start.state, place=place) as ws:
            yield ws

    def for_update(self, graph: Graph) -> Graph:
        """The graph, for one update of its state."""
        if isinstance(graph.checkpointer, BaseCheckpointSaver):
            return for_update(graph)
        return graph


def _whole(graph: Graph, config: RunnableConfig | None) -> RunnableConfig:
    """A config with what the graph and the code around add to it."""
    return ensure_config(merge_configs(graph.config, config))


def _saver_of(graph: Graph, config: RunnableConfig) -> BaseCheckpointSaver[Any] | None:
    if graph.checkpointer is False:
        return None
    if any(isinstance(each, BaseCheckpointSaver) for each in config["configurable"].values()):
        raise ValueError(
            "the graph is within another one, with whose checkpoints its workspace could not go"
            " back: attach that one with workspace=, or compile this one with checkpointer=False"
        )
    saver = graph.checkpointer
    return saver if isinstance(saver, BaseCheckpointSaver) else None


def _warn_without_state(start: Start) -> None:
    if start.checkpoint is not None and start.state is None:
        logger.warning(
            "checkpoint %s was made without a workspace: its files are those of the base now",
            start.checkpoint,
        )
