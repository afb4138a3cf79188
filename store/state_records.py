"""The records of a run's states: its files and shell, the actions between them, checkpoints.

A state belongs to no run: the same files and shell on the same base are one state, of whichever run
they are. A digest here is BLAKE3, in hex; blobs lie outside of the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

MAX_CHANGED = 200
"""The number of changed paths that are recorded of an action; all are counted."""


class EdgeKind(StrEnum):
    """What led from a state to a state."""

    ACTION = "action"  # programs and changes of files
    FORK = "fork"  # the same state, in another workspace
    MERGE = "merge"  # one of the states that were merged, to what they became
    REWIND = "rewind"  # back to an earlier state
    ADOPT = "adopt"  # a workspace takes over the state of its fork
    APPLY = "apply"  # the changes were written to the base
    CHECKPOINT = "checkpoint"


class Revertibility(StrEnum):
    """Whether a rewind undoes all that an action did."""

    REVERTIBLE = "revertible"
    NOT_REVERTIBLE = "not_revertible"
    EXTERNAL = "external"  # it has an effect on the outside world


@dataclass(frozen=True, slots=True)
class StateRecord:
    """The files and the shell of a workspace at one moment.

    `uses` and `unused_since` are the store's: what a caller sets there is not stored.
    """

    id: str  # digest of base, its identity, files and shell
    base: str  # the path of the folder from which the files differ
    base_identity: str  # identifies what was in that folder
    files: str  # digest of the files
    manifest: str  # digest of the blob that lists the changes against the base
    shell: str  # digest of the blob with the shell's state; "" without one
    num_entries: int  # paths that differ from the base
    num_bytes: int  # of the files that differ
    created_at: datetime
    uses: int = 0  # how many columns of steps, edges and checkpoints name it
    unused_since: datetime | None = None  # since when none does


@dataclass(frozen=True, slots=True)
class StateEdgeRecord:
    """What a step did to a workspace: it found one state and left another one, or the same."""

    run_id: str
    path: str  # of the step
    number: int  # among the edges of the step, from 0
    kind: EdgeKind
    before: str  # a state's id, as `after`
    after: str
    attribute: Revertibility = Revertibility.REVERTIBLE
    seconds: float = 0.0
    changed: Sequence[str] = ()  # the first MAX_CHANGED paths that differ between the states
    num_changed: int = 0  # all paths that differ
    num_added: int = 0  # those of them that are new
    num_removed: int = 0  # those of them that are gone
    num_bytes: int = 0  # of the files that changed or are new
    reads: Sequence[str] | None = None  # the paths that it declared to read; None: it did not
    note: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A state that a flow named, to come back to it."""

    run_id: str
    path: str  # of the step
    name: str
    workspace: str
    state: str  # its id
    at_s: float  # since the run's start


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """What a step did to its workspace; recorded in the same transaction as its outcome."""

    state_after: str | None = None
    states: Sequence[StateRecord] = ()  # those that may be new
    edges: Sequence[StateEdgeRecord] = ()
    checkpoint: CheckpointRecord | None = None


@dataclass(frozen=True, slots=True)
class CountDifference:
    """A state with a wrong counter."""

    id: str
    stored: int | None  # None: there is no such state, although rows name it
    counted: int
