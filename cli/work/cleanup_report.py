"""What `orchestrate gc` says: in words, and as a JSON document. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.filesize import decimal

from cli.work.cleanup import Cleanup
from cli.work.state_collection import StateCleanup, StateRequest
from orchestrator.display.run_text import counted
from orchestrator.environment.collection import Collected
from orchestrator.environment.errors import StateDiscarded, StateLost

_MOST_NAMED = 10


def report_lines(done: Cleanup, request: StateRequest) -> Iterator[str]:
    """The result, a fact on each line."""
    removal, verb = done.removal, "would remove" if request.dry_run else "removed"
    parts = [
        counted(removal.num_runs, "run"),
        counted(removal.num_steps, "step"),
        counted(removal.num_calls, "call"),
        f"{counted(removal.num_payloads, 'payload')} of {decimal(removal.payload_bytes)}",
    ]
    yield f"{verb} {', '.join(parts)}"
    if done.before is not None and done.after is not None:
        size = decimal(done.after)
        yield f"the file takes {decimal(done.before)}" + (
            "" if request.dry_run else f" before, {size} now"
        )
    yield from _state_lines(done.states, verb, is_planned=request.dry_run)
    if done.states.verified is not None:
        yield from _verified_lines(done.states, request)


def warnings_of(done: Cleanup, request: StateRequest) -> Iterator[str]:
    """What the user should know of what was not removed."""
    removal, states = done.removal, done.states
    if removal.num_damaged:
        yield (
            f"{counted(removal.num_damaged, 'payload')} in use cannot be read; "
            f"{counted(removal.num_spared, 'unused payload')} that may be parts of them are kept "
            "until their runs are removed"
        )
    for url in states.unread:
        yield (
            f"no contents of states are removed, as {url} keeps its states in the same folder and "
            "cannot be read"
        )
    over_bytes = over_budget(states, request)
    if over_bytes:
        new = 0 if states.collected is None else states.collected.num_new
        yield (
            f"the states take {decimal(over_bytes)} more than the budget: "
            f"{counted(states.num_needed, 'state')} that runs name are kept (to keep fewer runs: "
            f"--keep), and {counted(new, 'piece')} that are newer than the time of grace or an hour"
        )


def is_whole(done: Cleanup) -> bool:
    """Whether a check found nothing that is missing or damaged."""
    verified = done.states.verified
    return verified is None or not (_damaged(verified.lost) or verified.missing)


def document_of(done: Cleanup, request: StateRequest, keep_s: float) -> dict[str, Any]:
    """The JSON document; the file's bytes are None if the store is on a database server."""
    removal, states = done.removal, done.states
    collected = states.collected or Collected()
    document: dict[str, Any] = {
        "dry_run": request.dry_run,
        "keep_s": keep_s,
        "runs": removal.num_runs,
        "steps": removal.num_steps,
        "calls": removal.num_calls,
        "payloads": removal.num_payloads,
        "payload_bytes": removal.payload_bytes,
        "damaged_payloads": removal.num_damaged,
        "spared_payloads": removal.num_spared,
        "file_bytes_before": done.before,
        "file_bytes_after": done.after,
        "grace_s": request.grace_s,
        "states": states.num_rows,
        "state_documents": collected.num_states,
        "contents": collected.num_blobs,
        "layers": collected.num_layers,
        "dead_workspaces": collected.num_live,
        "state_bytes": collected.num_bytes,
        "states_kept": states.num_needed,
        "state_bytes_after": states.root_bytes,
        "over_budget_bytes": over_budget(states, request),
        "unread_stores": states.unread,
    }
    if states.verified is not None:
        document["verified"] = {
            "whole": is_whole(done),
            "states": states.verified.num_states,
            "damaged": {each.args[0]: each.args[1] for each in _damaged(states.verified.lost)},
            "missing": states.verified.missing,
            "unnamed": len(states.verified.unnamed),
            "miscounted": len(states.miscounted),
        }
    return document


def over_budget(states: StateCleanup, request: StateRequest) -> int:
    """How many bytes the states take too much."""
    if request.budget_bytes is None:
        return 0
    return max(states.root_bytes - request.budget_bytes, 0)


def _state_lines(states: StateCleanup, verb: str, *, is_planned: bool) -> Iterator[str]:
    collected = states.collected or Collected()
    if states.num_rows or states.root_bytes:
        parts = [
            counted(max(states.num_rows, collected.num_states), "state"),
            counted(collected.num_blobs, "content"),
            counted(collected.num_layers, "layer"),
            f"{counted(collected.num_live, 'workspace')} of processes that have died",
        ]
        size = decimal(collected.num_bytes)  # what a layer shares with a content is not counted
        yield f"{verb} {', '.join(parts)}: {'at least ' if is_planned else ''}{size}"
        yield f"the states take {decimal(states.root_bytes)}"


def _verified_lines(states: StateCleanup, request: StateRequest) -> Iterator[str]:
    verified = states.verified
    assert verified is not None
    damaged = _damaged(verified.lost)
    problems = [
        *(f"damaged: {each}" for each in damaged[:_MOST_NAMED]),
        *(f"missing: {each[:12]}" for each in verified.missing[:_MOST_NAMED]),
    ]
    if not problems:
        yield f"verified {counted(verified.num_states, 'state')}: all are whole"
    else:
        yield (
            f"verified {counted(verified.num_states, 'state')}: {len(damaged):,} damaged, "
            f"{len(verified.missing):,} that runs name are missing"
        )
        yield from problems
    if states.miscounted:
        counters = counted(len(states.miscounted), "counter")
        yield f"{counters} of states {'differ' if request.dry_run else 'corrected'}"


def _damaged(lost: Sequence[StateLost]) -> list[StateLost]:
    """What is lost without having been given up."""
    return [each for each in lost if not isinstance(each, StateDiscarded)]
