"""What the managed root knows of applies in progress: one at a time for each base."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from blake3 import blake3

from orchestrator.environment.errors import ApplyBusy
from orchestrator.environment.merging.apply_plan import ApplyPlan

_FOLDER = "applies"

Phase = Literal["preparing", "writing"]
"""Preparing: new files lie beside old ones, nothing is replaced. Writing: a part may be."""


class Record(NamedTuple):
    """An apply that has begun and not ended."""

    phase: Phase
    plan: ApplyPlan


class Journal:
    """The record of the apply onto one base; used under its lock."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self._file, self._last = folder / "record", folder / "last"
        self._durable = durable

    def read(self) -> Record | None:
        """The apply that has begun and not ended."""
        try:
            data = self._file.read_bytes()
        except FileNotFoundError:
            return None
        phase, _, plan = data.partition(b"\n")
        return Record(json.loads(phase), ApplyPlan.from_json(plan))

    def write(self, phase: Phase, plan: ApplyPlan) -> None:
        """Record how far an apply is."""
        new = self._file.with_suffix(".new")
        with new.open("wb") as file:
            file.write(json.dumps(phase).encode() + b"\n" + plan.to_json())
            file.flush()
            if self._durable:
                os.fsync(file.fileno())
        new.rename(self._file)

    def clear(self) -> None:
        """The apply has ended, and left nothing."""
        self._file.unlink(missing_ok=True)

    def done(self) -> None:
        """The apply has ended, and its plan is the last one that was done."""
        self._file.rename(self._last)

    def last(self) -> ApplyPlan | None:
        """The plan that was done last."""
        try:
            return ApplyPlan.from_json(self._last.read_bytes().partition(b"\n")[2])
        except FileNotFoundError:
            return None


@contextmanager
def locked_journal(root: Path, base: Path, *, durable: bool = True) -> Iterator[Journal]:
    """The journal of a base, while no other apply onto it can begin.

    Raises:
        ApplyBusy: one is in progress.
    """
    folder = root / _FOLDER / blake3(os.fsencode(base)).hexdigest(16)
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ApplyBusy(str(base)) from error
        yield Journal(folder, durable=durable)
    finally:
        os.close(lock)


def contents_in_use(root: Path) -> set[str]:
    """The digests of all files that unfinished applies need, for the garbage collection."""
    records = (Journal(folder, durable=False).read() for folder in (root / _FOLDER).glob("*"))
    return {
        entry.content
        for record in records
        if record is not None
        for operation in record.plan.operations
        for entry in (operation.before, operation.after)
        if entry is not None and entry.kind == "file" and entry.content
    }
