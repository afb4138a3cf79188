"""Several processes with one index, and processes that are killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agents.tools.corpus import Corpus
from tests.places import ROOT
from tests.unit.agents.corpus_samples import write

pytestmark = pytest.mark.usefixtures("subprocesses")


@pytest.fixture
def index_path(tmp_path: Path) -> Path:
    return tmp_path / "index" / "i.db"


KILLED_BETWEEN_BATCHES = """
import sys, time
from agents.tools.corpus import Corpus
def listen(event):
    if event.files_done == 1300:
        print("now", flush=True)
        time.sleep(600)
Corpus.open(sys.argv[1], index_path=sys.argv[2], on_progress=listen)
"""

KILLED_WITHIN_A_TRANSACTION = """
import sys, time
from pathlib import Path
from agents.tools.corpus_index import CorpusIndex, FileEntry, StoredFile
from agents.tools.passages import Passage
def entries():
    for i in range(3000):
        passage = Passage("a.md", 1, 1, f"half written {i} " * 60)
        yield FileEntry(f"{i}.md", StoredFile(1, 1, bytes([i % 256] * 32), 5, ""), (passage,) * 5)
    print("now", flush=True)
    time.sleep(600)
CorpusIndex(Path(sys.argv[2]), Path(sys.argv[1])).store(entries())
"""

OPEN = """
import sys
from agents.tools.corpus import Corpus
corpus = Corpus.open(sys.argv[1], index_path=sys.argv[2])
print(len(list(corpus.passages())), corpus.search("number 7")[0].file)
"""


def start(script: str, folder: Path, index_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder), str(index_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def kill_when_ready(process: subprocess.Popen[str]) -> None:
    """Kill a process when it prints "now"."""
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def many_files(folder: Path, num_files: int) -> Path:
    return write(folder, {f"{i:05}.md": f"# File {i}\n\nnumber {i}\n" for i in range(num_files)})


def test_indexing_killed_between_batches_is_completed_by_the_next_open(
    tmp_path: Path, index_path: Path
) -> None:
    folder = many_files(tmp_path / "c", 1500)
    kill_when_ready(start(KILLED_BETWEEN_BATCHES, folder, index_path))
    corpus = Corpus.open(folder, index_path=index_path)
    assert (corpus.report.num_unchanged, corpus.report.num_indexed) == (1000, 500)
    fresh = Corpus.open(folder, index_path=tmp_path / "fresh.db")
    assert list(corpus.passages()) == list(fresh.passages())


def test_indexing_killed_within_a_transaction_does_not_change_the_index(
    tmp_path: Path, index_path: Path
) -> None:
    folder = many_files(tmp_path / "c", 20)
    corpus = Corpus.open(folder, index_path=index_path)
    before = list(corpus.passages())
    kill_when_ready(start(KILLED_WITHIN_A_TRANSACTION, folder.resolve(), index_path))
    # The kill has left a journal on disk, so the next reader must roll it back.
    assert index_path.with_name("i.db-journal").stat().st_size > 0
    assert corpus.search("half written") == []
    assert list(corpus.passages()) == before
    assert Corpus.open(folder, index_path=index_path).report.warnings == ()


def test_processes_that_open_a_corpus_at_the_same_time_all_succeed(
    tmp_path: Path, index_path: Path
) -> None:
    folder = many_files(tmp_path / "c", 1200)
    processes = [start(OPEN, folder, index_path) for _ in range(3)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert outputs == ["1200 00007.md\n"] * 3
    assert Corpus.open(folder, index_path=index_path).report.num_unchanged == 1200


def test_processes_that_open_a_damaged_index_at_the_same_time_all_succeed(
    tmp_path: Path, index_path: Path
) -> None:
    folder = many_files(tmp_path / "c", 600)
    index_path.parent.mkdir()
    index_path.write_bytes(b"this is no database " * 1000)
    processes = [start(OPEN, folder, index_path) for _ in range(3)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert outputs == ["600 00007.md\n"] * 3
