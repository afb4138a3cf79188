"""Limits for each document: what takes too long or too much memory is left out, by name."""

import os
import signal
from pathlib import Path

import pytest

from agents.tools.corpus import Corpus
from agents.tools.document_reader import DocumentReader, ReadingLimits
from agents.tools.errors import Unreadable
from agents.tools.readers import read_document
from tests.unit.agents.corpus_samples import pdf, pdf_bomb, prose, write

MEMORY_BYTES = 150 << 20
TIGHT = ReadingLimits(cpu_s=1, cpu_s_per_mb=0)


def test_documents_are_read_as_without_limits(subprocesses: None) -> None:
    files = {
        "a.pdf": pdf(["alpha"], ["beta"]),
        "small.md": prose("gamma").encode(),
        "large.md": prose("delta", 5000).encode(),
    }
    with DocumentReader(ReadingLimits()) as reader:
        for file, data in files.items():
            assert reader.read(data, file) == read_document(data, file)
        with pytest.raises(Unreadable, match="broken"):
            reader.read(b"%PDF-", "b.pdf")


@pytest.mark.slow
def test_a_document_that_takes_too_long_is_left_out_by_name(
    subprocesses: None, tmp_path: Path
) -> None:
    bomb = pdf_bomb(100_000, num_pages=100)  # about 100 s
    assert len(bomb) < 102_000
    folder = write(tmp_path / "c", {"a.pdf": pdf(["alpha"]), "b.pdf": bomb, "c.pdf": pdf(["beta"])})
    corpus = Corpus.open(folder, index_path=tmp_path / "i.db", limits=TIGHT)
    (skipped,) = corpus.report.skipped
    assert skipped.file == "b.pdf"
    assert skipped.reason == "reading it takes more than 1 s of CPU time"
    assert [passage.text for passage in corpus.passages()] == ["alpha", "beta"]
    again = Corpus.open(folder, index_path=tmp_path / "i.db", limits=TIGHT)
    assert (again.report.num_indexed, again.report.skipped) == (0, (skipped,))


@pytest.mark.slow
def test_a_document_that_takes_too_much_memory_is_left_out(subprocesses: None) -> None:
    with DocumentReader(ReadingLimits(memory_bytes=MEMORY_BYTES)) as reader:
        with pytest.raises(Unreadable, match=f"more than {MEMORY_BYTES:,} bytes of memory"):
            reader.read(pdf_bomb(900_000), "a.pdf")
        assert reader.read(pdf(["beta"]), "b.pdf").passages[0].text == "beta"


def test_the_limit_of_time_grows_with_the_size_of_the_document() -> None:
    limits = ReadingLimits(cpu_s=10, cpu_s_per_mb=20)
    assert [limits.cpu_s_of(size) for size in (0, 102_000, 50_000_000)] == [10, 13, 1010]


def test_a_document_whose_reader_the_system_killed_is_read_again_later(subprocesses: None) -> None:
    with DocumentReader(ReadingLimits()) as reader:
        reader.read(pdf(["alpha"]), "a.pdf")
        assert reader._process is not None
        os.kill(reader._process.pid, signal.SIGKILL)
        with pytest.raises(OSError, match="killed"):
            reader.read(pdf(["alpha"]), "a.pdf")
        assert reader.read(pdf(["alpha"]), "a.pdf").passages


def test_no_process_is_left_when_the_reader_is_closed(subprocesses: None) -> None:
    with DocumentReader(ReadingLimits()) as reader:
        reader.read(pdf(["alpha"]), "a.pdf")
        process = reader._process
    assert process is not None
    assert process.poll() is not None
