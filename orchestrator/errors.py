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


class DeadlineInfeasible(OrchestrateError):
    """No past run of the flow was as quick as this one would have to be."""

    def __init__(self, flow: str, deadline_s: float, bound_s: float, runs: int) -> None:
        super().__init__(flow, deadline_s, bound_s, runs)

    def __str__(self) -> str:
        flow, deadline_s, bound_s, runs = self.args
        return (
            f"a deadline of {deadline_s:.3g} s cannot be met: the shortest of {runs} past runs of"
            f" {flow} took {bound_s:.3g} s; allow more, or let the flow do less"
        )


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


class PackageShadowed(OrchestrateError, ImportError):
    """A file of the user's has an import name that this project needs for itself."""

    def __init__(self, name: str, file: str, reserved: str) -> None:
        super().__init__(name, file, reserved)

    def __str__(self) -> str:
        name, file, reserved = self.args
        return (
            f"{file} hides orchestrate's package {name!r}: rename that file, or run Python with -P"
            f" (python -P SCRIPT), which does not look for imports beside the script."
            f" Names that orchestrate needs for itself: {reserved}"
        )


class FlowChanged(OrchestrateError):
    """A resumed run's code begins other steps than it did before."""

    def __init__(self, run_id: str, recorded: str, now: str) -> None:
        super().__init__(run_id, recorded, now)

    def __str__(self) -> str:
        run_id, recorded, now = self.args
        return (
            f"run {run_id} cannot be resumed by this code: {recorded} is recorded where the flow"
            f" now comes to {now}; resume it with the code that began it, or with --allow-changed"
        )


class OutcomeUnknown(OrchestrateError):
    """An external effect may have happened or not: its process died, or it was cut off."""

    def __init__(self, run_id: str, path: str) -> None:
        super().__init__(run_id, path)

    def __str__(self) -> str:
        run_id, path = self.args
        return (
            f"nobody knows whether {path} of run {run_id} took effect: it began, and its process"
            f" died, or a timeout cut it off. Find out, and give its tool a reconcile= that tells;"
            f" or declare it as effects='pure' or 'env' if doing it again does no harm"
        )


class ResultNotSerialisable(OrchestrateError, TypeError):
    """A result or an argument that cannot be recorded such that it comes back as it was."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)

    def __str__(self) -> str:
        what, reason = self.args
        return (
            f"what {what} gives cannot be recorded: {reason}. Annotate it with a type that pydantic"
            f" can write as JSON and read again: plain values, dataclasses, pydantic models"
        )


class ResultUnreadable(OrchestrateError):
    """A recorded value that is none of the type that the code now says."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)

    def __str__(self) -> str:
        what, reason = self.args
        return f"what is recorded of {what} does not fit its type any more: {reason}"


class RunNotResumable(OrchestrateError):
    """A run that cannot be resumed as it stands, or not by this process."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)

    def __str__(self) -> str:
        run_id, reason = self.args
        return f"run {run_id} cannot be resumed: {reason}"


class ArgumentsDiffer(OrchestrateError, ValueError):
    """A run of this id exists, and was started with other arguments."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)

    def __str__(self) -> str:
        return f"run {self.args[0]} was started with other arguments: give the new run another id"


class StepFailed(OrchestrateError):
    """A recorded step had failed, with an error that cannot be made again."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        path, reason = self.args
        return f"{path} failed before the run was interrupted: {reason}"


class RunEnded(OrchestrateError, RuntimeError):
    """Something of a run that has ended, by its deadline or a cancellation, was still under way."""

    def __init__(self, what: str) -> None:
        super().__init__(what)

    def __str__(self) -> str:
        return f"{self.args[0]} was given up: its run has ended, by its deadline or a cancellation"


class WouldBlock(OrchestrateError, RuntimeError):
    """A call that waits was made on the event loop that has to do the work."""

    def __init__(self, what: str) -> None:
        super().__init__(what)

    def __str__(self) -> str:
        return (
            f"{self.args[0]} would wait for its own event loop for ever: await its async form"
            f" (ainvoke, astream), or call it from a thread"
        )


class WrongLoop(OrchestrateError, RuntimeError):
    """A part of a run was awaited on another event loop than the run's."""

    def __init__(self, what: str) -> None:
        super().__init__(what)

    def __str__(self) -> str:
        return (
            f"{self.args[0]} belongs to its run's event loop, and was awaited on another one, as by"
            f" asyncio.run in a plain function: make that function async, and await it there"
        )
