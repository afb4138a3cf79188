"""The steps of an apply: each can be done again, or undone, after a process was killed in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NoReturn

from orchestrator.environment.errors import ApplyFailed, BaseChanged
from orchestrator.environment.files.blob_store import BlobDamaged, BlobStore
from orchestrator.environment.files.manifest import parents_of
from orchestrator.environment.files.state_view import joined
from orchestrator.environment.merging.apply_plan import ApplyPlan, Operation
from orchestrator.environment.merging.base_writing import BaseWriter

OnStep = Callable[[str, str], None]
"""Called before each step with what it does, in a word or two, and the path."""

_OWNER_ALL, _OWNER_READ = 0o700, 0o400


class ApplySteps:
    """The steps on one base.

    Attributes:
        path: where the last step was.
    """

    def __init__(self, base: str, writer: BaseWriter, blobs: BlobStore, on_step: OnStep) -> None:
        self._base, self._writer, self._blobs, self._on_step = base, writer, blobs, on_step
        self.path = ""

    def raise_for(self, error: BaseException, path: str, *, is_undone: bool) -> NoReturn:
        """Raise ApplyFailed for what the system refuses, and any other error as it is."""
        match error:
            case OSError(errno=int(number)):
                reason = os.strerror(number)
            case OSError() | BlobDamaged():
                reason = str(error)
            case BaseChanged() if not is_undone:
                reason = "somebody has changed it meanwhile; move it away"
            case _:
                raise error
        raise ApplyFailed(self._base, path, reason, is_undone) from error

    def require_contents(self, plan: ApplyPlan) -> None:
        """Raise ApplyFailed unless all that will be written is stored."""
        for path, _, after in (each for each in plan.operations if each.places):
            if after is not None and after.kind == "file" and not self._blobs.has(after.content):
                raise ApplyFailed(self._base, path, "its content is not stored any more")

    def prepare(self, plan: ApplyPlan) -> ApplyPlan:
        """Copy what will be replaced, and write what will be written beside its place.

        Returns:
            The plan with the digests of the copies, and the times that the file system keeps.
        Raises:
            BaseChanged: something is not as the plan says.
        """
        self._unlock(plan)
        self._check(plan)
        copied = tuple(self._copied(operation) for operation in plan.operations)
        plan = replace(plan, operations=copied)
        staged = tuple(self._staged(plan, operation) for operation in plan.operations)
        self._check(plan)
        return replace(plan, operations=staged)

    def write(self, plan: ApplyPlan) -> None:
        """Put everything in its place; raises BaseChanged if something is not as the plan says."""
        self._write(plan, plan.operations, is_continued=False)
        self._finish(plan, plan.operations)
        self._step("end", "")

    def go_on(self, plan: ApplyPlan) -> None:
        """Complete what an earlier process began to write.

        Raises:
            ApplyFailed: somebody else has changed one of the paths since.
        """
        self._unlock(plan)
        todo = [each for each in plan.operations if not self._is_done(each)]
        for operation in todo:
            if not self._is_ready(operation, is_continued=True):
                reason = "somebody has changed it since the apply was interrupted; move it away"
                raise ApplyFailed(self._base, operation.path, reason, is_undone=False)
        self._write(plan, todo, is_continued=True)
        self._finish(plan, plan.operations)
        self.remove_temporaries(plan)
        self.remove_temporaries(plan.inverse())  # of a process that was killed while it went back

    def go_back(self, plan: ApplyPlan) -> list[str]:
        """Undo what was written by now.

        Returns:
            Paths that are left as they are, as somebody else has changed them since.
        """
        self._unlock(plan)
        self.remove_temporaries(plan)
        plan = plan.inverse()
        todo = [each for each in plan.operations if not self._is_done(each)]
        left = [each.path for each in todo if not self._is_ready(each, is_continued=True)]
        kept = {*left, *(parent for path in left for parent in parents_of(path))}
        self._write(plan, [each for each in todo if each.path not in kept], is_continued=True)
        self._finish(plan, [each for each in plan.operations if each.path not in kept])
        self.remove_temporaries(plan)
        return left

    def clean_up(self, plan: ApplyPlan, *, was_killed: bool) -> None:
        """Remove all traces of an apply that has replaced nothing yet.

        Args:
            was_killed: its process; then nothing tells in which folders it had begun to write.
        """
        self._unlock(plan)
        written = self.remove_temporaries(plan)
        if was_killed:
            written = {_temporary(plan, each).rpartition("/")[0] for each in plan.operations}
        folders = dict(plan.folders)
        for path, before, _ in plan.operations:
            if before is None:
                continue
            if before.kind == "folder":
                folders[path] = before.mode, before.mtime_ns
            elif before.kind == "file" and not before.mode & _OWNER_READ:
                self._restore_mode(path, before.mode, _OWNER_READ)
        for path in sorted(folders, reverse=True):
            mode, mtime_ns = folders[path]
            self._step("restore", path)
            if path in written:
                self._writer.set_time(path, mtime_ns)
            self._restore_mode(path, mode, _OWNER_ALL)

    def remove_temporaries(self, plan: ApplyPlan) -> set[str]:
        """Remove what was written beside its place; returns the folders that held any."""
        folders: set[str] = set()
        for operation in plan.operations:
            if operation.places:
                temporary = _temporary(plan, operation)
                if self._writer.entry(temporary) is not None:
                    self._step("clean up", temporary)
                    self._writer.remove(temporary, "file")
                    folders.add(temporary.rpartition("/")[0])
        return folders

    def _step(self, what: str, path: str) -> None:
        self.path = path
        self._on_step(what, path)

    def _unlock(self, plan: ApplyPlan) -> None:
        """Let ourselves into folders whose permissions keep out even their owner."""
        folders = set(plan.folders) | {
            path
            for path, *sides in plan.operations
            if any(entry is not None and entry.kind == "folder" for entry in sides)
        }
        for path in sorted(folders):
            self.path = path
            now = self._writer.entry(path)
            if now is not None and now.kind == "folder" and now.mode & _OWNER_ALL != _OWNER_ALL:
                self._step("unlock", path)
                self._writer.set_mode(path, now.mode | _OWNER_ALL)

    def _restore_mode(self, path: str, mode: int, unlocked: int) -> None:
        now = self._writer.entry(path)
        if now is not None and now.mode == mode | unlocked != mode:
            self._writer.set_mode(path, mode)

    def _check(self, plan: ApplyPlan) -> None:
        changed: set[str] = set()
        for operation in plan.operations:
            path, before, _ = operation
            self.path = path
            if not self._is_ready(operation, is_continued=False):
                changed.add(path)
            elif before is not None and before.kind == "folder" and operation.removes:
                below = {joined(path, name) for name in self._writer.names(path)}
                changed |= below - plan.by_path.keys()
        for path in plan.folders:
            now = self._writer.entry(path)
            if now is None or now.kind != "folder":
                changed.add(path)
        if changed:
            raise BaseChanged(self._base, sorted(changed))

    def _copied(self, operation: Operation) -> Operation:
        path, before, _ = operation
        if before is None or before.kind != "file" or operation.action == "mode":
            return operation
        if before.content and self._blobs.has(before.content):
            return operation
        self._step("copy", path)
        return operation._replace(before=self._writer.store(path, before))

    def _staged(self, plan: ApplyPlan, operation: Operation) -> Operation:
        path, _, after = operation
        if after is None or not operation.places:
            return operation
        self._step("prepare", path)
        temporary = _temporary(plan, operation)
        return operation._replace(after=self._writer.stage(temporary, path, after))

    def _write(
        self, plan: ApplyPlan, operations: Iterable[Operation], *, is_continued: bool
    ) -> None:
        operations = list(operations)
        for operation in reversed(operations):  # what lies in a folder before the folder
            path, before, _ = operation
            if before is not None and operation.removes:
                self._step("remove", path)
                self._require_ready(operation, is_continued)
                self._writer.remove(path, before.kind)
        for operation in operations:
            path, before, after = operation
            is_folder = before is not None and before.kind == "folder"
            if after is not None and after.kind == "folder" and not is_folder:
                self._step("make folder", path)
                self._writer.make_folder(path)
        for operation in operations:
            if not operation.places:
                continue
            path, _, after = operation
            assert after is not None
            temporary = _temporary(plan, operation)
            if is_continued and self._writer.entry(temporary) is None:
                self._step("prepare", path)
                self._writer.stage(temporary, path, after)
            self._step("write", path)
            if not operation.removes:
                self._require_ready(operation, is_continued)
            self._writer.place(temporary, path)

    def _finish(self, plan: ApplyPlan, operations: Iterable[Operation]) -> None:
        """Set permissions and times; those of a folder after all that lies in it."""
        folders: dict[str, tuple[int, int | None]] = {
            path: (mode, mtime_ns if plan.restores_times else None)
            for path, (mode, mtime_ns) in plan.folders.items()
        }
        for operation in operations:
            path, _, after = operation
            if after is None:
                continue
            if after.kind == "folder":
                folders[path] = after.mode, after.mtime_ns
            elif operation.action == "mode":
                self._step("set mode", path)
                self._writer.set_mode(path, after.mode)
                self._writer.set_time(path, after.mtime_ns)
        for path in sorted(folders, reverse=True):
            mode, time = folders[path]
            self._step("set mode", path)
            if time is not None:
                self._writer.set_time(path, time)
            self._writer.set_mode(path, mode)

    def _require_ready(self, operation: Operation, is_continued: bool) -> None:
        if not self._is_ready(operation, is_continued=is_continued):
            raise BaseChanged(self._base, (operation.path,))

    def _is_ready(self, operation: Operation, *, is_continued: bool) -> bool:
        """Whether there is what is to be replaced; in a continued apply it may be gone already."""
        now, before = self._writer.entry(operation.path), operation.before
        if now is None:
            return before is None or (is_continued and operation.action != "mode")
        if before is None or now.kind != before.kind:
            return False
        if now.kind == "folder":  # its permissions are set at the end
            return is_continued or now.mode in (before.mode, before.mode | _OWNER_ALL)
        if now.kind == "link":
            return now.content == before.content
        return (now.mode, now.size) == (before.mode, before.size) and (
            now.kind == "fifo" or now.mtime_ns == before.mtime_ns
        )

    def _is_done(self, operation: Operation) -> bool:
        now, after = self._writer.entry(operation.path), operation.after
        if now is None or after is None:
            return now is after
        if now.kind != after.kind:
            return False
        if now.kind == "folder":  # permissions are set at the end in any case
            return True
        if now.kind == "link":
            return now.content == after.content
        if now.mode != after.mode or now.size != after.size:
            return False
        return now.kind == "fifo" or self._writer.digest(operation.path) == after.content


def _temporary(plan: ApplyPlan, operation: Operation) -> str:
    """A path beside the operation's, in a folder that exists before and after."""
    folder = operation.path.rpartition("/")[0]
    while folder in plan.by_path and not _stays_folder(plan.by_path[folder]):
        folder = folder.rpartition("/")[0]
    return joined(folder, f".orchestrate-{plan.plan_id}-{plan.numbers[operation.path]}")


def _stays_folder(operation: Operation) -> bool:
    return all(
        entry is not None and entry.kind == "folder"
        for entry in (operation.before, operation.after)
    )
