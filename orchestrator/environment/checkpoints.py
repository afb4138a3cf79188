"""A checkpoint: a state of a workspace that a flow may come back to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state that is kept as long as its run.

    Attributes:
        name: as it was given.
        state: the state's id.
        workspace: the name of its workspace.
        path: of the step that made it.
    """

    name: str
    state: str
    workspace: str
    path: str
