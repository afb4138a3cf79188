"""Whether the process that recorded a run is still alive and executing it."""

from __future__ import annotations

import os
import socket
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

from store.records import RunRecord, Status

ORPHANED = "orphaned"
"""Status shown for a run that is recorded as running although its process is gone."""

_executing: Counter[str] = Counter()
"""The ids of the runs that this process executes now."""


@contextmanager
def executing_run(run_id: str) -> Iterator[None]:
    """Declare, until the block ends, that this process executes a run.

    The record is not enough: it may lack the run's end, if that could not be written.
    """
    _executing[run_id] += 1
    try:
        yield
    finally:
        _executing[run_id] -= 1
        if not _executing[run_id]:
            del _executing[run_id]


def process_identity() -> str:
    """Identifies this process among all processes of all machines and times."""
    return _identity_of(os.getpid())


def status_shown(run: RunRecord, *, host: str | None = None) -> str:
    """The run's recorded status; `orphaned` if it is recorded as running but its process is gone.

    Args:
        host: this host's name; the system's host name by default.
    """
    if run.status is not Status.RUNNING or not is_orphaned(run, host=host):
        return str(run.status)
    return ORPHANED


def is_orphaned(run: RunRecord, *, host: str | None = None) -> bool:
    """Whether no process executes the run any more.

    A process on another host or in another container cannot be seen from here: there the run is
    orphaned once its lease has expired.
    """
    if run.host != (host or socket.gethostname()):
        return _lease_has_expired(run)
    if run.process == process_identity():
        return run.id not in _executing
    process = _Process.parse(run.process)
    if process is None:  # nothing but its id is known
        return not _is_alive(run.process_id)
    here = _Process.parse(process_identity())
    # Otherwise: another boot, another machine with this name, or another container.
    is_visible = here is not None and process[:2] == here[:2]
    if not is_visible:
        return _lease_has_expired(run)
    return not _is_alive(run.process_id, start=process.start)


class _Process(NamedTuple):
    """What Linux reports about a process.

    Attributes:
        boot: the id of the machine's boot.
        namespace: the PID namespace of its id.
        start: start time in clock ticks since boot; changes of the system clock do not affect it.
    """

    boot: str
    namespace: str
    start: str

    @classmethod
    def parse(cls, identity: str | None) -> _Process | None:
        """The parts of a recorded identity; None if it has none, as on other systems than Linux."""
        parts = (identity or "").split()
        return cls(*parts) if len(parts) == len(cls._fields) else None


@cache
def _identity_of(process_id: int) -> str:
    """This process's identity; the id is the cache key, so that a fork gets one of its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
        return " ".join(_Process(boot, namespace, _read_stat("self").start))
    except (OSError, IndexError):
        return uuid.uuid4().hex


def _lease_has_expired(run: RunRecord) -> bool:
    return run.leased_until is not None and run.leased_until < datetime.now(UTC)


def _is_alive(process_id: int, *, start: str | None = None) -> bool:
    """Whether a process with this id has not ended.

    Args:
        start: when it must have begun, since the system reuses ids; None: any time.
    """
    if process_id <= 0:
        return False
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it exists, and belongs to another user
    try:
        if str(Path("/proc/self").readlink()) != str(os.getpid()):
            return True  # /proc belongs to another namespace and shows other processes
        stat = _read_stat(str(process_id))
    except (OSError, IndexError):
        return True  # nothing shows that it has ended
    # A zombie has ended; it stays listed until its parent waits for it.
    return stat.state not in ("Z", "X") and start in (None, stat.start)


class _Stat(NamedTuple):
    """A process's state now; `start` as in _Process."""

    state: str
    start: str


def _read_stat(process: str) -> _Stat:
    """Reads /proc/PROCESS/stat; raises OSError or IndexError if the system does not have it."""
    # The second field is the program's name in parentheses, and may contain any character.
    text = Path(f"/proc/{process}/stat").read_bytes().decode(errors="replace")
    fields = text.rpartition(")")[2].split()
    return _Stat(state=fields[0], start=fields[19])
