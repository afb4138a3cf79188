"""Writes the changes of a state onto the user's folder: nothing else writes outside our own.

Three parts. Preparing: what will be replaced is copied to the store, and what will be written is
written beside its place. Writing: it is moved there. Then permissions and times. If anything fails,
all is put back. A process that is killed leaves a record: applying the same state again completes
what was begun, or `undo_unfinished` puts it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.environment.errors import ApplyUnfinished
from orchestrator.environment.files.base_listing import BaseListing
from orchestrator.environment.files.blob_store import BlobStore
from orchestrator.environment.files.manifest import Entry, Manifest
from orchestrator.environment.merging.apply_journal import Journal, Record, locked_journal
from orchestrator.environment.merging.apply_plan import ApplyPlan, new_plan, plan_id_of
from orchestrator.environment.merging.apply_steps import ApplySteps, OnStep
from orchestrator.environment.merging.base_check import checked_base
from orchestrator.environment.merging.base_writing import BaseWriter


@dataclass(frozen=True, slots=True)
class Applied:
    """An apply that was done.

    Attributes:
        plan: what was done; `plan.before` is what was there, its files are in the blob store.
    """

    plan: ApplyPlan

    @property
    def before(self) -> dict[str, Entry]:
        """What was replaced or deleted, by path; kind "gone" where nothing was."""
        return self.plan.before


class Applier:
    """Applies states onto bases.

    Args:
        root: the managed root; it has the records and locks.
        store: file of the store; a base that holds it is refused. None: it is no file.
        on_step: called before each step, with what it does and the path.
        durable: sync each file before it is moved to its place, so that after a loss of power
            there is the old file or the new one.
    """

    def __init__(
        self,
        root: Path,
        blobs: BlobStore,
        store: Path | None,
        *,
        on_step: OnStep = lambda *_: None,
        durable: bool = True,
    ) -> None:
        self._root, self._blobs, self._store = root, blobs, store
        self._on_step, self._durable = on_step, durable

    def plan(
        self, base: Path, manifest: Manifest, recorded: BaseListing, *, git: bool = False
    ) -> ApplyPlan:
        """What an apply would write.

        If such an apply was interrupted while it wrote, its own plan, which `apply` completes.

        Args:
            recorded: what the base held when the workspace began.
            git: also write changes below folders `.git`.
        Raises:
            BaseChanged: its user has changed something meanwhile that would be replaced.
            BaseRefused: it cannot be a base (see `checked_base`), or what would be replaced there
                cannot be kept.
            ApplyBusy: another apply is in progress.
            ApplyUnfinished: an apply of another state was interrupted while it wrote.
        """
        base = self._checked(base)
        with self._opened(base) as (journal, steps):
            record = _unfinished(journal, steps)
            if record is None:
                return new_plan(base, manifest, recorded, git=git)
            if record.plan.plan_id != plan_id_of(base, manifest, git=git):
                raise ApplyUnfinished(str(base))
            return record.plan

    def apply(self, plan: ApplyPlan) -> Applied:
        """Do what a plan says, all of it or nothing.

        Raises:
            BaseChanged: something is not as the plan says.
            ApplyFailed: the system refuses something.
            BaseRefused, ApplyBusy, ApplyUnfinished: as for `plan`.
        """
        with self._opened(self._checked(Path(plan.base))) as (journal, steps):
            record = _unfinished(journal, steps)
            if record is None:
                return Applied(_apply(steps, plan, journal))
            if record.plan.plan_id != plan.plan_id:
                raise ApplyUnfinished(plan.base)
            _complete(steps, record.plan, journal)
            return Applied(record.plan)

    def done_before(self, base: Path, manifest: Manifest, *, git: bool = False) -> ApplyPlan | None:
        """The plan of the last apply onto a base, if that was of these changes.

        For a caller which was interrupted between an apply and its own record of it.
        """
        with self._opened(self._checked(base)) as (journal, _):
            plan = journal.last()
        is_same = plan is not None and plan.plan_id == plan_id_of(base, manifest, git=git)
        return plan if is_same else None

    def undo(self, applied: Applied) -> Applied:
        """Put back what an apply replaced; raises as `apply`."""
        return self.apply(applied.plan.inverse())

    def undo_unfinished(self, base: Path) -> list[str]:
        """Put back what an interrupted apply has written; does nothing if there was none.

        Returns:
            Paths that are left as they are, as somebody else has changed them since.
        Raises:
            ApplyFailed, BaseRefused, ApplyBusy: as for `apply`.
        """
        with self._opened(self._checked(base)) as (journal, steps):
            record = _unfinished(journal, steps)
            return [] if record is None else _go_back(steps, record.plan, journal)

    def _checked(self, base: Path) -> Path:
        return checked_base(base, self._root, self._store, for_writing=True)

    @contextmanager
    def _opened(self, base: Path) -> Iterator[tuple[Journal, ApplySteps]]:
        durable = self._durable
        with (
            locked_journal(self._root, base, durable=durable) as journal,
            closing(BaseWriter(str(base), self._blobs, durable=durable)) as writer,
        ):
            yield journal, ApplySteps(str(base), writer, self._blobs, self._on_step)


def _apply(steps: ApplySteps, plan: ApplyPlan, journal: Journal) -> ApplyPlan:
    steps.require_contents(plan)
    try:
        journal.write("preparing", plan)
        prepared = steps.prepare(plan)
        journal.write("writing", prepared)
    except BaseException as error:
        path = steps.path
        _clean_up(steps, plan, journal, was_killed=False)
        steps.raise_for(error, path, is_undone=True)
    try:
        steps.write(prepared)
    except BaseException as error:
        path = steps.path
        _go_back(steps, prepared, journal)
        steps.raise_for(error, path, is_undone=True)
    journal.done()
    return prepared


def _complete(steps: ApplySteps, plan: ApplyPlan, journal: Journal) -> None:
    try:
        steps.go_on(plan)
    except BaseException as error:
        steps.raise_for(error, steps.path, is_undone=False)
    journal.done()


def _go_back(steps: ApplySteps, plan: ApplyPlan, journal: Journal) -> list[str]:
    try:
        left = steps.go_back(plan)
    except BaseException as error:
        steps.raise_for(error, steps.path, is_undone=False)
    journal.clear()
    return left


def _clean_up(steps: ApplySteps, plan: ApplyPlan, journal: Journal, *, was_killed: bool) -> None:
    try:
        steps.clean_up(plan, was_killed=was_killed)
    except BaseException as error:
        steps.raise_for(error, steps.path, is_undone=False)
    journal.clear()


def _unfinished(journal: Journal, steps: ApplySteps) -> Record | None:
    """An interrupted apply that has begun to write; of another one all traces are removed."""
    record = journal.read()
    if record is not None and record.phase == "preparing":
        _clean_up(steps, record.plan, journal, was_killed=True)
        return None
    return record
