"""What is recorded of states and of the difference between two."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from blake3 import blake3

from orchestrator.environment.environments import Environments
from orchestrator.environment.errors import StateLost
from orchestrator.environment.merging.differences import differences
from orchestrator.environment.states.stored_states import States
from store.state_records import MAX_CHANGED, StateRecord


@dataclass(frozen=True, slots=True)
class Changed:
    """The difference between two states: the first paths, and counts of all."""

    paths: tuple[str, ...] = ()
    num_changed: int = 0
    num_added: int = 0
    num_removed: int = 0
    num_bytes: int = 0


def changed_between(home: Environments, before_id: str, after_id: str) -> Changed:
    """What differs between two states of one base."""
    if before_id == after_id:
        return Changed()
    try:
        before, after = home.states.get(before_id), home.states.get(after_id)
        if before.files == after.files or before.base != after.base:
            return Changed()
        manifests = home.states.manifest(before), home.states.manifest(after)
    except StateLost:  # it was computed again
        return Changed()
    found = differences(*manifests, home.base_folder(after.base.path))
    return Changed(
        paths=tuple(each.path for each in found[:MAX_CHANGED]),
        num_changed=len(found),
        num_added=sum(each.kind == "added" for each in found),
        num_removed=sum(each.kind == "deleted" for each in found),
        num_bytes=sum(0 if each.after is None else each.after.size for each in found),
    )


def state_record(states: States, state_id: str, at: datetime) -> StateRecord:
    """A state as the store has it."""
    state = states.get(state_id)
    manifest = states.manifest(state)
    shell = state.shell.encode(errors="surrogateescape")
    return StateRecord(
        id=state.id,
        base=state.base.path,
        base_identity=state.base.identity,
        files=state.files,
        manifest=state.manifest,
        shell=str(blake3(shell).hexdigest()) if shell else "",
        num_entries=len(manifest),
        num_bytes=sum(entry.size for entry in manifest.values()),
        created_at=at,
    )
