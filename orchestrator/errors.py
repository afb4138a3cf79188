"""Errors of flows and runs; each keeps its constructor's arguments and says what to do."""

from __future__ import annotations

MAX_LISTED = 10
"""Most names that a message lists."""


class OrchestrateError(Exception):
    """Base of every error that the runtime raises on purpose."""


class InvalidDuration(OrchestrateError, ValueError):
    """A deadline or duration that is not a positive, finite time."""

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(value, reason)

    def __str__(self) -> str:
        value, reason = self.args
        return f"{value!r} {reason}; write it like 60s, 2m, 1.5h or 500ms"


class DeadlineExceeded(OrchestrateError, TimeoutError):
    """A run, a step or a block did not end within its deadline."""

    def __init__(self, what: str, allowed_s: float) -> None:
        super().__init__(what, allowed_s)

    def __str__(self) -> str:
        what, allowed_s = self.args
        return f"{what} did not end within its {allowed_s:.3g} s"


class BudgetExceeded(OrchestrateError):
    """A block would have made an LLM call after its budget was spent."""

    def __init__(
        self, what: str, tokens: int, max_tokens: int | None, calls: int, max_calls: int | None
    ) -> None:
        super().__init__(what, tokens, max_tokens, calls, max_calls)

    def __str__(self) -> str:
        what, tokens, max_tokens, calls, max_calls = self.args
        used = [
            f"{count} of {limit} {unit}"
            for count, limit, unit in ((tokens, max_tokens, "tokens"), (calls, max_calls, "calls"))
            if limit is not None
        ]
        return f"the budget of {what} is spent: {' and '.join(used)}; allow more, or ask for less"


class DeadlineInfeasible(OrchestrateError):
    """The deadline is shorter than the shortest past run of the flow."""

    def __init__(self, flow: str, deadline_s: float, bound_s: float, runs: int) -> None:
        super().__init__(flow, deadline_s, bound_s, runs)

    def __str__(self) -> str:
        flow, deadline_s, bound_s, runs = self.args
        return (
            f"a deadline of {deadline_s:.3g} s cannot be met: the shortest of {runs} past runs of"
            f" {flow} took {bound_s:.3g} s; allow more time, or make the flow do less"
        )


class InvalidRunId(OrchestrateError, ValueError):
    """A run id that could not be typed, listed or used in a path."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)

    def __str__(self) -> str:
        return (
            f"{self.args[0]!r} is not a valid run id: use up to 64 letters, digits, '.', '_' and"
            f" '-', beginning with a letter or digit"
        )


class InvalidQueueOption(OrchestrateError, ValueError):
    """An option with which a run cannot be submitted, or a queue cannot be changed."""

    def __init__(self, option: str, given: object, rule: str) -> None:
        super().__init__(option, given, rule)

    def __str__(self) -> str:
        option, given, rule = self.args
        return f"{option}={given!r:.80} cannot be used: give {rule}"


class InvalidCron(OrchestrateError, ValueError):
    """A schedule's times cannot be read, or never come."""

    def __init__(self, cron: str, reason: str) -> None:
        super().__init__(cron, reason)

    def __str__(self) -> str:
        cron, reason = self.args
        return (
            f"{cron!r} is not a schedule: {reason}; give minute, hour, day of the month, month and"
            f" day of the week, such as '30 2 * * mon-fri'"
        )


class OutsideRun(OrchestrateError):
    """A function that needs a run was called outside one."""

    def __init__(self, what: str) -> None:
        super().__init__(what)

    def __str__(self) -> str:
        return f"{self.args[0]} works only inside a flow: decorate the calling function with @flow"


class InvalidSettings(OrchestrateError):
    """A setting, from the environment or the command line, that cannot be used."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return str(self.args[0])


class UnknownEngine(OrchestrateError, LookupError):
    """A call names an engine that the runtime does not have."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)

    def __str__(self) -> str:
        name, known = self.args
        return (
            f"there is no engine {name!r}: the named ones are {', '.join(known) or 'none'}; name it"
            f" in ORCHESTRATE_ENGINES or open_runtime(engines=), or leave out engine= for the"
            f" default one"
        )


class UnknownModel(OrchestrateError, LookupError):
    """A call names a model that no engine of the runtime serves."""

    def __init__(self, model: str, served: tuple[str, ...]) -> None:
        super().__init__(model, served)

    def __str__(self) -> str:
        model, served = self.args
        return (
            f"no engine of this runtime serves the model {model!r}: served are"
            f" {', '.join(served) or 'none'}; name an engine that does in ORCHESTRATE_ENGINES"
        )


