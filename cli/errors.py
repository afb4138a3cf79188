"""Errors of the commands themselves; each message says what to do."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path


class CommandError(Exception):
    """Base class of the errors in this module."""


class BadInput(CommandError):
    """The command line asks for something impossible; the reason says what to change."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return str(self.args[0])


class CannotWrite(CommandError):
    """The results cannot be written to the file or folder that the user named."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(path, cause)

    def __str__(self) -> str:
        path, cause = self.args
        return f"cannot write to {path}: {cause}. Choose a writable path on a disk with free space"


class CannotPrint(CommandError):
    """The results cannot be written to stdout."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)

    def __str__(self) -> str:
        cause = self.args[0]
        return f"cannot write the results to stdout: {cause}. Redirect it to a disk with free space"


class StdoutClosed(CommandError):
    """The program that read stdout, such as `head`, has closed it; nothing failed."""


class Interrupted(CommandError):
    """A signal ended the command before its work was done.

    Args:
        signal_number: SIGINT or SIGTERM.
        run_id: the run that was cancelled; None if no run had started.
    """

    def __init__(self, signal_number: int, run_id: str | None) -> None:
        super().__init__(signal_number, run_id)

    @property
    def signal_number(self) -> int:
        """SIGINT or SIGTERM."""
        return int(self.args[0])

    def __str__(self) -> str:
        name = signal.Signals(self.signal_number).name
        run_id = self.args[1]
        if run_id is None:
            return f"interrupted by {name} before the run began"
        return f"interrupted by {name}: run {run_id} is recorded as cancelled"


class FitInterrupted(Interrupted):
    """A signal ended a fit before its result replaced the former one.

    Args:
        application: the one that was being fitted; None if no fit had started.
    """

    def __init__(self, signal_number: int, application: str | None) -> None:
        super().__init__(signal_number, application)

    def __str__(self) -> str:
        name = signal.Signals(self.signal_number).name
        application = self.args[1]
        if application is None:
            return f"interrupted by {name} before the first fit began"
        return f"interrupted by {name}: the library of {application} is unchanged"


class BenchInterrupted(Interrupted):
    """A signal ended a comparison before it was complete.

    Args:
        num_done: results that are in the cache; None if the comparison caches none.
    """

    def __init__(self, signal_number: int, num_done: int | None) -> None:
        super().__init__(signal_number, None)
        self.args = (signal_number, num_done)

    def __str__(self) -> str:
        name = signal.Signals(self.signal_number).name
        num_done = self.args[1]
        if num_done is None:
            return f"interrupted by {name}: no results are cached"
        return f"interrupted by {name}: {num_done} results are cached; the same command continues"


class RemovalInterrupted(Interrupted):
    """A signal ended a removal of old runs.

    Args:
        has_removed: whether some runs were already removed.
    """

    def __init__(self, signal_number: int, has_removed: bool) -> None:
        super().__init__(signal_number, None)
        self.args = (signal_number, has_removed)

    def __str__(self) -> str:
        name = signal.Signals(self.signal_number).name
        if self.args[1]:
            return f"interrupted by {name}: part is removed; the same command removes the rest"
        return f"interrupted by {name}: nothing was removed"


class FitInProgress(CommandError):
    """Another process is fitting these applications; this command skipped them."""

    def __init__(self, applications: Sequence[str]) -> None:
        super().__init__(tuple(applications))

    def __str__(self) -> str:
        names = ", ".join(self.args[0])
        return f"another process is fitting {names}: try again when it has ended"
