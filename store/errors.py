"""Errors of the store: each names its cause and what to do about it.

Every error keeps its constructor's arguments, so that it survives pickling between processes.
A `url` never carries a password.
"""

from __future__ import annotations

from collections.abc import Sequence


class StoreError(Exception):
    """Base of every error that this package raises on purpose."""


class StoreLocked(StoreError):
    """Another transaction held the store for longer than the timeout; nothing was written."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(url, cause)

    def __str__(self) -> str:
        url, cause = self.args
        return f"the store {url} is busy: {cause}. Nothing was written: try again"


class StoreFull(StoreError):
    """There is not enough disk space for the write; the transaction had no effect."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(url, cause)

    def __str__(self) -> str:
        url, cause = self.args
        return f"no space left for the store {url}: {cause}. Free disk space, then try again"


class StoreCorrupt(StoreError):
    """Stored data is damaged, or the file is not a database."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(url, cause)

    def __str__(self) -> str:
        url, cause = self.args
        return f"the store {url} is damaged: {cause}. Restore a backup, or open another store"


class StoreUnreachable(StoreError):
    """The store cannot be opened or written: a wrong URL, folder, permission, driver or server."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(url, cause)

    def __str__(self) -> str:
        url, cause = self.args
        return (
            f"cannot use the store {url}: {cause}. Give a file that you may write "
            "(sqlite:///path) or a running server (postgresql://user@host/name)"
        )


class StoreNewer(StoreError):
    """The database has a schema revision that this version does not know."""

    def __init__(self, url: str, revision: str) -> None:
        super().__init__(url, revision)

    def __str__(self) -> str:
        url, revision = self.args
        return (
            f"the store {url} has the unknown schema revision {revision!r}: a newer version wrote "
            "it. Upgrade this program, or open another store"
        )


class StoreClosed(StoreError):
    """The store was used after it was closed."""

    def __init__(self, url: str) -> None:
        super().__init__(url)

    def __str__(self) -> str:
        return f"the store {self.args[0]} is closed; open it again"


class StoreFailed(StoreError):
    """The database refused a statement for a reason that no other error of this module covers."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(url, cause)

    def __str__(self) -> str:
        url, cause = self.args
        return (
            f"the store {url} refused a statement: {cause}. Nothing was written; "
            "this is probably a bug: please report it"
        )


class PayloadEncoded(StoreError):
    """Stored data was encoded by another payload codec than this one, or by one and there is none.

    Args:
        name: of the codec that encoded it.
        present: name of the present codec; None: there is none.
    """

    def __init__(self, name: str, present: str | None) -> None:
        super().__init__(name, present)

    def __str__(self) -> str:
        name, present = self.args
        here = "there is no payload codec" if present is None else f"the codec is {present!r}"
        return (
            f"the data was encoded by the payload codec {name!r}, and {here}: set "
            "ORCHESTRATE_PAYLOAD_CODEC to the codec with which the run was recorded"
        )


class PayloadNotEncoded(StoreError):
    """The payload codec failed, so nothing was written."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(name, cause)

    def __str__(self) -> str:
        name, cause = self.args
        return f"the payload codec {name!r} failed: {cause}. Nothing was written"


class RunNotFound(StoreError):
    """No run has this id, or an id with this prefix; without an id: the store has no runs."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)

    def __str__(self) -> str:
        if not self.args[0]:
            return "this store has no runs yet; run a flow, or name another store"
        return f"no run {self.args[0]!r} in this store; list the runs to see their ids"


class RunAmbiguous(StoreError):
    """Several run ids have this prefix."""

    def __init__(self, prefix: str, run_ids: Sequence[str]) -> None:
        super().__init__(prefix, tuple(run_ids))

    def __str__(self) -> str:
        prefix, run_ids = self.args
        return f"several run ids begin with {prefix!r}: {', '.join(run_ids)}. Give more characters"


class RunExists(StoreError):
    """The store already has a run with this id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)

    def __str__(self) -> str:
        return f"run {self.args[0]!r} is recorded already; give the new run another id"


class RunChanged(StoreError):
    """A run has changed since it was read: another process has resumed or ended it."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)

    def __str__(self) -> str:
        return f"run {self.args[0]!r} was resumed or ended by another process; read it again"


class InvalidAttributes(StoreError):
    """A run's attributes cannot be written as JSON; the run was not recorded."""

    def __init__(self, run_id: str, cause: str) -> None:
        super().__init__(run_id, cause)

    def __str__(self) -> str:
        run_id, cause = self.args
        return (
            f"the attributes of run {run_id!r} cannot be written as JSON: {cause}. "
            "Give plain values and finite numbers"
        )


class AlreadyRecorded(StoreError):
    """This part of a run is recorded already; records are never overwritten."""

    def __init__(self, run_id: str, part: str) -> None:
        super().__init__(run_id, part)

    def __str__(self) -> str:
        run_id, part = self.args
        return f"{part} of run {run_id!r} is recorded already; records are never overwritten"


class NotStarted(StoreError):
    """A step or call has no recorded start, so that nothing can be recorded or read of it."""

    def __init__(self, run_id: str, part: str) -> None:
        super().__init__(run_id, part)

    def __str__(self) -> str:
        run_id, part = self.args
        return f"{part} of run {run_id!r} has no recorded start; record its start first"


class PayloadMissing(StoreError):
    """The store has no payload with this hash."""

    def __init__(self, payload_hash: str) -> None:
        super().__init__(payload_hash)

    def __str__(self) -> str:
        return f"no payload {self.args[0]} in this store; store its bytes first"


class StateNotFound(StoreError):
    """The store has no state of a workspace with this id."""

    def __init__(self, state_id: str) -> None:
        super().__init__(state_id)

    def __str__(self) -> str:
        return (
            f"no state {self.args[0]!r} in this store; it was never recorded, or was removed "
            "because no run used it"
        )


class QueueDraining(StoreError):
    """A queue takes no runs now: it is drained."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)

    def __str__(self) -> str:
        return (
            f"queue {self.args[0]!r} is drained and takes no runs; "
            f"`orchestrate queue resume {self.args[0]}` opens it again"
        )


class RunNotQueueable(StoreError):
    """A run cannot be queued again."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)

    def __str__(self) -> str:
        run_id, reason = self.args
        return f"run {run_id!r} cannot be queued again: {reason}"


class ScheduleNotFound(StoreError):
    """No schedule has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)

    def __str__(self) -> str:
        return f"no schedule {self.args[0]!r} in this store; list the schedules to see their names"