class PackageShadowed(OrchestrateError, ImportError):
    """A user's file has the import name of a package of this project, and would be found first."""

    def __init__(self, name: str, file: str, reserved: str) -> None:
        super().__init__(name, file, reserved)

    def __str__(self) -> str:
        name, file, reserved = self.args
        return (
            f"{file} hides orchestrate's package {name!r}: rename that file, or run Python with -P"
            f" (python -P SCRIPT), which does not look for imports beside the script."
            f" Reserved names: {reserved}"
        )


class FlowChanged(OrchestrateError):
    """The code of a resumed run begins other steps than are recorded."""

    def __init__(self, run_id: str, recorded: str, now: str) -> None:
        super().__init__(run_id, recorded, now)

    def __str__(self) -> str:
        run_id, recorded, now = self.args
        return (
            f"run {run_id} cannot be resumed by this code: {recorded} is recorded where the flow"
            f" now begins {now}; resume it with the code that began it, or with --allow-changed"
        )


class OutcomeUnknown(OrchestrateError):
    """It is unknown whether an external effect took place: its process died, or it timed out."""

    def __init__(self, run_id: str, path: str) -> None:
        super().__init__(run_id, path)

    def __str__(self) -> str:
        run_id, path = self.args
        return (
            f"it is unknown whether {path} of run {run_id} took effect: it began, but its process"
            f" died or a timeout cut it off. Give the tool a reconcile= function that finds out,"
            f" or declare it with effects='pure' or 'env' if repeating it does no harm"
        )


class ToolFailed(OrchestrateError):
    """A tool cannot do what it was asked for; an agent's model gets the reason and may go on."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(tool, reason)

    def __str__(self) -> str:
        return "{}: {}".format(*self.args)


class ToolCallsInvalid(OrchestrateError):
    """An agent's model asks again and again for tools that do not exist, or do not fit."""

    def __init__(self, agent: str, times: int, reason: str) -> None:
        super().__init__(agent, times, reason)

    def __str__(self) -> str:
        agent, times, reason = self.args
        return (
            f"the model of {agent} asked {times} times in a row for tool calls that are not valid,"
            f" at last: {reason}; describe the tools more clearly, raise max_invalid or max_tokens,"
            f" or use another model"
        )


class McpServerFailed(OrchestrateError):
    """An MCP server did not start, died, or did not answer in time."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)

    def __str__(self) -> str:
        return "the MCP server {}: {}".format(*self.args)


class OutcomeNotRecorded(OrchestrateError):
    """An external effect was asked for, and the store could not take how it ended."""

    def __init__(self, run_id: str, path: str, cause: str) -> None:
        super().__init__(run_id, path, cause)

    def __str__(self) -> str:
        run_id, path, cause = self.args
        return (
            f"{path} of run {run_id} may have taken effect, but its outcome could not be recorded:"
            f" {cause}. A resumed run asks its reconcile=, or ends in OutcomeUnknown"
        )


class ResultNotSerialisable(OrchestrateError, TypeError):
    """A result or an argument cannot be recorded such that reading it gives the same value."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)

    def __str__(self) -> str:
        what, reason = self.args
        return (
            f"the value of {what} cannot be recorded: {reason}. Annotate it with a type that"
            f" pydantic can write as JSON and read back: plain values, dataclasses, pydantic models"
        )


class ResultUnreadable(OrchestrateError):
    """A recorded value does not fit the type that the code now declares."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)

    def __str__(self) -> str:
        what, reason = self.args
        return f"the recorded value of {what} does not fit its type any more: {reason}"


class RunNotResumable(OrchestrateError):
    """A run cannot be resumed in its current state, or not by this process."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)

    def __str__(self) -> str:
        run_id, reason = self.args
        return f"run {run_id} cannot be resumed: {reason}"


