"""Checkpointers that save with each checkpoint which state of the workspace belongs to it.

A graph's own saver is copied, and the methods that save are overridden in a class derived from its
own: so each saver keeps its connections and all that LangGraph may call, now and later.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.pregel import Pregel

from orchestrator.langgraph.checkpoint_states import STATE, Note, is_finished
from orchestrator.langgraph.state_tracking import Noted, StateTracker

Graph = Pregel[Any, Any, Any, Any]
S = TypeVar("S", bound=BaseCheckpointSaver[Any])

Writes = Sequence[tuple[str, Any]]
Write = tuple[Writes, str]
"""Pending writes, and the id of their task."""


def tracked(graph: Graph, tracker: StateTracker) -> Graph:
    """A copy of a graph for one invocation, whose checkpoints name the states of the workspace."""
    saver = _derived(_TrackedSaver, graph.checkpointer)
    saver.tracker = tracker
    return _with_saver(graph, saver)


def for_update(graph: Graph) -> Graph:
    """A copy of a graph for one update of its state: new checkpoints keep the state of the old."""
    return _with_saver(graph, _derived(_UpdatedSaver, graph.checkpointer))


class _TrackedSaver(BaseCheckpointSaver[Any]):
    """Saves the states that a tracker has noted.

    Some savers call their synchronous methods from the others, and thus these methods twice: what
    has been added is not added again.
    """

    tracker: StateTracker

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint with its state."""
        if STATE not in metadata:
            noted = self._noted(config, metadata)
            for place, note in _of_checkpoint(noted, config, checkpoint, metadata):
                super().put_writes(place, *note)
            metadata = _with_state(metadata, noted.state)
        return super().put(config, checkpoint, metadata, new_versions)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint with its state."""
        if STATE not in metadata:
            noted = self._noted(config, metadata)
            for place, note in _of_checkpoint(noted, config, checkpoint, metadata):
                await super().aput_writes(place, *note)
            metadata = _with_state(metadata, noted.state)
        return await super().aput(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Writes, task_id: str, task_path: str = ""
    ) -> None:
        """Save the writes of a task, and before them the state that it has left."""
        for place, note in self._notes(config, writes, task_id):
            super().put_writes(place, *note)
        super().put_writes(config, writes, task_id, task_path)

    async def aput_writes(
        self, config: RunnableConfig, writes: Writes, task_id: str, task_path: str = ""
    ) -> None:
        """Save the writes of a task, and before them the state that it has left."""
        for place, note in self._notes(config, writes, task_id):
            await super().aput_writes(place, *note)
        await super().aput_writes(config, writes, task_id, task_path)

    def _noted(self, config: RunnableConfig, metadata: CheckpointMetadata) -> Noted:
        namespace = config["configurable"].get("checkpoint_ns", "")
        return self.tracker.after_superstep(namespace, metadata["step"])

    def _notes(
        self, config: RunnableConfig, writes: Writes, task_id: str
    ) -> Iterator[tuple[RunnableConfig, Write]]:
        """The notes for the writes of a task, and where each is written."""
        if not is_finished([channel for channel, _ in writes]) or writes[0][0] == STATE:
            return
        configurable, noted = config["configurable"], self.tracker.after_task(task_id)
        namespace, checkpoint = configurable.get("checkpoint_ns", ""), configurable["checkpoint_id"]
        write = _written(Note(noted.number, noted.state, namespace, checkpoint, task_id))
        if not namespace:
            yield config, write
        elif root := (configurable.get("checkpoint_map") or {}).get(""):
            yield _outermost(config, root), write


class _UpdatedSaver(BaseCheckpointSaver[Any]):
    """Saves a checkpoint with the state of the one that was loaded before.

    The checkpoint that LangGraph names as its parent is another one if it is a copy. What is loaded
    between the two, to restore channels, does not count.
    """

    loaded: tuple[object] | None = None

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load a checkpoint."""
        return self._remembered(super().get_tuple(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Load a checkpoint."""
        return self._remembered(await super().aget_tuple(config))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint."""
        metadata = self._with_loaded(metadata)
        return super().put(config, checkpoint, metadata, new_versions)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint."""
        metadata = self._with_loaded(metadata)
        return await super().aput(config, checkpoint, metadata, new_versions)

    def _remembered(self, saved: CheckpointTuple | None) -> CheckpointTuple | None:
        if self.loaded is None:
            self.loaded = (None if saved is None else (saved.metadata or {}).get(STATE),)
        return saved

    def _with_loaded(self, metadata: CheckpointMetadata) -> CheckpointMetadata:
        loaded, self.loaded = self.loaded, None
        return metadata if loaded is None else _with_state(metadata, loaded[0])


def _derived(kind: type[S], saver: object) -> S:
    """A copy of a saver, of a class derived from its own."""
    assert isinstance(saver, BaseCheckpointSaver), "the caller has looked"
    derived: Any = copy.copy(saver)
    derived.__class__ = type(type(saver).__name__, (kind, type(saver)), {})
    return cast("S", derived)


def _with_saver(graph: Graph, saver: BaseCheckpointSaver[Any]) -> Graph:
    graph = copy.copy(graph)
    graph.checkpointer = saver
    return graph


def _with_state(metadata: CheckpointMetadata, state: object) -> CheckpointMetadata:
    if state is None:
        return metadata
    return cast("CheckpointMetadata", {STATE: state, **metadata})


def _of_checkpoint(
    noted: Noted, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
) -> Iterator[tuple[RunnableConfig, Write]]:
    """The note for a subgraph's new checkpoint, and where it is written."""
    namespace, root = (
        config["configurable"].get("checkpoint_ns"),
        metadata.get("parents", {}).get(""),
    )
    if namespace and root:
        note = Note(noted.number, noted.state, namespace, checkpoint["id"], None)
        yield _outermost(config, root), _written(note)


def _outermost(config: RunnableConfig, checkpoint_id: str) -> RunnableConfig:
    """A checkpoint of the outermost graph, given the config of one of a subgraph."""
    place = {"checkpoint_ns": "", "checkpoint_id": checkpoint_id}
    return {"configurable": {**config["configurable"], **place}}


def _written(note: Note) -> Write:
    """A note as a pending write, with an id of its own in place of a task's."""
    return [(STATE, list(note))], f"{STATE}:{note.number}:{note.task or note.checkpoint}"
