"""What can be wrong with what a simulation is told to simulate."""

from __future__ import annotations

from serving.errors import ServingError


class SimError(ServingError):
    """Base of every error that the simulator raises on purpose."""


class InvalidProgram(SimError):
    """A program that nobody could run as it stands; the reason says what to change."""

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
    """A trace file cannot be read, or is not as its format says."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        return "{}: {}".format(*self.args)


class TraceMissing(BadTrace):
    """There is no such trace file."""


class StepFitFailed(SimError):
    """The measured steps do not tell what a step costs; more or other steps would."""

    def __init__(self, num_samples: int, reason: str) -> None:
        super().__init__(num_samples, reason)

    def __str__(self) -> str:
        return "{} measured steps: {}".format(*self.args)


class CodeChanged(SimError):
    """A process of a comparison runs other code than the comparison began with.

    Args:
        begun, found: versions of the code.
    """

    def __init__(self, begun: str, found: str) -> None:
        super().__init__(begun, found)

    def __str__(self) -> str:
        begun, found = self.args
        return (
            f"the code changed while policies were compared: begun with version {begun}, and a "
            f"process runs {found}. Start again, and leave the code as it is until the end"
        )


class WorkerDied(SimError):
    """A process that computed a part of a comparison ended by itself."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(exit_code)

    def __str__(self) -> str:
        return (
            f"a worker process died (exit code {self.args[0]}), most often for want of memory: "
            "try fewer jobs. What was done by then is kept"
        )
