"""Writes a stored state to its base, and keeps what was there as a state too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.environment.environments import Environments
from orchestrator.environment.files.base_listing import BaseListing, list_base
from orchestrator.environment.files.folder_scan import FolderScan
from orchestrator.environment.files.layering import layered
from orchestrator.environment.files.manifest import Entry, Manifest, parents_of
from orchestrator.environment.merging.apply_plan import ApplyPlan
from orchestrator.environment.merging.applying import Applier
from orchestrator.environment.states.stored_states import Base, State

BEFORE_APPLY = "before apply"
"""The name of the checkpoint of what an apply has replaced."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What an apply has written.

    Attributes:
        base: the folder.
        added, replaced, deleted, mode_changed: paths in it.
        left_out: changes below .git, which were not applied.
        changed_elsewhere: what the folder's user had changed meanwhile, at other paths.
        former: the id of a state that shows the folder as it was; to apply that is to undo.
        state: the id of the state that was applied, now with what is left of it to apply.
    """

    base: str
    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    mode_changed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    changed_elsewhere: tuple[str, ...] = ()
    former: str = ""
    state: str = ""


def plan_of(home: Environments, state: State, *, git: bool = False) -> ApplyPlan:
    """What an apply of a state would write; raises as `Applier.plan`, and StateLost."""
    return _applier(home).plan(
        Path(state.base.path),
        home.states.manifest(state),
        BaseListing.from_bytes(home.root.blobs.read(state.base.listing)),
        git=git,
    )


def apply_state(
    home: Environments, state: State, *, git: bool = False, plan: ApplyPlan | None = None
) -> Applied:
    """Write a state's changes to its base, all or nothing; raises as `Applier.apply`.

    Args:
        plan: from `plan_of`, if it was looked at before.
    """
    applier, folder = _applier(home), Path(state.base.path)
    plan = plan or plan_of(home, state, git=git)
    if plan:
        plan = applier.apply(plan).plan
    else:  # the process may have ended after an apply of it, and before that was recorded
        plan = applier.done_before(folder, home.states.manifest(state), git=git) or plan
    listing = list_base(Path(plan.base))
    base = Base(plan.base, listing.identity, home.root.blobs.add(listing.to_bytes()))
    former = home.states.add(base, _on_base(home, base, plan.before))
    left = _on_base(home, base, home.states.manifest(state))
    return Applied(
        base=plan.base,
        added=plan.paths("add"),
        replaced=plan.paths("replace"),
        deleted=plan.paths("delete"),
        mode_changed=plan.paths("mode"),
        left_out=plan.left_out,
        changed_elsewhere=plan.changed_elsewhere,
        former=former.id,
        state=home.states.add(base, left, state.shell, state.services).id,
    )


def _on_base(home: Environments, base: Base, entries: Manifest) -> dict[str, Entry]:
    """The canonical manifest of entries on a base."""
    shown = {
        path: entry
        for path, entry in entries.items()
        if all(entries.get(each) != Entry("gone") for each in parents_of(path))
    }
    return layered({}, FolderScan(entries=shown), home.base_folder(base.path))


def _applier(home: Environments) -> Applier:
    return Applier(home.root.path, home.root.blobs, home.store)
