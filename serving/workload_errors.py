"""The named errors of the simulator: its inputs, its worker processes, and fits of step costs."""

from __future__ import annotations

from serving.errors import ServingError


class SimError(ServingError):
    """Base of every error that the simulator raises on purpose."""


class InvalidProgram(SimError):
    """A program cannot be run; the reason says what to change."""

    def __init__(self, program_id: str, reason: str) -> None:
        super().__init__(program_id, reason)

    def __str__(self) -> str:
        return "program {!r}: {}".format(*self.args)


class InvalidWorkload(SimError):
    """A setting of a workload or of an error model is unknown or out of range."""

    def __init__(self, setting: str, value: object, reason: str) -> None:
        super().__init__(setting, value, reason)

    def __str__(self) -> str:
        return "{}={!r}: {}".format(*self.args)


class BadTrace(SimError):
    """A trace file cannot be read, or does not follow its format."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        return "{}: {}".format(*self.args)


class TraceMissing(BadTrace):
    """The trace file does not exist."""


class StepFitFailed(SimError):
    """The cost of a step cannot be fitted to the measured steps; measure more, or other, steps."""

    def __init__(self, num_samples: int, reason: str) -> None:
        super().__init__(num_samples, reason)

    def __str__(self) -> str:
        return "{} measured steps: {}".format(*self.args)


class CodeChanged(SimError):
    """A worker process of a comparison runs other code than the comparison started with.

    Args:
        expected, found: versions of the code.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)

    def __str__(self) -> str:
        expected, found = self.args
        return (
            f"the code changed during the comparison: it started with version {expected}, and a "
            f"worker process runs {found}. Start again, and do not change the code meanwhile"
        )


class WorkerDied(SimError):
    """A worker process of a comparison died."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(exit_code)

    def __str__(self) -> str:
        return (
            f"a worker process died (exit code {self.args[0]}), most often because memory ran "
            "out: try fewer jobs. The results so far are kept"
        )
