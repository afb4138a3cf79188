"""What a store recorded -> what later runs know: library, kernel, length model. Offline.

Everything is computed first and put in place last, each part whole or not at all: whoever kills
a fit leaves what was known before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from orchestrator.learning.knowledge import MOST_USES, kept_patterns, length_samples
from orchestrator.learning.model_files import model_file
from patterns.codec import encode_stages
from patterns.kernel import StageKernel
from patterns.library import CAPACITY, KeptPattern, PatternLibrary
from serving.analyzer.fitted import MAX_CALLS, MIN_CALLS, fit
from serving.analyzer.samples import Sample
from serving.errors import ModelNotSaved
from store.records import FitRecord, PatternRecord
from store.session import Store

logger = logging.getLogger("orchestrate")

BUDGET_BYTES = 16 * 1024
"""Of one application's library, in the stage view: some 150 patterns of 110 bytes."""

SEED = 0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FitReport:
    """What a fit came to.

    Attributes:
        num_runs: patterns that it was made from.
        num_patterns: those in the library now, each standing for some of them.
        num_evicted: patterns forgotten, for want of use.
        num_unreadable: patterns that this version cannot read; they stay as they are.
        library_bytes: of the library's patterns, encoded.
        num_calls: LLM calls that lengths were learned from.
        has_length_model: whether there is a forest, fitted on them, now.
        length_error: why there is none although they were enough; the rest is fitted all the same.
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
    """Fit one application anew, and put the result in place of the former one.

    Args:
        models: the folder that its length model is saved in.
        budget_bytes: most bytes of the library's patterns in the stage view; one is always kept.
        by_silhouette: fewer patterns, where the medoid silhouette says so.
        capacity: most patterns to learn from; of more the least used are forgotten.
        progress: told what is done now.
    Raises:
        StoreError: the store cannot be read or written.
    """
    async with store.reading() as tx:
        records = await tx.patterns.of_application(application)
        calls = await tx.calls.length_samples(application, limit=MAX_CALLS)
    progress(f"{application}: {len(records)} patterns, {len(calls)} LLM calls")
    recorded = PatternLibrary(await asyncio.to_thread(kept_patterns, records))
    recent = recorded.evicted(now.timestamp(), capacity=capacity)
    progress(f"{application}: kernel and clusters")
    library, library_bytes = await asyncio.to_thread(
        _compacted, recent, budget_bytes, by_silhouette
    )
    samples = await asyncio.to_thread(length_samples, calls)
    enough = len(samples) >= MIN_CALLS
    if enough:
        progress(f"{application}: answer lengths")
    path = model_file(models, application)
    length_error = await asyncio.to_thread(_fit_lengths, samples, path) if enough else None
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
    num_evicted = await _put_in_place(store, record, _weights(library, unreadable), evicted)
    return FitReport(
        application=application,
        num_runs=len(recent),
        num_patterns=len(library),
        num_evicted=num_evicted,
        num_unreadable=len(unreadable),
        library_bytes=library_bytes,
        kernel=library.kernel,
        num_calls=len(samples),
        has_length_model=enough and length_error is None,
        length_error=length_error,
    )


def _weights(library: PatternLibrary, unreadable: Collection[PatternRecord]) -> dict[int, float]:
    """What each pattern of the new library weighs, by its id.

    What this version cannot read another one may: it stays in the library.
    """
    weights = {r.id: r.weight for r in unreadable if r.id and 0 < r.weight < MOST_USES}
    return weights | {pattern.key: pattern.weight for pattern in library.patterns}


def _compacted(
    library: PatternLibrary, budget_bytes: int, by_silhouette: bool
) -> tuple[PatternLibrary, int]:
    """The fitted library within its budget, and the bytes that it takes."""
    if not library:
        return library, 0
    sizes = {pattern.key: _size(pattern) for pattern in library.patterns}
    fitted = library.fitted()
    most = max(1, min(len(library), budget_bytes * len(library) // sum(sizes.values())))
    while True:
        compact = fitted.compacted(most, by_silhouette=by_silhouette, seed=SEED)
        library_bytes = sum(sizes[pattern.key] for pattern in compact.patterns)
        if library_bytes <= budget_bytes or len(compact) == 1:
            return compact, library_bytes
        # In proportion, as patterns are much alike in size; and always fewer than before.
        most = max(1, min(len(compact) - 1, len(compact) * budget_bytes // library_bytes))


def _size(pattern: KeptPattern) -> int:
    return len(encode_stages(pattern.stages))


def _fit_lengths(samples: list[Sample], path: Path) -> str | None:
    """Fit and save a length model; returns why it could not be saved, None if it was."""
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise ModelNotSaved(str(path), cause.strerror or str(cause)) from cause
        fit(samples, seed=SEED).save(path)
    except ModelNotSaved as error:
        logger.warning("%s", error)
        return str(error)
    return None


async def _put_in_place(
    store: Store, record: FitRecord, weights: Mapping[int, float], evicted: Collection[int]
) -> int:
    """Replace library and kernel together; returns how many patterns were deleted."""
    async with store.transaction() as tx:
        up_to = record.last_pattern_id
        await tx.patterns.set_library(record.application, weights, up_to=up_to)
        num_deleted = await tx.patterns.delete(evicted)
        await tx.fits.put(record)
    return num_deleted
