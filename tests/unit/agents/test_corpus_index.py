"""The index: which files are read again, what it counts, and where it is stored."""

import logging
import os
from pathlib import Path

import pytest

from agents.tools.corpus import Corpus, default_index_path
from agents.tools.indexing import IndexProgress, IndexReport
from tests.unit.agents.corpus_samples import OLD_NS, pdf, prose, write

FILES: dict[str, str | bytes] = {
    "a.md": prose("alpha"),
    "sub/b.txt": prose("beta"),
    "c.html": "<h1>Gamma</h1>\n<p>All of gamma.</p>",
    "d.pdf": pdf(["delta is here"]),
}


@pytest.fixture
def folder(tmp_path: Path, subprocesses: None) -> Path:
    return write(tmp_path / "c", FILES)


@pytest.fixture
def index_path(tmp_path: Path) -> Path:
    return tmp_path / "index" / "i.db"


def files_read(folder: Path, index_path: Path) -> tuple[list[str], IndexReport]:
    events: list[IndexProgress] = []
    report = Corpus.open(folder, index_path=index_path, on_progress=events.append).report
    return [event.file for event in events if event.file], report


def test_files_of_every_format_are_indexed_and_counted(folder: Path, index_path: Path) -> None:
    write(folder, {"ignored.py": "x", "binary.md": b"\0", "broken.pdf": b"%PDF-"})
    corpus = Corpus.open(folder, index_path=index_path)
    report = corpus.report
    counts = (report.num_indexed, report.num_unchanged, report.num_removed, report.num_ignored)
    assert counts == (4, 0, 0, 1)
    assert report.num_passages == len(list(corpus.passages())) > 10
    assert report.num_bytes == sum((folder / name).stat().st_size for name in FILES)
    assert [entry.file for entry in report.skipped] == ["binary.md", "broken.pdf"]
    for topic, file in [("alpha", "a.md"), ("beta", "sub/b.txt"), ("delta", "d.pdf")]:
        assert corpus.search(topic)[0].file == file


def test_unchanged_files_are_not_read_again(folder: Path, index_path: Path) -> None:
    write(folder, {"binary.md": b"\0"})
    first, _ = files_read(folder, index_path)
    again, report = files_read(folder, index_path)
    assert first == ["a.md", "binary.md", "c.html", "d.pdf", "sub/b.txt"]
    assert again == []
    assert (report.num_indexed, report.num_unchanged) == (0, 4)
    assert [entry.file for entry in report.skipped] == ["binary.md"]


def test_the_passages_of_a_changed_file_are_replaced(folder: Path, index_path: Path) -> None:
    Corpus.open(folder, index_path=index_path)
    write(folder, {"a.md": prose("omega", 2)}, mtime_ns=OLD_NS + 1)
    corpus = Corpus.open(folder, index_path=index_path)
    assert (corpus.report.num_indexed, corpus.report.num_unchanged) == (1, 3)
    assert corpus.search("alpha") == []
    assert corpus.search("omega")[0].file == "a.md"


def test_a_change_that_keeps_the_size_is_detected(folder: Path, index_path: Path) -> None:
    for text in ("aaaa\n", "bbbb\n", "cccc\n"):  # without a pause: the times may be equal
        (folder / "a.md").write_text(text)
        corpus = Corpus.open(folder, index_path=index_path)
        assert [passage.file for passage in corpus.search(text)] == ["a.md"]


def test_a_touched_file_is_read_but_not_indexed_again(folder: Path, index_path: Path) -> None:
    before = list(Corpus.open(folder, index_path=index_path).passages())
    os.utime(folder / "a.md", ns=(OLD_NS, OLD_NS + 5))
    files, report = files_read(folder, index_path)
    assert files == ["a.md"]
    assert (report.num_indexed, report.num_unchanged) == (0, 4)
    assert list(Corpus.open(folder, index_path=index_path).passages()) == before
    assert files_read(folder, index_path)[0] == []