class RunNotForkable(OrchestrateError):
    """A run cannot be forked: it was not recorded for that, or not with all of its arguments."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)

    def __str__(self) -> str:
        run_id, reason = self.args
        return f"run {run_id} cannot be forked: {reason}"


class NoForkPoint(OrchestrateError, LookupError):
    """A run has no step with an outcome of this path, or several whose paths begin or end so."""

    def __init__(self, run_id: str, at: str, reason: str, candidates: tuple[str, ...]) -> None:
        super().__init__(run_id, at, reason, candidates)

    def __str__(self) -> str:
        run_id, at, reason, candidates = self.args
        shown = ", ".join(candidates[:MAX_LISTED]) or "none"
        more = len(candidates) - MAX_LISTED
        return (
            f"run {run_id} cannot be forked at {at!r}: {reason}: {shown}"
            f"{f' and {more} more (orchestrate logs {run_id})' if more > 0 else ''}"
        )


class EffectsAfterFork(OrchestrateError):
    """After the step at which a run is to be forked it had effects, which a fork may repeat."""

    def __init__(self, run_id: str, at: str, effects: tuple[str, ...]) -> None:
        super().__init__(run_id, at, effects)

    def __str__(self) -> str:
        run_id, at, effects = self.args
        more = len(effects) - MAX_LISTED
        return (
            f"after {at} run {run_id} had, or may have had, external effects of which a fork does"
            f" not know, so that they may happen a second time: {', '.join(effects[:MAX_LISTED])}"
            f"{f' and {more} more' if more > 0 else ''}. If that does no harm, fork it with"
            f" allow_effects=True (--allow-effects)"
        )


class RunCancelled(OrchestrateError):
    """A run was cancelled by `Runtime.cancel` or `orchestrate cancel`, here or elsewhere."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)

    def __str__(self) -> str:
        return f"run {self.args[0]} was cancelled; `orchestrate resume` can continue it"


class RunAlreadyEnded(OrchestrateError):
    """A run has ended, so it cannot be cancelled."""

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(run_id, status)

    def __str__(self) -> str:
        run_id, status = self.args
        return f"run {run_id} has ended: it is {status}"


class NoOpenQuestion(OrchestrateError, LookupError):
    """A run has no question, or none at this path, that can be answered now."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)

    def __str__(self) -> str:
        run_id, reason = self.args
        return f"run {run_id} {reason}"


class AnswerRefused(OrchestrateError, ValueError):
    """An answer does not fit the type that its question asks for; the question stays open."""

    def __init__(self, run_id: str, path: str, reason: str) -> None:
        super().__init__(run_id, path, reason)

    def __str__(self) -> str:
        run_id, path, reason = self.args
        return f"the answer to {path} of run {run_id} does not fit: {reason}"


class ArgumentsDiffer(OrchestrateError, ValueError):
    """A run with this id exists and was started with other arguments."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)

    def __str__(self) -> str:
        return f"run {self.args[0]} was started with other arguments: give the new run another id"


class StepFailed(OrchestrateError):
    """A replayed step had failed with an error that cannot be rebuilt from its record."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        path, reason = self.args
        return f"{path} failed before the run was interrupted: {reason}"


class RunEnded(OrchestrateError, RuntimeError):
    """Work was still in progress when its run ended, at a deadline or by cancellation."""

    def __init__(self, what: str) -> None:
        super().__init__(what)

    def __str__(self) -> str:
        return f"{self.args[0]} was stopped: its run has ended, at its deadline or by cancellation"


class RunInterrupted(OrchestrateError):
    """A run was handed over by `Runtime.drain`: its record says that it is in progress."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)

    def __str__(self) -> str:
        return (
            f"run {self.args[0]} was interrupted, as its runtime is drained; continue it with"
            f" resume_orphans() or `orchestrate resume {self.args[0]}`"
        )


class RuntimeDraining(OrchestrateError, RuntimeError):
    """A run was to begin in a runtime that is drained."""

    def __init__(self, what: str) -> None:
        super().__init__(what)

    def __str__(self) -> str:
        return f"{self.args[0]} cannot begin: its runtime is drained; begin it in another process"


class WouldBlock(OrchestrateError, RuntimeError):
    """A blocking call was made on the event loop that has to do the work."""

    def __init__(self, what: str) -> None:
        super().__init__(what)

    def __str__(self) -> str:
        return (
            f"{self.args[0]} would block forever, as it waits for the event loop that it blocks:"
            f" await its async form (ainvoke, astream), or call it from a thread"
        )


class WrongLoop(OrchestrateError, RuntimeError):
    """A step or call of a run was awaited on another event loop than the run's."""

    def __init__(self, what: str) -> None:
        super().__init__(what)

    def __str__(self) -> str:
        return (
            f"{self.args[0]} belongs to its run's event loop, but was awaited on another one, as by"
            f" asyncio.run in a plain function: make that function async, and await it there"
        )
