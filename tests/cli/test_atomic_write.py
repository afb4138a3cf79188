from __future__ import annotations

from pathlib import Path

import pytest

from cli.errors import CannotWrite
from cli.terminal.atomic_write import prepare_folder, save


def test_saving_replaces_the_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    save(tmp_path / "report.md", "first")
    save(tmp_path / "report.md", "second ✓")
    assert [file.name for file in tmp_path.iterdir()] == ["report.md"]
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == "second ✓"


def test_an_error_names_the_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match="gone"):
        save(tmp_path / "gone" / "report.md", "text")
    (tmp_path / "file").write_text("a file, not a folder")
    with pytest.raises(CannotWrite, match="Choose a writable path"):
        prepare_folder(tmp_path / "file")


def test_a_prepared_folder_exists_and_is_empty(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
