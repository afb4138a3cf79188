"""What can go wrong in a command itself; every error keeps its arguments and says what to do."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path


class CommandError(Exception):
    """Base of every error that a command raises on purpose."""


class BadInput(CommandError):
    """What was asked for on the command line cannot be done; the reason says what to change."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return str(self.args[0])


class CannotWrite(CommandError):
    """The results cannot be written where the user wants them."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(path, cause)

    def __str__(self) -> str:
        path, cause = self.args
        return f"cannot write to {path}: {cause}. Name a place with room that you may write to"


class CannotPrint(CommandError):
    """The results cannot be written to stdout."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)

    def __str__(self) -> str:
        return f"cannot write the results to stdout: {self.args[0]}. Send them to a place with room"


class ReaderLeft(CommandError):
    """Whoever read stdout has had enough, as `head` has: nothing failed."""


class Interrupted(CommandError):
    """A signal ended the command before its work was done.

    Args:
        signal_number: SIGINT or SIGTERM.
        run_id: of the run that was cancelled; None where none had begun.
    """

    def __init__(self, signal_number: int, run_id: str | None) -> None:
        super().__init__(signal_number, run_id)

    @property
    def signal_number(self) -> int:
        """The signal that came."""
        return int(self.args[0])

    def __str__(self) -> str:
        name = signal.Signals(self.signal_number).name
        run_id = self.args[1]
        if run_id is None:
            return f"interrupted by {name} before a run had begun"
        return f"interrupted by {name}: run {run_id} is recorded as cancelled"


class FitInterrupted(Interrupted):
    """A signal ended a fit before its result was put in place.

    Args:
        application: the one that was being fitted; None where none was yet.
    """

    def __init__(self, signal_number: int, application: str | None) -> None:
        super().__init__(signal_number, application)

    def __str__(self) -> str:
        name = signal.Signals(self.signal_number).name
        application = self.args[1]
        if application is None:
            return f"interrupted by {name} before a fit had begun"
        return f"interrupted by {name}: {application} keeps its former library"


class BenchInterrupted(Interrupted):
    """A signal ended a comparison before all of it was done.

    Args:
        num_done: results that are kept for the next time; None: none are.
    """

    def __init__(self, signal_number: int, num_done: int | None) -> None:
        super().__init__(signal_number, None)
        self.args = (signal_number, num_done)

    def __str__(self) -> str:
        name = signal.Signals(self.signal_number).name
        num_done = self.args[1]
        if num_done is None:
            return f"interrupted by {name}: nothing is kept"
        return f"interrupted by {name}: {num_done} results are kept, and the same command goes on"


class RemovalInterrupted(Interrupted):
    """A signal ended a removal of old runs.

    Args:
        is_removed: whether some of it was done already.
    """

    def __init__(self, signal_number: int, is_removed: bool) -> None:
        super().__init__(signal_number, None)
        self.args = (signal_number, is_removed)

    def __str__(self) -> str:
        name = signal.Signals(self.signal_number).name
        if self.args[1]:
            return f"interrupted by {name}: part is done, and the same command goes on"
        return f"interrupted by {name}: nothing was removed"


class FitUnderWay(CommandError):
    """Another process is fitting these applications; nothing was done about them here."""

    def __init__(self, applications: Sequence[str]) -> None:
        super().__init__(tuple(applications))

    def __str__(self) -> str:
        names = ", ".join(self.args[0])
        return f"another fit of {names} is under way: try again when it has ended"
