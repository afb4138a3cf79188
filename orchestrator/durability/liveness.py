"""Whether the process that recorded a run is still there, and at work on it."""

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
"""Shown for a run recorded as running whose process is gone: it was killed, or the power failed."""

_at_work: Counter[str] = Counter()
"""The runs that this process is at work on, by id."""


@contextmanager
def executing_run(run_id: str) -> Iterator[None]:
    """Say that this process is at work on a run, for as long as the block lasts.

    What is recorded does not tell: the end of a run may not have been written.
    """
    _at_work[run_id] += 1
    try:
        yield
    finally:
        _at_work[run_id] -= 1
        if not _at_work[run_id]:
            del _at_work[run_id]


def process_identity() -> str:
    """What tells this process from all others, of all machines and times."""
    return _told_of(os.getpid())


def status_shown(run: RunRecord, *, host: str | None = None) -> str:
    """The run's recorded status; `orphaned` where its process on this host is gone.

    Args:
        host: this host's name; asked of the system by default.
    """
    if run.status is not Status.RUNNING or not is_orphaned(run, host=host):
        return str(run.status)
    return ORPHANED


def is_orphaned(run: RunRecord, *, host: str | None = None) -> bool:
    """Whether nobody is at work on a run any more. Where its process cannot be seen from here,
    on another host or in another container, whether the lease that it renews has run out."""
    if run.host != (host or socket.gethostname()):
        return _has_lapsed(run)
    if run.process == process_identity():
        return run.id not in _at_work
    process = _Process.read(run.process)
    if process is None:  # the system tells no more of it than its id
        return not _is_there(run.process_id)
    here = _Process.read(process_identity())
    if (
        here is None or process[:2] != here[:2]
    ):  # another boot, or machine of that name, or container
        return _has_lapsed(run)
    return not _is_there(run.process_id, start=process.start)


class _Process(NamedTuple):
    """What Linux tells of a process.

    Attributes:
        boot: the id of the machine's boot.
        namespace: the one in which its id was given.
        start: when it began, in clock ticks since the boot, which no setting of a clock changes.
    """

    boot: str
    namespace: str
    start: str

    @classmethod
    def read(cls, told: str | None) -> _Process | None:
        """A process as it was recorded; None where no more is known of it than its id."""
        parts = (told or "").split()
        return cls(*parts) if len(parts) == len(cls._fields) else None


@cache
def _told_of(process_id: int) -> str:
    """This process, whose id is given so that a fork is not taken for its parent."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
        return " ".join(_Process(boot, namespace, _facts("self").start))
    except (OSError, IndexError):
        return uuid.uuid4().hex


def _has_lapsed(run: RunRecord) -> bool:
    return run.leased_until is not None and run.leased_until < datetime.now(UTC)


def _is_there(process_id: int, *, start: str | None = None) -> bool:
    """Whether a process is there that has not ended, and that began then: ids are used again."""
    if process_id <= 0:
        return False
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is there, and somebody else's
    try:
        if str(Path("/proc/self").readlink()) != str(os.getpid()):
            return True  # /proc is of another namespace, and tells of others
        facts = _facts(str(process_id))
    except (OSError, IndexError):
        return True  # as far as can be seen
    # A zombie has ended: only its parent keeps it, which has not asked how.
    return facts.state not in ("Z", "X") and start in (None, facts.start)


class _Facts(NamedTuple):
    """What the system tells of a process now; start as in _Process."""

    state: str
    start: str


def _facts(process: str) -> _Facts:
    """Raises OSError, IndexError where the system does not tell."""
    # The second field is the program's name in parentheses, and may hold anything.
    fields = Path(f"/proc/{process}/stat").read_bytes().decode(errors="replace")
    after = fields.rpartition(")")[2].split()
    return _Facts(state=after[0], start=after[19])
