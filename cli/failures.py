"""Errors -> exit codes and messages: one table, so that scripts can rely on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

from cli.errors import Interrupted


class ExitCode(IntEnum):
    """What an exit code says."""

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
    ExitCode.RUN_FAILED: "the run failed, or a check of the doctor did",
    ExitCode.BAD_INPUT: "bad input: usage, settings, corpus, run not found",
    ExitCode.DEADLINE: "the deadline passed",
    ExitCode.ENGINE: "the engine: not installed, model not loaded, died, out of reach",
    ExitCode.STORE: "the store: cannot be opened, full, locked, damaged",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C); a run is recorded as cancelled",
    ExitCode.TERMINATED: "terminated (SIGTERM); likewise",
}

# By module and name, so that nothing need be imported to know its code. An error that is not
# named here counts as the nearest of its bases that is.
_ERRORS: Mapping[ExitCode, Mapping[str, Sequence[str]]] = {
    ExitCode.DONE: {"cli.errors": ["ReaderLeft"]},
    ExitCode.RUN_FAILED: {
        "builtins": ["Exception"],
        "orchestrator.errors": [
            "OrchestrateError",
            "OutsideRun",
            "FlowChanged",
            "OutcomeUnknown",
            "ResultNotSerialisable",
            "ResultUnreadable",
            "RunEnded",
            "StepFailed",
            "WouldBlock",
            "WrongLoop",
        ],
        "patterns.errors": ["PatternError"],
        "serving.errors": [
            "ServingError",
            "InvalidSlo",
            "InvalidRequest",
            "PromptTooLong",
            "StructuredOutputInvalid",
            "TooFewSamples",
        ],
        "serving.workload_errors": ["WorkerDied", "CodeChanged"],
        "agents.tools.errors": ["ToolError"],
        "cli.errors": ["CommandError"],
    },
    ExitCode.BAD_INPUT: {
        "orchestrator.errors": [
            "InvalidDuration",
            "InvalidRunId",
            "InvalidSettings",
            "PackageShadowed",
            "ArgumentsDiffer",
            "RunNotResumable",
        ],
        "serving.errors": [
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
        "store.errors": ["RunNotFound", "RunAmbiguous", "RunExists", "RunChanged"],
        "agents.tools.errors": ["CorpusNotFound", "CorpusNotAFolder", "CorpusEmpty"],
        "cli.errors": ["BadInput", "CannotWrite", "CannotPrint"],
    },
    ExitCode.DEADLINE: {
        "orchestrator.errors": ["DeadlineExceeded", "DeadlineInfeasible"],
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
        ],
        "agents.tools.errors": ["CorpusIndexUnavailable"],
        "cli.errors": ["FitUnderWay"],
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
"""The exit code of each error, by its module and name."""

VERBOSE = "ORCHESTRATE_VERBOSE"
"""The variable that asks every command for all there is to know; some have an option as well."""

_OURS = {name.rpartition(".")[0] for name in EXIT_CODES} - {"builtins"}


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code that an error ends the program with."""
    cause = first_cause(error)
    if isinstance(cause, Interrupted):
        return ExitCode(128 + cause.signal_number)
    for name in _names_of(type(cause)):
        if name in EXIT_CODES:
            return EXIT_CODES[name]
    return ExitCode.RUN_FAILED


def message_of(error: BaseException) -> str:
    """What a person is told of an error: one that is not ours is called by its type as well."""
    cause = first_cause(error)
    text = str(cause).strip()
    if any(name.rpartition(".")[0] in _OURS for name in _names_of(type(cause))):
        return text or type(cause).__name__
    if isinstance(cause, ModuleNotFoundError):
        return f"{text}; run `orchestrate doctor` to see whether the installation is complete"
    described = f"{type(cause).__name__}: {text}" if text else type(cause).__name__
    return f"{described} (with {VERBOSE}=1 in the environment, it is shown where it came from)"


def first_cause(error: BaseException) -> BaseException:
    """The first error of a group of them; the error itself where it is none."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def wants_traceback(arguments: Sequence[str]) -> bool:
    """Whether the user asked for all there is to know, by option or environment."""
    given = os.environ.get(VERBOSE, "").strip().lower()
    return "--verbose" in arguments or given in ("1", "true", "t", "yes", "y", "on")


def _names_of(kind: type[BaseException]) -> Iterator[str]:
    """The class and its bases as the table names them, nearest first."""
    return (f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__)
