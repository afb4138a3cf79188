"""Whether the process that recorded a run is still there."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from store.records import RunRecord, Status

ORPHANED = "orphaned"
"""Shown for a run recorded as running whose process is gone: it was killed, or the power failed."""

_CLOCK_SLACK_S = 2.0  # the boot time, and so a process' start, is known to the second


def status_shown(run: RunRecord, *, host: str | None = None) -> str:
    """The run's recorded status; `orphaned` where its process on this host is gone.

    Args:
        host: this host's name; asked of the system by default.
    """
    if run.status is not Status.RUNNING or not is_orphaned(run, host=host):
        return str(run.status)
    return ORPHANED


def is_orphaned(run: RunRecord, *, host: str | None = None) -> bool:
    """Whether the process that was at work on a run is gone: on another host, whether the lease
    that it renews has run out."""
    if run.host != (host or socket.gethostname()):
        return run.leased_until is not None and run.leased_until < datetime.now(UTC)
    return not _is_alive(run.process_id, run.claimed_at or run.started_at)


def _is_alive(process_id: int, run_started_at: datetime) -> bool:
    """Whether the process is there, and was when the run began: ids are used again."""
    if process_id <= 0:
        return False
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is there, and somebody else's
    if _has_ended(process_id):
        return False
    began_s = _began_s(process_id)
    return began_s is None or began_s <= run_started_at.timestamp() + _CLOCK_SLACK_S


def _has_ended(process_id: int) -> bool:
    """Whether only its parent keeps it, which has not asked how it ended: a zombie."""
    try:
        return _facts(process_id)[0] in ("Z", "X")
    except (OSError, IndexError):
        return False


def _facts(process_id: int) -> list[str]:
    """What the system tells of a process, from its state on; raises OSError."""
    # The second field is the program's name in parentheses, and may hold anything.
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()


def _began_s(process_id: int) -> float | None:
    """When a process began, in seconds since the epoch; None where the system does not tell."""
    try:
        fields = _facts(process_id)
        boot = next(
            line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
        )
        ticks_s = os.sysconf("SC_CLK_TCK")
        return int(boot.split()[1]) + int(fields[19]) / ticks_s
    except (OSError, ValueError, IndexError, StopIteration):
        return None
