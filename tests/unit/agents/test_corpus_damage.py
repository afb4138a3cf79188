"""The index is a cache: a damaged one is rebuilt, an unusable one raises CorpusIndexUnavailable."""

import pickle
import sqlite3
from pathlib import Path

import pytest

from agents.tools.corpus import Corpus
from agents.tools.errors import (
    CorpusEmpty,
    CorpusIndexUnavailable,
    CorpusNotAFolder,
    CorpusNotFound,
    ToolError,
)
from tests.unit.agents.corpus_samples import prose, write

FILES: dict[str, str | bytes] = {
    "a.md": prose("alpha"),
    "sub/b.txt": prose("beta"),
    "c.html": "<h1>Gamma</h1>\n<p>All of gamma.</p>",
    "d.md": "# Delta\n\ndelta is here",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "c", FILES)


@pytest.fixture
def index_path(tmp_path: Path) -> Path:
    return tmp_path / "index" / "i.db"


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no database " * 1000)


def overwritten_pages(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\x5a" * (len(data) - 4096))


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:8192])


def without_a_table(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("DROP TABLE files")
    db.commit()
    db.close()


DAMAGES = [garbage, overwritten_pages, truncated, without_a_table]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_rebuilt_with_a_warning(
    damage: type, folder: Path, index_path: Path
) -> None:
    before = list(Corpus.open(folder, index_path=index_path).passages())
    damage(index_path)
    corpus = Corpus.open(folder, index_path=index_path)
    assert list(corpus.passages()) == before
    assert corpus.report.num_indexed == 4
    assert "damaged" in corpus.report.warnings[0]
    assert Corpus.open(folder, index_path=index_path).report.warnings == ()


@pytest.mark.parametrize("damage", [*DAMAGES, Path.unlink])
def test_an_index_that_is_damaged_while_in_use_is_rebuilt_by_the_search(
    damage: type, folder: Path, index_path: Path
) -> None:
    corpus = Corpus.open(folder, index_path=index_path)
    before = corpus.search("alpha")
    damage(index_path)
    assert corpus.search("alpha") == before


def test_another_programs_database_is_moved_away_unchanged(folder: Path, index_path: Path) -> None:
    index_path.parent.mkdir()
    db = sqlite3.connect(index_path)
    db.execute("CREATE TABLE precious (x)")
    db.commit()
    db.close()
    before = index_path.read_bytes()
    report = Corpus.open(folder, index_path=index_path).report
    assert index_path.with_name("i.db.damaged").read_bytes() == before
    assert "i.db.damaged" in report.warnings[0]


def test_an_index_of_another_version_is_rebuilt(folder: Path, index_path: Path) -> None:
    before = list(Corpus.open(folder, index_path=index_path).passages())
    db = sqlite3.connect(index_path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    corpus = Corpus.open(folder, index_path=index_path)
    assert corpus.report.num_indexed == 4
    assert "version 99" in corpus.report.warnings[0]
    assert list(corpus.passages()) == before


def test_an_index_of_another_folder_is_rebuilt_for_this_one(
    folder: Path, index_path: Path, tmp_path: Path
) -> None:
    Corpus.open(folder, index_path=index_path)
    other = write(tmp_path / "other", {"a.md": FILES["a.md"]})
    report = Corpus.open(other, index_path=index_path).report
    assert (report.num_indexed, report.num_unchanged, report.num_removed) == (1, 0, 0)


def test_an_index_that_cannot_be_written_raises_index_unavailable(
    folder: Path, index_path: Path
) -> None:
    index_path.mkdir(parents=True)
    with pytest.raises(CorpusIndexUnavailable, match="ORCHESTRATE_CACHE"):
        Corpus.open(folder, index_path=index_path)
    with pytest.raises(CorpusIndexUnavailable):
        Corpus.open(folder, index_path=folder / "a.md" / "i.db")


@pytest.mark.parametrize(
    "error",
    [
        CorpusNotFound(Path("x")),
        CorpusNotAFolder(Path("x")),
        CorpusEmpty(Path("x"), (".md",), tuple(f"{i}: bad" for i in range(7))),
        CorpusIndexUnavailable(Path("x"), "disk full"),
    ],
)
def test_an_error_survives_pickling(error: ToolError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args, str(copy)) == (type(error), error.args, str(error))
