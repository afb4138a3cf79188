"""Manifests of what lies where this user may not look in the base."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.environment.files.base_folder import BaseFolder
from orchestrator.environment.files.folder_scan import FolderScan
from orchestrator.environment.files.layering import layered
from orchestrator.environment.files.manifest import Entry, Kind

FOLDER, FILE = Entry("folder", 0o755), Entry("file", 0o644, "digest", 1)


class SealedBase(BaseFolder):
    """A base with a folder that may not be entered, also as root would see it."""

    def _status(self, path: str) -> os.stat_result | None:
        if path.startswith("sealed/"):
            raise PermissionError(13, "Permission denied", path)
        return super()._status(path)


def kinds(entries: dict[str, Entry]) -> dict[str, Kind]:
    return {path: entry.kind for path, entry in entries.items()}


def test_what_is_written_or_deleted_in_a_sealed_folder_is_a_change(tmp_path: Path) -> None:
    (tmp_path / "sealed/in").mkdir(parents=True)
    (tmp_path / "sealed").chmod(0o700)
    base = SealedBase(tmp_path)
    upper = FolderScan(
        entries={
            "sealed": FOLDER,
            "sealed/in": FOLDER,
            "sealed/in/new": FILE,
            "sealed/deleted": Entry("gone"),
        }
    )
    manifest = layered({}, upper, base)
    assert kinds(manifest) == {
        "sealed": "folder", "sealed/in": "folder", "sealed/in/new": "file", "sealed/deleted": "gone"
    }  # fmt: skip
    later = FolderScan(entries={"sealed": FOLDER, "sealed/in": FOLDER, "sealed/in/x": FILE})
    assert kinds(layered(manifest, later, base)) == kinds(manifest) | {"sealed/in/x": "file"}
