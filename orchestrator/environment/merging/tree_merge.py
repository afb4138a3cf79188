"""Walks the trees of an ancestor and of two sides, and decides for each path what is taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from orchestrator.environment.conflicts import Conflict, ConflictKind
from orchestrator.environment.errors import BaseChanged, InvalidResolution
from orchestrator.environment.files.layering import BaseTree
from orchestrator.environment.files.manifest import Entry, Manifest, parents_of
from orchestrator.environment.files.state_view import StateView, is_same_entry, joined
from orchestrator.environment.merging.contents import Read
from orchestrator.environment.merging.file_merge import merge_files, merged_mode
from orchestrator.environment.merging.resolving import Resolution


class TreeMerge:
    """One merge; its methods return whether the merged tree has something at a path.

    Attributes:
        result: the merged manifest, canonical.
        conflicts: those without a resolution; at their paths the result has what is ours.
        merged_paths: files that were merged by lines.
    """

    def __init__(
        self,
        manifests: tuple[Manifest, Manifest, Manifest],
        base: BaseTree,
        read: Read,
        keep: Callable[[bytes], str],
        resolutions: Mapping[str, Resolution],
        side: int,
    ) -> None:
        self._base, self._read, self._keep = base, read, keep
        self._resolutions = resolutions
        self._conflict = partial(Conflict, side=side)
        views = [StateView(manifest, base) for manifest in manifests]
        self._ancestor, self._ours, self._theirs = views
        self._differing = {
            (one, other): _differing(one.manifest, other.manifest)
            for one in views
            for other in views
            if one is not other
        }
        self._folders = [""]  # which both have, and in which something is to be merged
        self.result: dict[str, Entry] = {}
        self.conflicts: list[Conflict] = []
        self.merged_paths: list[str] = []

    def run(self) -> None:
        """Merge all."""
        while self._folders:
            folder = self._folders.pop()
            names = self._ours.listed_names(folder) | self._theirs.listed_names(folder)
            for name in names:
                self._merge(joined(folder, name))

    def _merge(self, path: str) -> None:
        ancestor, ours, theirs = self._ancestor, self._ours, self._theirs
        if self._is_same(ours, theirs, path):
            self._take_newer(path)
        elif self._is_same(ours, ancestor, path):
            self._take(theirs, path)
        elif self._is_same(theirs, ancestor, path):
            self._take(ours, path)
        else:
            self._merge_changed(path)

    def _merge_changed(self, path: str) -> None:
        """Merge what both sides changed, in different ways."""
        ancestor, ours, theirs = self._ancestor, self._ours, self._theirs
        kinds = {ours.kind(path), theirs.kind(path)}
        if kinds == {"folder"}:
            self._merge_folders(path)
        elif kinds == {"folder", None} and ancestor.kind(path) == "folder":
            changed = ours if ours.kind(path) == "folder" else theirs
            if not self._merge_deleted_folder(path, changed):
                self._remove(path)
        elif ours.kind(path) == "folder" and self._has_only_deleted(ours, path):
            self._take(theirs, path)
        elif theirs.kind(path) == "folder" and self._has_only_deleted(theirs, path):
            self._take(ours, path)
        else:
            self._merge_others(path)

    def _is_same(self, one: StateView, other: StateView, path: str) -> bool:
        """Whether two trees are equal at a path and below."""
        shown = [view for view in (one, other) if not view.is_hidden(path)]
        if len(shown) == 2:  # manifests are canonical: equal trees have equal ones
            return path not in self._differing[one, other]
        return all(view.kind(path) is None for view in shown)

    def _has_only_deleted(self, side: StateView, path: str) -> bool:
        """Whether a side has nothing at a path and below that the ancestor has not."""
        if self._is_same(side, self._ancestor, path) or side.kind(path) is None:
            return True
        if side.kind(path) != "folder":
            return False
        if not is_same_entry(side.entry(path), self._ancestor.entry(path)):
            return False
        names = side.listed_names(path) | self._ancestor.listed_names(path)
        return all(self._has_only_deleted(side, joined(path, name)) for name in names)

    def _take(self, side: StateView, path: str) -> bool:
        """What a side has at a path and below."""
        if side.kind(path) is None:
            self._remove(path)
            return False
        self.result |= side.part(path)
        return True

    def _take_newer(self, path: str) -> None:
        """What both sides have, with the later times."""
        if not self._take(self._ours, path):
            return
        for each in self._ours.part(path):
            entry, other = self._ours.manifest[each], self._theirs.manifest[each]
            mtime_ns = max(entry.mtime_ns, other.mtime_ns)
            self.result[each] = entry._replace(mtime_ns=mtime_ns)

    def _put(self, path: str, entry: Entry) -> bool:
        if entry.kind == "gone":
            self._remove(path)
            return False
        self.result.pop(path, None)
        if not self._base.is_same(path, entry):
            self.result[path] = entry
        return True

    def _remove(self, path: str) -> None:
        if self._base.kind(path) is not None:
            self.result[path] = Entry("gone")

    def _merge_folders(self, path: str) -> None:
        entries = self._entries(path)
        ancestor, ours, theirs = entries
        assert ours is not None
        assert theirs is not None
        before = ancestor.mode if ancestor and ancestor.kind == "folder" else None
        mode = merged_mode(before, ours.mode, theirs.mode)
        if mode is None:
            match self._resolution_of(self._conflict(path, "mode", ours, theirs, ancestor)):
                case Entry(mode=mode):
                    pass
                case choice:
                    mode = (theirs if choice == "theirs" else ours).mode
        self._put(path, Entry("folder", mode, mtime_ns=max(ours.mtime_ns, theirs.mtime_ns)))
        self._folders.append(path)

    def _merge_deleted_folder(self, path: str, changed: StateView) -> bool:
        """Merge a folder that one side deleted, and in which the other changed something.

        It stays if anything in it does. If not, the result has nothing at the path or below.
        """
        before, after = self._ancestor.entry(path), changed.entry(path)
        assert after is not None
        if before is None:
            names = changed.names(path)
        else:
            names = changed.listed_names(path) | self._ancestor.listed_names(path)
        staying: set[str] = set()
        stays = False
        if before.mode != after.mode if before else not names:
            choice = self._resolution_of(self._deleted_and_changed(path))
            stays = choice == ("ours" if changed is self._ours else "theirs")
        for name in sorted(names):
            if self._stays(joined(path, name), changed):
                staying.add(name)
            else:
                self.result.pop(joined(path, name), None)
        if not stays and not staying:
            return False
        self._put(path, after)
        for name in set(self._base.names(path)) - staying:
            self._remove(joined(path, name))
        return True

    def _stays(self, path: str, changed: StateView) -> bool:
        """Whether a path in a deleted folder stays."""
        kind = changed.kind(path)
        if kind is None or self._is_same(changed, self._ancestor, path):
            return False
        if kind == "folder" and self._ancestor.kind(path) in ("folder", None):
            return self._merge_deleted_folder(path, changed)
        return self._settle(self._deleted_and_changed(path))

    def _merge_others(self, path: str) -> None:
        ancestor, ours, theirs = self._entries(path)
        if ours is None or theirs is None:
            self._settle(self._deleted_and_changed(path))
            return
        if ours.kind != theirs.kind:
            self._settle(self._conflict(path, "kind", ours, theirs, ancestor))
            return
        merged = merge_files(path, ancestor, ours, theirs, read=self._read, keep=self._keep)
        if merged.is_by_lines:
            self.merged_paths.append(path)
        if merged.kind is None:
            self._put(path, merged.entry)
            return
        self._settle(
            self._conflict(path, merged.kind, merged.entry, merged.theirs, ancestor, merged.hunks)
        )

    def _deleted_and_changed(self, path: str) -> Conflict:
        kind: ConflictKind = "deleted and changed"
        ancestor, ours, theirs = self._entries(path)
        return self._conflict(path, kind, ours, theirs, ancestor)

    def _entries(self, path: str) -> tuple[Entry | None, Entry | None, Entry | None]:
        return (self._ancestor.entry(path), self._ours.entry(path), self._theirs.entry(path))

    def _resolution_of(self, conflict: Conflict) -> Resolution:
        resolution = self._resolutions.get(conflict.path)
        if resolution is None:
            self.conflicts.append(conflict)
            return "ours"
        return resolution

    def _settle(self, conflict: Conflict) -> bool:
        """Put what takes the place of a conflict."""
        path = conflict.path
        match self._resolution_of(conflict):
            case "ours":
                entry, side = conflict.ours, self._ours
            case "theirs":
                entry, side = conflict.theirs, self._theirs
            case Entry() as entry:
                return self._put(path, self._checked(conflict, entry))
            case bytes(data):
                return self._put(path, self._file(conflict, data))
        if entry is None or entry.kind == "folder":
            return self._take(side, path)
        return self._put(path, entry)

    def _file(self, conflict: Conflict, data: bytes) -> Entry:
        """A content with the permissions and the time of the files that are in conflict."""
        ancestor, *sides = (
            entry if entry is not None and entry.kind == "file" else None
            for entry in (conflict.ancestor, conflict.ours, conflict.theirs)
        )
        files = [entry for entry in sides if entry is not None]
        if len(files) == 2:
            mode = merged_mode(ancestor and ancestor.mode, files[0].mode, files[1].mode)
        else:
            mode = files[0].mode if files else 0o644
        mtime_ns = max((entry.mtime_ns for entry in files), default=0)
        if mode is None:
            mode = files[0].mode
        return Entry("file", mode, self._keep(data), len(data), mtime_ns)

    def _checked(self, conflict: Conflict, entry: Entry) -> Entry:
        """An entry that the caller gave; its content must be stored."""
        if entry.kind != "file":
            return entry
        try:
            return entry._replace(size=len(self._read(conflict.path, entry)))
        except (OSError, BaseChanged) as error:
            reason = f"the content {entry.content!r} is not stored; give the bytes themselves"
            raise InvalidResolution(conflict.path, reason) from error


def _differing(one: Manifest, other: Manifest) -> set[str]:
    """The paths at which two manifests differ, and the folders these lie in."""
    found: set[str] = set()
    for path in one.keys() | other.keys():
        if not is_same_entry(one.get(path), other.get(path)):
            found.update((path, *parents_of(path)))
    return found
