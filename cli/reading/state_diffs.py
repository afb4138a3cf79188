"""What differs between two stored states, or between one and its base."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cli.errors import BadInput
from orchestrator.environment.environments import Environments
from orchestrator.environment.merging.contents import Read, reader
from orchestrator.environment.merging.differences import Difference, differences
from orchestrator.environment.merging.unified_diff import unified
from orchestrator.environment.states.stored_states import State


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One path that differs.

    Attributes:
        text: unified diff, in the form of Git.
    """

    difference: Difference
    text: str

    @property
    def num_lines(self) -> tuple[int, int]:
        """How many lines were added, and how many removed; (0, 0) of what is no text."""
        lines = self.text.split("\n")
        first = next((at for at, line in enumerate(lines) if line.startswith("@@ ")), len(lines))
        marks = [line[:1] for line in lines[first:]]
        return marks.count("+"), marks.count("-")

    @property
    def is_binary(self) -> bool:
        """Whether its content differs and is no text, or too long for a diff."""
        return self.text.rstrip("\n").rpartition("\n")[2].startswith("Binary files ")


@dataclass(frozen=True, slots=True)
class StateDiff:
    """What leads from one state to another.

    Attributes:
        base: the folder of both.
        before: None: the base as it is now.
        found: all paths that differ, with those in deleted folders.
    """

    base: str
    before: State | None
    after: State
    found: tuple[Difference, ...]
    read: Read

    def files(self) -> Iterator[FileDiff]:
        """Each path with its text, which is read as it is asked for."""
        for difference in self.found:
            yield FileDiff(difference, unified(difference, self.read))


def diff_between(home: Environments, before_id: str | None, after_id: str) -> StateDiff:
    """What leads from one state to another.

    Args:
        before_id: None: the base as it is now.
    Raises:
        StateLost: one of them is not stored, or damaged.
        BadInput: they are states of different folders.
    """
    after = home.states.get(after_id)
    before = None if before_id is None else home.states.get(before_id)
    folder = after.base.path
    if before is not None and before.base.path != folder:
        raise BadInput(
            f"the states are of different folders, {before.base.path} and {folder}: only states of "
            "one folder can be compared"
        )
    base = home.base_folder(folder)
    manifests = {} if before is None else home.states.manifest(before), home.states.manifest(after)
    found = differences(*manifests, base, in_deleted=True)
    read = reader(home.root.blobs, base, folder)
    return StateDiff(folder, before, after, tuple(found), read)
