"""Checkpoints of what the scheduler has learned: another engine goes on from the latest one.

An engine that begins with a checkpoint is as one that had no requests since it was written: what
decays with time has decayed. Source: Wu (2025), section 5, metadata checkpoints.

Each engine of a model has a file of its own, the first that no other engine has locked, whatever
its port. So an engine finds a file again after a restart, of itself or of the whole server, and
several engines with one model do not share one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
from blake3 import blake3
from filelock import FileLock, Timeout

from serving.engine.observers.step_tracker import StepTrackerState
from serving.engine.observers.user_statistics import UserState

PERIOD_S = 10.0
"""Seconds between two checkpoints of an engine that computes. A killed engine loses no more than a
sixth of what fairness remembers (FAIR_MEMORY_S). The step after which a state is taken is longer by
0.3 to 0.5 ms with 256 users, by 1.5 ms if each has as many answers as are ever kept."""

IDLE_PERIOD_S = 1.0
"""The same of an engine that becomes idle, and may stay so until it is killed."""

MAX_ENGINES = 64
"""Engines with one model that have a file each."""

CLOSE_S = 2.0
"""Longest wait for a write when the engine ends: a disk that hangs must not hold it up."""

_HEADER = b"orchestrate scheduler 1\n"  # with the version of the format
_DIGEST_BYTES = 16

logger = logging.getLogger("orchestrate")


class SchedulerState(NamedTuple):
    """What the scheduler has learned; plain data.

    Attributes:
        steps: None if it was measured by another machine.
    """

    users: UserState
    steps: StepTrackerState | None


class Checkpoint(NamedTuple):
    """A state, with what it holds for.

    Attributes:
        model: the model that answered.
        machine: whatever changes the duration of steps.
        written_s: the system's time.
    """

    model: str
    machine: str
    written_s: float
    state: SchedulerState


class Checkpoints:
    """The file of one engine, which is locked until `close`. A failure to write is only logged.

    Args:
        machine: what is measured on another one is not restored.
        clock, wall_clock: seconds that only increase, and the system's time.
    """

    def __init__(
        self,
        file: Path,
        lock: FileLock,
        *,
        model: str,
        machine: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = file
        self._lock = lock
        self._model = model
        self._machine = machine
        self._clock = clock
        self._wall_clock = wall_clock
        self._latest_s = clock()
        self._writing: threading.Thread | None = None
        self._has_failed = False

    @classmethod
    def open(cls, folder: Path, *, model: str, machine: str) -> Checkpoints | None:
        """A file for an engine of this model; None, and a warning, if there can be none."""
        name = blake3(model.encode()).hexdigest(_DIGEST_BYTES)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for number in range(MAX_ENGINES):
                lock = FileLock(folder / f"{name}-{number}.lock", mode=0o600, thread_local=False)
                try:
                    lock.acquire(blocking=False)
                except Timeout:
                    continue
                file = folder / f"{name}-{number}.checkpoint"
                return cls(file, lock, model=model, machine=machine)
        except OSError as error:
            logger.warning("what the scheduler learns is not kept: %s", error)
            return None
        logger.warning("what the scheduler learns is not kept: %s has no free file", folder)
        return None

    def read(self) -> tuple[SchedulerState, float] | None:
        """The latest state and its age in seconds; None without one that can be read."""
        try:
            checkpoint = decoded(self._file.read_bytes())
            if checkpoint.model != self._model:
                raise ValueError(f"it is of the model {checkpoint.model}")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("the scheduler begins anew, as it cannot read %s: %s", self._file, error)
            return None
        state = checkpoint.state
        if checkpoint.machine != self._machine:
            state = state._replace(steps=None)
        return state, max(self._wall_clock() - checkpoint.written_s, 0.0)

    def is_due(self, *, is_idle: bool) -> bool:
        """Whether to write now: after PERIOD_S or IDLE_PERIOD_S, if the last write has ended."""
        age_s = self._clock() - self._latest_s
        return age_s >= (IDLE_PERIOD_S if is_idle else PERIOD_S) and not self._is_writing()

    def write(self, state: SchedulerState) -> None:
        """Write a state in the background; not while one is being written."""
        assert not self._is_writing(), "ask is_due first"
        self._latest_s = self._clock()
        checkpoint = Checkpoint(self._model, self._machine, self._wall_clock(), state)
        self._writing = threading.Thread(
            target=self._replace, args=(checkpoint,), name="scheduler-checkpoint", daemon=True
        )
        self._writing.start()

    def close(self, state: SchedulerState) -> None:
        """Write the last state, and leave the file to another engine."""
        self._wait()
        if not self._is_writing():
            self.write(state)
            self._wait()
        self._lock.release()

    def _is_writing(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.join(CLOSE_S)

    def _replace(self, checkpoint: Checkpoint) -> None:
        """Replace the file; a crash leaves the former one, or one that its digest shows as torn."""
        unfinished = self._file.with_suffix(".part")
        try:
            unfinished.touch(mode=0o600)
            unfinished.write_bytes(encoded(checkpoint))
            unfinished.replace(self._file)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:  # once for each time that it begins to fail
                logger.warning("what the scheduler learns is not kept: %s", error)
            self._has_failed = True


def encoded(checkpoint: Checkpoint) -> bytes:
    """A checkpoint as bytes: a header with the format's version, a digest, MessagePack.

    Neither JSON nor Python: the thread that does it holds up the engine's meanwhile.
    """
    content = msgspec.msgpack.encode(checkpoint)
    return _HEADER + blake3(content).digest(_DIGEST_BYTES) + content


def decoded(data: bytes) -> Checkpoint:
    """What `encoded` was given; raises ValueError for another version and for damaged bytes."""
    if not data.startswith(_HEADER):
        raise ValueError("it was written by another version, or is no checkpoint")
    digest, content = data[len(_HEADER) :][:_DIGEST_BYTES], data[len(_HEADER) + _DIGEST_BYTES :]
    if blake3(content).digest(_DIGEST_BYTES) != digest:
        raise ValueError("it is damaged")
    try:
        return msgspec.msgpack.decode(content, type=Checkpoint)
    except msgspec.DecodeError as error:  # states of another shape, while they are developed
        raise ValueError(str(error)) from error
