"""Which code a resumed run may import: the store says what it is, and others may have written that.

| the flow's code is | `resume RUN` | `resume --orphans` |
|---|---|---|
| an installed pipeline, or named by --allow | imported | imported |
| a module, or a file in the current folder | imported | left out |
| another file | asks first | left out |
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from cli.errors import BadInput
from cli.work.pipelines import pipelines
from orchestrator.runtime.flow_loading import reference_of
from store.records import RunRecord


def reason_not_to_import(record: RunRecord, allowed: Sequence[str]) -> str | None:
    """Why a run among others is not resumed: its code is not trusted; None if it is."""
    if record.entry is None or is_allowed(record.entry, allowed) or _is_installed(record.entry):
        return None
    source = record.entry.rpartition(":")[0]
    return f"run {record.id} would import {source}: if you trust that, give --allow {source}"


def confirm_import(record: RunRecord, allowed: Sequence[str]) -> None:
    """Ask before code from outside of the current folder is imported for a run.

    Raises:
        BadInput: the answer is no, or there is no terminal to ask at.
    """
    reason = reason_not_to_import(record, allowed)
    source = Path((record.entry or "").rpartition(":")[0])
    if reason is None or source.suffix != ".py" or source.is_relative_to(Path.cwd()):
        return
    question = f"run {record.id} imports {source}, outside of this folder. Continue?"
    if not (sys.stdin.isatty() and typer.confirm(question, err=True)):
        raise BadInput(reason)


def is_allowed(entry: str, allowed: Sequence[str]) -> bool:
    """Whether a flow is one of these, or lies in one of these files, folders or modules."""
    source = entry.rpartition(":")[0]
    for each in allowed:
        if each in (entry, source) or source.startswith(f"{each}."):
            return True
        if source.endswith(".py") and Path(source).resolve().is_relative_to(Path(each).resolve()):
            return True
    return False


def _is_installed(entry: str) -> bool:
    return any(reference_of(each.flow.body) == entry for each in pipelines().values())
