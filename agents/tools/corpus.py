"""Corpus: a folder of documents with a search index that is updated when it is opened."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Self

from blake3 import blake3
from pydantic_core import core_schema

from agents.tools.corpus_index import CorpusIndex
from agents.tools.document_reader import ReadingLimits
from agents.tools.errors import CorpusIndexUnavailable, CorpusNotAFolder, CorpusNotFound
from agents.tools.index_file import IndexDamaged
from agents.tools.indexing import IndexReport, OnProgress, update_index
from agents.tools.passages import Passage
from agents.tools.terms import match_expression, query_terms
from serving.engine.setup.cache_folder import cache_root

MAX_FILE_BYTES = 50_000_000
"""Larger files are skipped by default."""


class Corpus:
    """The documents of one folder (.md, .txt, .html, .htm, .pdf), ranked by relevance (BM25).

    Created by `open`. Several threads and processes can search at the same time, and nothing needs
    to be closed. The methods block; async callers run them in a thread.
    """

    def __init__(
        self,
        folder: Path,
        index: CorpusIndex,
        report: IndexReport,
        *,
        max_file_bytes: int,
        limits: ReadingLimits,
    ) -> None:
        self.folder = folder
        self._index = index
        self._report = report
        self._max_file_bytes = max_file_bytes
        self._limits = limits
        self._rebuilding = Lock()

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        index_path: str | Path | None = None,
        on_progress: OnProgress | None = None,
        max_file_bytes: int = MAX_FILE_BYTES,
        limits: ReadingLimits = ReadingLimits(),  # noqa: B008 - it is frozen
    ) -> Self:
        """Index a folder; reads only files that changed since the last time.

        Args:
            folder: the documents; nothing is ever written into it.
            index_path: file of the index; by default `default_index_path(folder)`.
            on_progress: called before each file that is read and once at the end. An exception
                from it stops the indexing, and the next open continues from there.
            max_file_bytes: larger files are skipped.
            limits: files that take more CPU time or memory to read are skipped.
        Raises:
            CorpusNotFound: the folder does not exist.
            CorpusNotAFolder: the path is not a folder.
            CorpusEmpty: no file in the folder could be indexed.
            CorpusIndexUnavailable: the index can be neither used nor rebuilt.
        """
        try:
            resolved = Path(folder).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:  # missing, a link loop, a NUL
            raise CorpusNotFound(Path(folder)) from error
        if not resolved.is_dir():
            raise CorpusNotAFolder(Path(folder))
        path = Path(index_path) if index_path is not None else default_index_path(resolved)
        index = CorpusIndex(path, resolved)
        report = _update(
            *(index, resolved),
            max_file_bytes=max_file_bytes,
            limits=limits,
            on_progress=on_progress,
        )
        return cls(resolved, index, report, max_file_bytes=max_file_bytes, limits=limits)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        """The type of a Corpus argument on a command line: the path of a folder."""
        return {"type": "string", "format": "directory-path"}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        """A Corpus argument of a run is recorded as its folder, and opened again on resume."""
        return core_schema.no_info_plain_validator_function(
            lambda given: given if isinstance(given, cls) else cls.open(given),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda corpus: str(corpus.folder), return_schema=core_schema.str_schema()
            ),
        )

    @property
    def report(self) -> IndexReport:
        """The report of the last indexing."""
        return self._report

    @property
    def index_path(self) -> Path:
        """The file of the index."""
        return self._index.file.path

    def search(
        self, query: str, limit: int = 5, *, per_file: int | None = None, distinct: bool = False
    ) -> list[Passage]:
        """The passages that match a query best, best first; ties by file, then line.

        Args:
            query: any text, without operators. A passage matches if it contains any of the terms;
                rare terms count more. Only the first 64 terms are used.
            limit: maximum number of passages.
            per_file: maximum number of passages from one file; None for no limit.
            distinct: whether to leave out passages that repeat a better one, such as the same
                section in .md and in .html.
        Returns:
            an empty list if the query has no terms, or if no passage contains any of them.
        Raises:
            CorpusIndexUnavailable: the index can be neither used nor rebuilt.
        """
        terms = query_terms(query)
        if not terms or limit < 1 or (per_file is not None and per_file < 1):
            return []
        expression = match_expression(terms)
        limit = min(limit, 1_000_000)
        best = partial(
            self._index.search, expression, limit=limit, per_file=per_file, distinct=distinct
        )
        try:
            return best()
        except IndexDamaged:
            self._rebuild()
        try:
            return best()
        except IndexDamaged as error:
            raise CorpusIndexUnavailable(self.index_path, str(error)) from error

    def passages(self) -> Iterator[Passage]:
        """All passages of all documents, ordered by file and line."""
        return self._index.passages()

    def _rebuild(self) -> None:
        # Threads that find the damage at the same time rebuild one after the other; all but the
        # first find a valid index and unchanged files.
        with self._rebuilding:
            self._report = _update(
                *(self._index, self.folder),
                max_file_bytes=self._max_file_bytes,
                limits=self._limits,
                damaged=True,
            )


def default_index_path(folder: Path) -> Path:
    """The index file of a folder: in the user's cache, or in ORCHESTRATE_CACHE if that is set."""
    name = blake3(os.fsencode(folder.resolve())).hexdigest()[:32]
    return cache_root() / "corpora" / f"{name}.db"


def _update(
    index: CorpusIndex,
    folder: Path,
    *,
    max_file_bytes: int,
    limits: ReadingLimits,
    on_progress: OnProgress | None = None,
    damaged: bool = False,
) -> IndexReport:
    """Update the index; if it is damaged, replace and rebuild it once."""
    try:
        warning = index.file.replace_damaged() if damaged else index.file.prepare()
        report = update_index(
            *(index, folder),
            max_file_bytes=max_file_bytes,
            limits=limits,
            on_progress=on_progress,
        )
    except IndexDamaged as error:
        if damaged:
            raise CorpusIndexUnavailable(index.file.path, str(error)) from error
        return _update(
            *(index, folder),
            max_file_bytes=max_file_bytes,
            limits=limits,
            on_progress=on_progress,
            damaged=True,
        )
    return replace(report, warnings=(warning, *report.warnings)) if warning else report
