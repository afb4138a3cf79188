"""The exit code and the message of each error. Scripts rely on the exit codes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

from cli.errors import Interrupted


class ExitCode(IntEnum):
    """The exit codes of `orchestrate`."""

    DONE = 0
    RUN_FAILED = 1
    BAD_INPUT = 2
    DEADLINE = 3
    ENGINE = 4
    STORE = 5
    INTERRUPTED = 128 + signal.SIGINT
    TERMINATED = 128 + signal.SIGTERM


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.DONE: "done",
    ExitCode.RUN_FAILED: "the run failed or was cancelled, or a check of `orchestrate doctor`",
    ExitCode.BAD_INPUT: "bad input: wrong option, setting or corpus, or unknown run",
    ExitCode.DEADLINE: "the deadline passed",
    ExitCode.ENGINE: "the engine is not installed, cannot load, died or is unreachable",
    ExitCode.STORE: "the store cannot be opened, is full, locked or damaged",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C); the run is recorded as cancelled",
    ExitCode.TERMINATED: "terminated (SIGTERM); the run is recorded as cancelled",
}

# By module and name, so that no module must be imported to look up its errors. An error that is
# not listed has the code of its nearest listed base class.
_ERRORS: Mapping[ExitCode, Mapping[str, Sequence[str]]] = {
    ExitCode.DONE: {"cli.errors": ["StdoutClosed"]},
    ExitCode.RUN_FAILED: {
        "builtins": ["Exception"],
        "orchestrator.errors": [
            "OrchestrateError",
            "OutsideRun",
            "FlowChanged",
            "McpServerFailed",
            "OutcomeUnknown",
            "ResultNotSerialisable",
            "ResultUnreadable",
            "RunCancelled",
            "RunEnded",
            "RunInterrupted",
            "RuntimeDraining",
            "StepFailed",
            "ToolCallsInvalid",
            "ToolFailed",
            "UnknownEngine",
            "UnknownModel",
            "WouldBlock",
            "WrongLoop",
        ],
        "orchestrator.environment.errors": [
            "ApplyBusy",
            "ApplyFailed",
            "ApplyUnfinished",
            "BaseChanged",
            "CommandFailed",
            "MergeConflict",
            "NoWorkspace",
            "NotRevertible",
            "SandboxFailed",
            "ServiceFailed",
            "ShellBusy",
            "StateDiscarded",
            "StateLost",
            "WorkspaceBusy",
            "WorkspaceClosed",
            "WorkspaceFull",
        ],
        "patterns.errors": ["PatternError"],
        "serving.errors": [
            "ServingError",
            "EmbeddingsNotSupported",
            "InvalidSlo",
            "InvalidRequest",
            "PolicyFailed",
            "PromptTooLong",
            "StructuredOutputInvalid",
            "TooFewSamples",
            "ToolsNotSupported",
        ],
        "serving.workload_errors": ["WorkerDied", "CodeChanged"],
        "agents.tools.errors": ["ToolError", "Unreadable"],
        "cli.errors": ["CommandError"],
    },
    ExitCode.BAD_INPUT: {
        "orchestrator.environment.errors": [
            "BaseRefused",
            "InvalidResolution",
            "OutsideWorkspace",
        ],
        "orchestrator.errors": [
            "InvalidCron",
            "InvalidDuration",
            "InvalidQueueOption",
            "InvalidRunId",
            "InvalidSettings",
            "PackageShadowed",
            "AnswerRefused",
            "ArgumentsDiffer",
            "EffectsAfterFork",
            "NoForkPoint",
            "NoOpenQuestion",
            "RunAlreadyEnded",
            "RunNotForkable",
            "RunNotResumable",
        ],
        "serving.errors": [
            "InvalidApiKeys",
            "InvalidEngineConfig",
            "InvalidReference",
            "CorruptFeatures",
            "UnknownFeaturesVersion",
            "CorruptModel",
            "UnknownModelVersion",
            "ModelUnreadable",
            "ModelNotSaved",
        ],
        "serving.workload_errors": [
            "SimError",
            "InvalidProgram",
            "InvalidWorkload",
            "BadTrace",
            "TraceMissing",
            "StepFitFailed",
        ],
        "store.errors": [
            "RunNotFound",
            "RunAmbiguous",
            "RunExists",
            "RunChanged",
            "StateNotFound",
            "QueueDraining",
            "RunNotQueueable",
            "ScheduleNotFound",
        ],
        "agents.tree_of_thoughts.errors": ["InvalidTask"],
        "agents.tools.errors": ["CorpusNotFound", "CorpusNotAFolder", "CorpusEmpty"],
        "cli.errors": ["BadInput", "CannotWrite", "CannotPrint"],
    },
    ExitCode.DEADLINE: {
        "orchestrator.errors": ["BudgetExceeded", "DeadlineExceeded", "DeadlineInfeasible"],
        "serving.errors": ["RequestDropped"],
    },
    ExitCode.ENGINE: {
        "serving.errors": [
            "ModelNotLoaded",
            "ModelNotServed",
            "EngineMissing",
            "EngineBusy",
            "EngineClosed",
            "EngineDied",
            "RayMissing",
            "RayUnreachable",
            "ReplicaFailed",
            "AnswerLost",
            "RemoteUnavailable",
            "RemoteRefused",
            "RequestFailed",
        ],
    },
    ExitCode.STORE: {
        "store.errors": [
            "StoreError",
            "StoreLocked",
            "StoreFull",
            "StoreCorrupt",
            "StoreUnreachable",
            "StoreNewer",
            "StoreClosed",
            "StoreFailed",
            "InvalidAttributes",
            "AlreadyRecorded",
            "NotStarted",
            "PayloadMissing",
            "PayloadEncoded",
            "PayloadNotEncoded",
        ],
        "agents.tools.errors": ["CorpusIndexUnavailable"],
        "orchestrator.errors": ["OutcomeNotRecorded"],
        "cli.errors": ["FitInProgress"],
    },
    ExitCode.INTERRUPTED: {
        "builtins": ["KeyboardInterrupt"],
        "cli.errors": [
            "Interrupted",
            "FitInterrupted",
            "BenchInterrupted",
            "RemovalInterrupted",
        ],
    },
}

EXIT_CODES: Mapping[str, ExitCode] = {
    f"{module}.{name}": code
    for code, modules in _ERRORS.items()
    for module, names in modules.items()
    for name in names
}
"""module.name of an error class -> its exit code."""

VERBOSE = "ORCHESTRATE_VERBOSE"
"""The environment variable that asks for details and tracebacks, like the option --verbose."""

_OURS = {name.rpartition(".")[0] for name in EXIT_CODES} - {"builtins"}


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code with which an error ends the program."""
    cause = first_cause(error)
    if isinstance(cause, Interrupted):
        return ExitCode(128 + cause.signal_number)
    for name in _names_of(type(cause)):
        if name in EXIT_CODES:
            return EXIT_CODES[name]
    return ExitCode.RUN_FAILED


def message_of(error: BaseException) -> str:
    """The message that the user sees; it starts with the error's type if the error is not ours."""
    cause = first_cause(error)
    text = str(cause).strip()
    if any(name.rpartition(".")[0] in _OURS for name in _names_of(type(cause))):
        return text or type(cause).__name__
    if isinstance(cause, ModuleNotFoundError):
        return f"{text}; run `orchestrate doctor` to see whether the installation is complete"
    described = f"{type(cause).__name__}: {text}" if text else type(cause).__name__
    return f"{described} (set {VERBOSE}=1 in the environment to see a traceback)"


def first_cause(error: BaseException) -> BaseException:
    """The first error in a (nested) group; the error itself if it is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def wants_traceback(arguments: Sequence[str]) -> bool:
    """Whether the user asked for tracebacks, by --verbose or the environment."""
    value = os.environ.get(VERBOSE, "").strip().lower()
    return "--verbose" in arguments or value in ("1", "true", "t", "yes", "y", "on")


def _names_of(kind: type[BaseException]) -> Iterator[str]:
    """module.name of a class and of its bases, nearest first."""
    return (f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__)
