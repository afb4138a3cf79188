"""What can go wrong in a flow; every error keeps its arguments and says what to do."""

from __future__ import annotations


class OrchestrateError(Exception):
    """Base of every error that the runtime raises on purpose."""


class InvalidDuration(OrchestrateError, ValueError):
    """A deadline or duration that is no positive time."""

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(value, reason)

    def __str__(self) -> str:
        value, reason = self.args
        return f"{value!r} {reason}; write it like 60s, 2m, 1.5h or 500ms"


class DeadlineExceeded(OrchestrateError, TimeoutError):
    """The time allowed ran out first."""

    def __init__(self, what: str, allowed_s: float) -> None:
        super().__init__(what, allowed_s)

    def __str__(self) -> str:
        what, allowed_s = self.args
        return f"{what} did not end within its {allowed_s:.3g} s"


class InvalidRunId(OrchestrateError, ValueError):
    """A run id that could not be typed, listed or used in a path."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)

    def __str__(self) -> str:
        return f"{self.args[0]!r} is no run id: use up to 64 letters, digits, '.', '_' and '-'"


class OutsideRun(OrchestrateError):
    """Something that needs a run was used outside one."""

    def __init__(self, what: str) -> None:
        super().__init__(what)

    def __str__(self) -> str:
        return f"{self.args[0]} works inside a flow: decorate the calling function with @flow"


class InvalidSettings(OrchestrateError):
    """A setting, from the environment or the command line, that cannot be used."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return str(self.args[0])
