"""What can go wrong in the store: the cause, and what to do about it.

Every error keeps its constructor's arguments, so that it survives pickling between processes.
A `url` never carries a password.
"""

from __future__ import annotations

from collections.abc import Sequence


class StoreError(Exception):
    """Base of every error that this package raises on purpose."""


class StoreLocked(StoreError):
    """Somebody else held the store for longer than we wait; the transaction had no effect."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(url, cause)

    def __str__(self) -> str:
        url, cause = self.args
        return f"the store {url} is busy: {cause}. Nothing was written: try again"


class StoreFull(StoreError):
    """No room is left for what was to be written; the transaction had no effect."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(url, cause)

    def __str__(self) -> str:
        url, cause = self.args
        return f"no room for the store {url}: {cause}. Free disk space, then try again"


class StoreCorrupt(StoreError):
    """What is stored is not what was written, or no database at all."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(url, cause)

    def __str__(self) -> str:
        url, cause = self.args
        return f"the store {url} is damaged: {cause}. Restore a backup, or open another store"


class StoreUnreachable(StoreError):
    """The store cannot be opened or written: its URL, folder, rights, driver or server."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(url, cause)

    def __str__(self) -> str:
        url, cause = self.args
        return (
            f"cannot use the store {url}: {cause}. Give a file that you may write "
            "(sqlite:///path) or a running server (postgresql://user@host/name)"
        )


class StoreNewer(StoreError):
    """The schema is of a revision that this version does not know."""

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
    """The database refused a statement for a reason that has no name of its own here."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(url, cause)

    def __str__(self) -> str:
        url, cause = self.args
        return f"the store {url} refused: {cause}. Nothing was written; this is likely a defect"


class RunNotFound(StoreError):
    """No run has this id, or an id that begins like this."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)

    def __str__(self) -> str:
        return f"no run {self.args[0]!r} in this store; list the runs to see their ids"


class RunAmbiguous(StoreError):
    """Several runs' ids begin like this."""

    def __init__(self, prefix: str, run_ids: Sequence[str]) -> None:
        super().__init__(prefix, tuple(run_ids))

    def __str__(self) -> str:
        prefix, run_ids = self.args
        return f"{prefix!r} begins several runs' ids, give more of it: {', '.join(run_ids)}"


class RunExists(StoreError):
    """A run with this id is recorded already."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)

    def __str__(self) -> str:
        return f"run {self.args[0]!r} is recorded already; give the new run an id of its own"


class RunChanged(StoreError):
    """A run is not as it was read any more: another process goes on with it, or has ended it."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)

    def __str__(self) -> str:
        return f"run {self.args[0]!r} was taken by another process meanwhile; look at it again"


class InvalidAttributes(StoreError):
    """A run's attributes are no JSON; the run was not recorded."""

    def __init__(self, run_id: str, cause: str) -> None:
        super().__init__(run_id, cause)

    def __str__(self) -> str:
        run_id, cause = self.args
        return f"the attributes of run {run_id!r} are no JSON: {cause}. Give plain, finite values"


class AlreadyRecorded(StoreError):
    """This part of a run is recorded already, and a record is never overwritten."""

    def __init__(self, run_id: str, part: str) -> None:
        super().__init__(run_id, part)

    def __str__(self) -> str:
        run_id, part = self.args
        return f"{part} of run {run_id!r} is recorded already; records are never overwritten"


class NotStarted(StoreError):
    """An end, or a child, was recorded for what never began."""

    def __init__(self, run_id: str, part: str) -> None:
        super().__init__(run_id, part)

    def __str__(self) -> str:
        run_id, part = self.args
        return f"{part} of run {run_id!r} never began; record its start first"


class PayloadMissing(StoreError):
    """The store holds no payload of this hash."""

    def __init__(self, payload_hash: str) -> None:
        super().__init__(payload_hash)

    def __str__(self) -> str:
        return f"no payload {self.args[0]} in this store; put its bytes first"
