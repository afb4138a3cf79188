"""What a commit of a schedule says, in words."""

from __future__ import annotations

from orchestrator.testing.unreliable_store import LEASE, Commit, Operation
from store.records import StepRecord


def described(commit: Commit) -> str:
    """One commit: its process, its branch, and what it records."""
    where = f"process {commit.process}" + (f" branch {commit.branch}" if commit.branch else "")
    parts = [text for each in commit.operations if (text := _operation(each))]
    return f"{where}: {', '.join(parts) or 'a commit'}"


def _operation(operation: Operation) -> str:
    match operation:
        case Operation("runs.add", _):
            return "record the run"
        case Operation("runs.resume", [_, record]):
            return f"claim the run as attempt {record.attempts}"
        case Operation("runs.finish", [_, outcome, *_]):
            return f"end the run, {outcome.status}"
        case Operation("runs.lease", _):
            return f"renew the {LEASE}"
        case Operation("journal.start", [StepRecord() as step]):
            return f"begin {step.path}"
        case Operation("journal.start_again", [StepRecord() as step, *_]):
            return f"begin {step.path} again"
        case Operation("journal.finish", [_, path, outcome]):
            return f"end {path}, {outcome.status}"
        case Operation("journal.forget", [_, paths, *_]):
            return f"forget {', '.join(paths)}"
        case Operation("calls.start", [call, *_]):
            return f"call {call.node}"
    return ""
