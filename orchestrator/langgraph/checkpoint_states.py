"""Which state of the workspace belongs to a checkpoint of a graph.

A checkpoint's metadata name the state that was left by the supersteps up to it. While the next
superstep is in progress, notes beside the checkpoint, which are pending writes, name the states
that its tasks and the supersteps of their subgraphs left: what LangGraph has saved of these is not
run again if the graph continues there. A note is written before that, and counts only with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
)
from langgraph.types import Command

STATE = "orchestrate_workspace"
"""The key in a checkpoint's metadata, and the channel of pending writes that are notes."""

Read = Callable[[RunnableConfig], Awaitable[CheckpointTuple | None]]
"""Reads the checkpoint that a config names, or the thread's last one."""

_SPECIAL = frozenset(WRITES_IDX_MAP)
_UNFINISHED = frozenset(["__error__", "__interrupt__"])


class Note(NamedTuple):
    """A state that something left which LangGraph saves.

    Attributes:
        number: in the order in which they ended.
        namespace: of the graph; "" for the outermost one.
        checkpoint: of that graph: a new one, or the one at which the task was run.
        task: whose writes are saved; None: the checkpoint itself is.
    """

    number: int
    state: str
    namespace: str
    checkpoint: str
    task: str | None


@dataclass(frozen=True, slots=True)
class Start:
    """Where an invocation of a graph begins.

    Attributes:
        checkpoint: its id; None: the thread has none.
        state: that belongs to it; None: it was made without a workspace, as all before it.
        number: of the last note beside it.
    """

    checkpoint: str | None = None
    state: str | None = None
    number: int = 0


def reader(saver: BaseCheckpointSaver[Any], *, in_thread: bool = False) -> Read:
    """How to read a saver from async code.

    Args:
        in_thread: by its synchronous method, as a graph does whose `invoke` is used; else that is
            used only if it has no other.
    """

    async def read(config: RunnableConfig) -> CheckpointTuple | None:
        if not in_thread:
            try:
                return await saver.aget_tuple(config)
            except NotImplementedError:
                pass
        return await asyncio.to_thread(saver.get_tuple, config)

    return read


def address_of(config: RunnableConfig) -> RunnableConfig | None:
    """What a saver needs of an invocation's config; None if that names no thread."""
    configurable = dict(config.get("configurable") or {})
    if "thread_id" not in configurable:
        return None
    configurable["thread_id"] = str(configurable["thread_id"])
    configurable["checkpoint_ns"] = configurable.get("checkpoint_ns") or ""
    if not configurable.get("checkpoint_id"):
        configurable.pop("checkpoint_id", None)
    return {"configurable": configurable}


async def start_of(read: Read, config: RunnableConfig, given: object) -> Start:
    """Where a graph continues, as LangGraph 1.2 does.

    Args:
        given: the graph's input.
    """
    address = address_of(config)
    if address is not None and not get_checkpoint_id(address):
        address["configurable"]["checkpoint_ns"] = ""  # a subgraph is entered at a checkpoint only
    saved = None if address is None else await read(address)
    if address is None or saved is None:
        return Start()
    if await _continues(read, address, saved, given):
        return await _continued(read, saved)
    return Start(_id(saved), await _own_state(read, saved))


async def state_at(read: Read, config: RunnableConfig) -> Start:
    """A checkpoint that a config names by its id or as a subgraph's last one; else where the thread
    would continue.

    Raises:
        LookupError: there is none.
    """
    address = address_of(config)
    saved = None if address is None else await read(address)
    if address is None or saved is None:
        raise LookupError(f"there is no checkpoint at {(config.get('configurable') or {})!r}")
    if get_checkpoint_id(address) or address["configurable"]["checkpoint_ns"]:
        return Start(_id(saved), await _own_state(read, saved))
    return await _continued(read, saved)


def is_finished(channels: Collection[str]) -> bool:
    """Whether a task with writes to these channels is not run again."""
    return not _UNFINISHED & set(channels) and bool(set(channels) - _SPECIAL)


async def _continues(
    read: Read, address: RunnableConfig, saved: CheckpointTuple, given: object
) -> bool:
    """Whether tasks that have ended since the checkpoint are not run again."""
    if given is not None and not isinstance(given, Command):
        return False  # a new input replaces what was in progress
    if not get_checkpoint_id(address):
        return True
    if not isinstance(given, Command) or given.resume is None:
        return False  # time travel
    if address["configurable"]["checkpoint_ns"]:
        return False  # to a subgraph's checkpoint
    configurable = {**address["configurable"]}
    del configurable["checkpoint_id"]
    latest = await read({"configurable": configurable})
    return latest is None or _id(latest) == _id(saved)


async def _continued(read: Read, saved: CheckpointTuple) -> Start:
    notes = [Note(*value) for _, channel, value in saved.pending_writes or () if channel == STATE]
    number = max((note.number for note in notes), default=0)
    for note in sorted(notes, key=lambda note: note.number, reverse=True):
        if await _counts(read, saved, note):
            return Start(_id(saved), note.state, number)
    return Start(_id(saved), await _own_state(read, saved), number)


async def _counts(read: Read, saved: CheckpointTuple, note: Note) -> bool:
    """Whether that was saved which left a note's state."""
    at: CheckpointTuple | None = saved
    if note.namespace:
        configurable = saved.config["configurable"]
        place = {"checkpoint_ns": note.namespace, "checkpoint_id": note.checkpoint}
        at = await read({"configurable": {**configurable, **place}})
    if at is None or note.task is None:
        return at is not None
    return is_finished(
        [channel for task, channel, _ in at.pending_writes or () if task == note.task]
    )


async def _own_state(read: Read, saved: CheckpointTuple) -> str | None:
    """The state of a checkpoint; of the nearest before it that has one, if it was copied or made
    without a workspace, since then no file was changed.
    """
    at: CheckpointTuple | None = saved
    while at is not None:
        state = (at.metadata or {}).get(STATE)
        if state is not None:
            return str(state)
        before = at.parent_config or _around(at)
        at = None if before is None else await read(before)
    return None


def _around(saved: CheckpointTuple) -> RunnableConfig | None:
    """The checkpoint of the outermost graph at which a subgraph's first checkpoint was made."""
    configurable = saved.config["configurable"]
    root = ((saved.metadata or {}).get("parents") or {}).get("")
    if not configurable.get("checkpoint_ns") or root is None:
        return None
    return {"configurable": {**configurable, "checkpoint_ns": "", "checkpoint_id": root}}


def _id(saved: CheckpointTuple) -> str:
    return saved.checkpoint["id"]
