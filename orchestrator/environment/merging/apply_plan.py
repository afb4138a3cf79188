"""What an apply would write onto a base: a value, to be looked at before anything is written."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from blake3 import blake3

from orchestrator.environment.errors import BaseChanged, BaseRefused
from orchestrator.environment.files.base_folder import BaseFolder
from orchestrator.environment.files.base_listing import BaseListing, list_base
from orchestrator.environment.files.manifest import Entry, Manifest, files_digest, parents_of

Action = Literal["add", "replace", "delete", "mode"]

_GIT = ".git"


class Operation(NamedTuple):
    """What is done at one path.

    Attributes:
        before: what is there now; of a file that is to be replaced the digest may not be known yet.
        after: what will be there. None: nothing, in both.
    """

    path: str
    before: Entry | None
    after: Entry | None

    @property
    def action(self) -> Action:
        """In one word."""
        if self.before is None:
            return "add"
        if self.after is None:
            return "delete"
        if self.before.kind == self.after.kind and self.before.content == self.after.content:
            return "mode"
        return "replace"

    @property
    def removes(self) -> bool:
        """Whether what is there must be removed first: else it is replaced at once."""
        if self.before is None or self.action == "mode":
            return False
        return self.after is None or "folder" in (self.before.kind, self.after.kind)

    @property
    def places(self) -> bool:
        """Whether a file, link or fifo is written."""
        return self.after is not None and self.action != "mode" and self.after.kind != "folder"


@dataclass(frozen=True)
class ApplyPlan:
    """What will be written, in the order of paths.

    Attributes:
        plan_id: equal for equal changes of the same base.
        folders: permissions and times, as they are now, of folders in which something is written.
        left_out: changes below a folder `.git`, which are not applied.
        changed_elsewhere: what the base's user changed since the workspace began, at other paths.
        restores_times: whether the folders get their times back: in an undo.
    """

    base: str
    plan_id: str
    operations: tuple[Operation, ...]
    folders: Mapping[str, tuple[int, int]]
    left_out: tuple[str, ...] = ()
    changed_elsewhere: tuple[str, ...] = ()
    restores_times: bool = False

    def __bool__(self) -> bool:
        return bool(self.operations)

    def paths(self, action: Action) -> tuple[str, ...]:
        """Where this is done."""
        return tuple(each.path for each in self.operations if each.action == action)

    @property
    def before(self) -> dict[str, Entry]:
        """What is replaced or deleted; kind "gone" where nothing is."""
        return {each.path: each.before or Entry("gone") for each in self.operations}

    def inverse(self) -> ApplyPlan:
        """The plan that undoes this one; what it writes is stored once this one was applied."""
        operations = tuple(
            Operation(path, after, before) for path, before, after in self.operations
        )
        undo = "-undo"
        is_undo = self.plan_id.endswith(undo)
        plan_id = self.plan_id.removesuffix(undo) if is_undo else self.plan_id + undo
        return replace(self, plan_id=plan_id, operations=operations, restores_times=True)

    @cached_property
    def by_path(self) -> dict[str, Operation]:
        """The operations."""
        return {each.path: each for each in self.operations}

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each operation."""
        return {each.path: number for number, each in enumerate(self.operations)}

    def to_json(self) -> bytes:
        """For `from_json`."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> ApplyPlan:
        """The plan that `to_json` wrote."""
        fields = json.loads(data)
        operations = tuple(
            Operation(path, *(None if entry is None else Entry(*entry) for entry in sides))
            for path, *sides in fields.pop("operations")
        )
        folders = {
            path: (mode, mtime_ns) for path, (mode, mtime_ns) in fields.pop("folders").items()
        }
        lists: dict[str, Any] = {
            name: tuple(fields.pop(name)) for name in ("left_out", "changed_elsewhere")
        }
        return cls(operations=operations, folders=folders, **lists, **fields)


def plan_id_of(base: Path, manifest: Manifest, *, git: bool) -> str:
    """What identifies an apply of these changes onto this base."""
    text = json.dumps([str(base), files_digest(manifest), git])
    return blake3(text.encode()).hexdigest(16)


def new_plan(base: Path, manifest: Manifest, recorded: BaseListing, *, git: bool) -> ApplyPlan:
    """The plan that writes a state's changes onto a base.

    Args:
        recorded: what the base held when the workspace began.
    Raises:
        BaseChanged: its user has changed something meanwhile that would be written or deleted.
        BaseRefused: something that cannot be kept would be deleted, or cannot be read.
    """
    return _Planning(base, manifest, recorded, git).plan()


class _Planning:
    def __init__(self, base: Path, manifest: Manifest, recorded: BaseListing, git: bool) -> None:
        self._base, self._manifest, self._recorded, self._git = base, manifest, recorded, git
        self._now = list_base(base)
        self._paths = sorted(self._now.entries)
        self._files = BaseFolder(base)
        self._left_out: set[str] = set()

    def plan(self) -> ApplyPlan:
        wanted = dict(self._wanted())
        operations = tuple(
            operation for path in sorted(wanted) if (operation := self._at(path, wanted[path]))
        )
        paths = {operation.path for operation in operations}
        folders = {
            parent for path in paths for parent in ("", *parents_of(path)) if parent not in paths
        }
        self._check(operations, folders)
        return ApplyPlan(
            str(self._base),
            plan_id_of(self._base, self._manifest, git=self._git),
            operations,
            {folder: self._times(folder) for folder in sorted(folders)},
            tuple(sorted(self._left_out)),
            tuple(path for path in self._changed if path not in paths),
        )

    @cached_property
    def _changed(self) -> list[str]:
        return self._now.changed_since(self._recorded)

    def _wanted(self) -> Iterator[tuple[str, Entry | None]]:
        """What is to be at each path; None: nothing."""
        for path, entry in self._manifest.items():
            if self._is_left_out(path):
                self._left_out.add(path)
            elif entry.kind == "folder":
                yield path, entry
            else:
                staying = self._staying_below(path)
                if not staying:
                    yield path, None if entry.kind == "gone" else entry
                elif entry.kind != "gone":  # there cannot be a file where a folder must stay
                    self._left_out.add(path)
                    continue
                for below in self._below(path):
                    if below not in staying:
                        yield below, None

    def _below(self, path: str) -> list[str]:
        """What the base holds in a folder."""
        first, after = (bisect_left(self._paths, f"{path}{end}") for end in ("/", "0"))
        return self._paths[first:after]

    def _is_left_out(self, path: str) -> bool:
        return not self._git and _GIT in path.split("/")

    def _staying_below(self, path: str) -> set[str]:
        """What is left out in a folder that a state has not, and the folders that hold it."""
        found = {each for each in self._below(path) if self._is_left_out(each)}
        self._left_out |= {each for each in found if each.endswith(f"/{_GIT}")}
        return found | {parent for each in found for parent in parents_of(each)}

    def _at(self, path: str, after: Entry | None) -> Operation | None:
        now = self._now.entries.get(path)
        if now is None:
            return None if after is None else Operation(path, None, after)
        before = Entry(now.kind, now.mode, now.target, now.size, self._times(path)[1])
        if after is None or before.kind != after.kind:
            return Operation(path, before, after)
        if before.kind == "file" and before.size == after.size:
            before = self._hashed(path, before)
        is_same = before.content == after.content
        if is_same and (before.mode == after.mode or before.kind == "link"):
            return None
        return Operation(path, before, after)

    def _hashed(self, path: str, entry: Entry) -> Entry:
        try:
            return self._files.entry(path) or entry
        except PermissionError:  # it will be made readable when it is copied
            return entry

    def _times(self, path: str) -> tuple[int, int]:
        try:
            status = os.lstat(self._base / path)
        except OSError as error:
            raise BaseChanged(str(self._base), (path,)) from error
        return status.st_mode & 0o7777, status.st_mtime_ns

    def _check(self, operations: Sequence[Operation], folders: set[str]) -> None:
        entries = self._now.entries
        paths = {each.path for each in operations}
        removed = {each.path for each in operations if each.action != "mode"}
        changed = paths & set(self._changed)
        changed |= {
            folder for folder in folders - {""}
            if folder not in entries or entries[folder].kind != "folder"
        }  # fmt: skip
        if changed:
            raise BaseChanged(str(self._base), sorted(changed))
        for path in (*self._now.left_out, *self._now.unreadable):
            if any(each in removed for each in (path, *parents_of(path))):
                what = "cannot be read" if path in self._now.unreadable else "is no file or folder"
                reason = f"{path!r} would be replaced, but it {what}; remove it first"
                raise BaseRefused(str(self._base), reason)
