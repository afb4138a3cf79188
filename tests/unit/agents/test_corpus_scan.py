"""Scanning a folder: which files are documents, which are skipped, and the reasons."""

import os
from pathlib import Path

import pytest

from agents.tools.corpus import Corpus
from agents.tools.errors import CorpusEmpty, CorpusNotAFolder, CorpusNotFound
from agents.tools.folder_scan import FolderScan, scan_folder
from agents.tools.readers import SUFFIXES
from tests.unit.agents.corpus_samples import write


def scan(folder: Path, max_file_bytes: int = 1000) -> FolderScan:
    return scan_folder(folder.resolve(), suffixes=SUFFIXES, max_file_bytes=max_file_bytes)


def found(folder: Path) -> list[str]:
    return [entry.file for entry in scan(folder).found]


def reasons(folder: Path) -> dict[str, str]:
    return {entry.file: entry.reason for entry in scan(folder).skipped}


def test_documents_are_found_at_any_depth_in_order(tmp_path: Path) -> None:
    write(tmp_path, {"b.md": "b", "a/z.TXT": "z", "a/b/c.Html": "c", "a.pdf": "p"})
    assert found(tmp_path) == ["a.pdf", "a/b/c.Html", "a/z.TXT", "b.md"]


def test_hidden_files_and_other_suffixes_are_ignored(tmp_path: Path) -> None:
    names = [".git/a.md", "node_modules/b.md", "x/.cache/c.md", ".d.md", "e.py", "f", "ok.md"]
    write(tmp_path, dict.fromkeys(names, "text"))
    assert found(tmp_path) == ["ok.md"]
    assert reasons(tmp_path) == {}
    assert scan(tmp_path).num_ignored == 3


def test_loops_of_links_are_not_followed_and_are_reported(tmp_path: Path) -> None:
    write(tmp_path, {"sub/a.md": "a"})
    (tmp_path / "sub/up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self.md").symlink_to(tmp_path / "self.md")
    assert found(tmp_path) == ["sub/a.md"]
    assert "loop" in reasons(tmp_path)["self.md"]
    assert "not followed" in reasons(tmp_path)["sub/up"]


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path, {"outside/secret.md": "secret", "in/a.md": "a"})
    (tmp_path / "in/file.md").symlink_to(tmp_path / "outside/secret.md")
    (tmp_path / "in/folder").symlink_to(tmp_path / "outside", target_is_directory=True)
    assert found(tmp_path / "in") == ["a.md"]
    assert "out of the corpus" in reasons(tmp_path / "in")["file.md"]
    assert "out of the corpus" in reasons(tmp_path / "in")["folder"]


def test_a_linked_document_is_found_once(tmp_path: Path) -> None:
    write(tmp_path, {"z.md": "z", ".objects/1": "kept in a hidden store"})
    (tmp_path / "a.md").symlink_to("z.md")
    (tmp_path / "b.md").symlink_to(".objects/1")
    (tmp_path / "c.md").symlink_to(".objects/1")
    assert found(tmp_path) == ["b.md", "z.md"]
    assert set(reasons(tmp_path)) == {"a.md", "c.md"}


def test_the_reason_for_a_large_file_names_its_size_and_the_limit(tmp_path: Path) -> None:
    write(tmp_path, {"big.md": "x" * 1001, "fits.md": "x" * 1000})
    assert found(tmp_path) == ["fits.md"]
    assert "1,001" in reasons(tmp_path)["big.md"]
    assert "1,000" in reasons(tmp_path)["big.md"]


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    assert "regular file" in reasons(tmp_path)["pipe.md"]


def test_a_name_that_is_not_utf_8_is_skipped_and_shown_escaped(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.md")).write_text("text")
    except OSError:
        pytest.skip("this file system has no such names")
    assert reasons(tmp_path) == {"caf\\udce9.md": "its name is not valid text; rename it"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_and_folders_without_read_permission_are_skipped(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c", {"open.md": "a", "closed.md": "b", "shut/c.md": "c"})
    (corpus / "closed.md").chmod(0)
    (corpus / "shut").chmod(0)
    report = Corpus.open(corpus, index_path=tmp_path / "i.db").report
    assert [entry.file for entry in report.skipped] == ["closed.md", "shut"]


def test_a_missing_folder_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusNotFound, match="check the path"):
        Corpus.open(tmp_path / "missing")
    write(tmp_path, {"a.md": "a"})
    with pytest.raises(CorpusNotAFolder, match=r"a\.md is not a folder"):
        Corpus.open(tmp_path / "a.md")


def test_the_error_for_an_empty_corpus_names_the_suffixes_or_the_reasons(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c", {"a.py": "a"})
    with pytest.raises(CorpusEmpty, match=r"\.pdf"):
        Corpus.open(corpus, index_path=tmp_path / "i.db")
    write(corpus, {"b.md": b"\0"})
    with pytest.raises(CorpusEmpty, match=r"b\.md: it is a binary file") as raised:
        Corpus.open(corpus, index_path=tmp_path / "i.db")
    assert raised.value.args[0] == corpus.resolve()
