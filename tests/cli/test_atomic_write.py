from __future__ import annotations

from pathlib import Path

import pytest

from cli.errors import CannotWrite
from cli.terminal.atomic_write import prepare_folder, save


def test_a_file_is_replaced_as_a_whole_and_leaves_nothing_else(tmp_path: Path) -> None:
    save(tmp_path / "report.md", "first")
    save(tmp_path / "report.md", "second ✓")
    assert [file.name for file in tmp_path.iterdir()] == ["report.md"]
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == "second ✓"


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match="gone"):
        save(tmp_path / "gone" / "report.md", "text")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CannotWrite, match="Name a place"):
        prepare_folder(tmp_path / "file")


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
