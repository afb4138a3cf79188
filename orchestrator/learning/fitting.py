"""Offline fit of an application from its recorded runs: library, kernel, length model.

Everything is computed first. Then the results are replaced, the length model by one atomic write,
library and kernel in one transaction. A fit that is killed leaves the former results.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from orchestrator.learning.knowledge import MAX_USES, length_samples, readable_patterns
from orchestrator.learning.model_files import model_file
from patterns.codec import encode_stages
from patterns.kernel import StageKernel
from patterns.library import CAPACITY, KeptPattern, PatternLibrary
from serving.analyzer.fitted import MAX_CALLS, MIN_CALLS, fit
from serving.analyzer.samples import Sample
from serving.errors import ModelNotSaved
from store.database.private_files import private_folder
from store.records import FitRecord, PatternRecord
from store.session import Store

logger = logging.getLogger("orchestrate")

BUDGET_BYTES = 16 * 1024
"""Default size limit of one application's library, encoded as stages: about 150 patterns of 110
bytes."""

SEED = 0
"""Seed of the clustering and of the length model, so that fits are reproducible."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FitReport:
    """The result of a fit.

    Attributes:
        num_runs: patterns from which the library was made.
        num_patterns: patterns in the library now, each of which represents some of those.
        num_evicted: least used patterns that were deleted.
        num_unreadable: patterns that this version cannot read; they are left unchanged.
        library_bytes: encoded size of the library's patterns.
        num_calls: LLM calls from which lengths were learned.
        has_length_model: whether a length model was fitted on them.
        length_error: why it could not be saved; the rest of the fit is valid nevertheless.
    """

    application: str
    num_runs: int
    num_patterns: int
    num_evicted: int
    num_unreadable: int
    library_bytes: int
    kernel: StageKernel
    num_calls: int
    has_length_model: bool
    length_error: str | None = None


async def fit_application(
    store: Store,
    application: str,
    *,
    models: Path,
    now: datetime,
    budget_bytes: int = BUDGET_BYTES,
    by_silhouette: bool = False,
    capacity: int = CAPACITY,
    progress: Progress = lambda message: None,
) -> FitReport:
    """Fit one application from all its records, and replace the former result.

    Args:
        models: the folder in which its length model is saved.
        budget_bytes: limit of the library's size, encoded as stages; one pattern is always kept.
        by_silhouette: keep fewer patterns if the medoid silhouette is better with fewer.
        capacity: most patterns to learn from; the least used beyond that are deleted.
        progress: called with a message before each part of the work.
    Raises:
        StoreError: the store cannot be read or written.
    """
    async with store.reading() as tx:
        records = await tx.patterns.of_application(application)
        calls = await tx.calls.length_samples(application, limit=MAX_CALLS)
    progress(f"{application}: {len(records)} patterns, {len(calls)} LLM calls")
    recorded = PatternLibrary(await asyncio.to_thread(readable_patterns, records))
    recent = recorded.evicted(now.timestamp(), capacity=capacity)
    progress(f"{application}: kernel and clusters")
    library, library_bytes = await asyncio.to_thread(compacted, recent, budget_bytes, by_silhouette)
    samples = await asyncio.to_thread(length_samples, calls)
    has_enough_calls = len(samples) >= MIN_CALLS
    if has_enough_calls:
        progress(f"{application}: answer lengths")
    path = model_file(models, application)
    length_error = None
    if has_enough_calls:
        length_error = await asyncio.to_thread(_fit_lengths, samples, path)
    readable = {pattern.key for pattern in recorded.patterns}
    unreadable = [record for record in records if record.id not in readable]
    evicted = readable - {pattern.key for pattern in recent.patterns}
    record = FitRecord(
        application=application,
        fitted_at=now,
        last_pattern_id=max((record.id or 0 for record in records), default=0),
        num_patterns=len(recent),
        kernel=library.kernel.to_document(),
    )
    num_evicted = await _replace_library(store, record, _weights(library, unreadable), evicted)
    return FitReport(
        application=application,
        num_runs=len(recent),
        num_patterns=len(library),
        num_evicted=num_evicted,
        num_unreadable=len(unreadable),
        library_bytes=library_bytes,
        kernel=library.kernel,
        num_calls=len(samples),
        has_length_model=has_enough_calls and length_error is None,
        length_error=length_error,
    )


def _weights(library: PatternLibrary, unreadable: Collection[PatternRecord]) -> dict[int, float]:
    """The weight of each pattern of the new library, by the pattern's id.

    Unreadable patterns keep their weights: another version may be able to read them.
    """
    weights = {r.id: r.weight for r in unreadable if r.id and 0 < r.weight < MAX_USES}
    return weights | {pattern.key: pattern.weight for pattern in library.patterns}


def compacted(
    library: PatternLibrary, budget_bytes: int, by_silhouette: bool
) -> tuple[PatternLibrary, int]:
    """The library, fitted and reduced to its budget, and its size in bytes."""
    if not library:
        return library, 0
    sizes = {pattern.key: _size(pattern) for pattern in library.patterns}
    fitted = library.fitted()
    max_patterns = max(1, min(len(library), budget_bytes * len(library) // sum(sizes.values())))
    while True:
        compact = fitted.compacted(max_patterns, by_silhouette=by_silhouette, seed=SEED)
        library_bytes = sum(sizes[pattern.key] for pattern in compact.patterns)
        if library_bytes <= budget_bytes or len(compact) == 1:
            return compact, library_bytes
        # In proportion to the size, since patterns have similar sizes; and fewer than before.
        max_patterns = max(1, min(len(compact) - 1, len(compact) * budget_bytes // library_bytes))


def _size(pattern: KeptPattern) -> int:
    return len(encode_stages(pattern.stages))


def _fit_lengths(samples: list[Sample], path: Path) -> str | None:
    """Fit and save a length model; returns why it could not be saved, None if it was."""
    try:
        try:
            private_folder(path.parent)
        except OSError as cause:
            raise ModelNotSaved(str(path), cause.strerror or str(cause)) from cause
        fit(samples, seed=SEED).save(path)
    except ModelNotSaved as error:
        logger.warning("%s", error)
        return str(error)
    return None


async def _replace_library(
    store: Store, record: FitRecord, weights: Mapping[int, float], evicted: Collection[int]
) -> int:
    """Replace library and kernel in one transaction; returns how many patterns were deleted."""
    async with store.transaction() as tx:
        up_to = record.last_pattern_id
        await tx.patterns.set_library(record.application, weights, up_to=up_to)
        num_deleted = await tx.patterns.delete(evicted)
        await tx.fits.put(record)
    return num_deleted