def test_a_deleted_file_is_removed_from_the_index(folder: Path, index_path: Path) -> None:
    Corpus.open(folder, index_path=index_path)
    (folder / "a.md").unlink()
    corpus = Corpus.open(folder, index_path=index_path)
    assert (corpus.report.num_removed, corpus.report.num_unchanged) == (1, 3)
    assert corpus.search("alpha") == []


def test_a_file_that_becomes_unreadable_is_removed_and_reported(
    folder: Path, index_path: Path
) -> None:
    Corpus.open(folder, index_path=index_path)
    write(folder, {"a.md": b"\0\0"})
    corpus = Corpus.open(folder, index_path=index_path)
    assert [entry.file for entry in corpus.report.skipped] == ["a.md"]
    assert corpus.search("alpha") == []
    smaller = Corpus.open(folder, index_path=index_path, max_file_bytes=50)
    assert {passage.file for passage in smaller.passages()} == {"c.html"}


def test_progress_is_reported_for_every_file_and_at_the_end(folder: Path, index_path: Path) -> None:
    events: list[IndexProgress] = []
    Corpus.open(folder, index_path=index_path, on_progress=events.append)
    assert [(event.files_done, event.files_total) for event in events] == [
        *((done, 4) for done in range(5)),
    ]
    assert events[-1].file == ""


def test_indexing_that_was_stopped_by_its_listener_is_completed_later(
    folder: Path, index_path: Path
) -> None:
    class Stop(Exception):
        pass

    def stop(event: IndexProgress) -> None:
        if event.files_done == 2:
            raise Stop

    with pytest.raises(Stop):
        Corpus.open(folder, index_path=index_path, on_progress=stop)
    assert Corpus.open(folder, index_path=index_path).report.num_passages > 10


def test_a_file_that_is_deleted_before_it_is_read_is_skipped(
    folder: Path, index_path: Path
) -> None:
    def delete(event: IndexProgress) -> None:
        if event.file == "c.html":
            (folder / event.file).unlink()

    report = Corpus.open(folder, index_path=index_path, on_progress=delete).report
    assert [entry.file for entry in report.skipped] == ["c.html"]
    assert "cannot be read: No such file" in report.skipped[0].reason


def test_the_index_is_stored_in_the_cache_and_never_in_the_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATE_CACHE", str(tmp_path / "cache"))
    before = sorted(folder.rglob("*"))
    corpus = Corpus.open(folder)
    (tmp_path / "link").symlink_to(folder)
    assert corpus.index_path == default_index_path(tmp_path / "link")
    assert corpus.index_path.parent == tmp_path / "cache" / "corpora"
    assert sorted(folder.rglob("*")) == before
    monkeypatch.delenv("ORCHESTRATE_CACHE")
    assert not default_index_path(folder).is_relative_to(tmp_path)


@pytest.mark.slow
def test_huge_files_are_indexed(subprocesses: None, tmp_path: Path, index_path: Path) -> None:
    many = "".join(f"line number {i} of many\n" for i in range(400_000))
    folder = write(
        tmp_path / "c",
        {"one.txt": "a single line without any end, needle " * 265_000, "many.txt": many},
    )
    report = (corpus := Corpus.open(folder, index_path=index_path)).report
    assert report.num_indexed == 2
    assert report.num_bytes > 19_000_000
    (passage,) = corpus.search("399998")
    assert many.split("\n")[passage.line - 1 : passage.end_line] == passage.text.split("\n")
    assert corpus.search("needle")[0].line == 1


def test_the_index_can_be_read_by_its_user_only(folder: Path, index_path: Path) -> None:
    former = os.umask(0)
    try:
        Corpus.open(folder, index_path=index_path)
    finally:
        os.umask(former)
    assert index_path.parent.stat().st_mode & 0o777 == 0o700
    assert index_path.stat().st_mode & 0o777 == 0o600


def test_an_existing_index_is_made_private_with_a_warning(
    folder: Path, index_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Corpus.open(folder, index_path=index_path)
    index_path.chmod(0o644)
    with caplog.at_level(logging.WARNING, logger="orchestrate"):
        Corpus.open(folder, index_path=index_path)
    assert index_path.stat().st_mode & 0o777 == 0o600
    assert "now it is private" in caplog.text
