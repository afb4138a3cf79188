"""What past runs taught: loaded when a run begins, brought up to date as others end.

Nothing is learned in a call's way: a run takes what is known as it begins, its end is recorded
for later ones, and fitting goes on in another process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from orchestrator.models import load_lengths
from patterns.codec import decode
from patterns.errors import CodecError, CorruptKernel
from patterns.kernel import DEFAULT_KERNEL, StageKernel
from patterns.library import CAPACITY, KeptPattern, PatternLibrary
from serving.analyzer.analyzer import RequestAnalyzer
from serving.analyzer.features import CallFeatures
from serving.analyzer.samples import Sample
from serving.errors import CorruptFeatures, UnknownFeaturesVersion
from store.errors import StoreError
from store.records import FitRecord, LengthSample, PatternRecord
from store.session import Store

logger = logging.getLogger("orchestrate")

REPLAYED_CALLS = 1000
"""The newest calls from which the recent history of each step is taken up."""


SPARE = 50
"""Patterns by which a library may grow beyond its capacity before the least used are left out."""


@dataclass(frozen=True)
class Knowledge:
    """What is known of one application.

    Attributes:
        library: past runs, by the ids of their patterns.
        analyzer: how long answers are; learns as calls end.
        runs: the run that left each pattern, by the pattern's id.
        newest_id: the newest pattern that went into it, 0 without any.
        fit: the last fit that went into it.
    """

    application: str
    library: PatternLibrary = field(default_factory=PatternLibrary)
    analyzer: RequestAnalyzer = field(default_factory=RequestAnalyzer)
    runs: dict[int, str | None] = field(default_factory=dict)
    newest_id: int = 0
    fit: FitRecord | None = None


class Fit(Protocol):
    """Fits what is known of an application, somewhere out of the way."""

    def start(self, application: str) -> None:
        """Begin, unless one is under way; returns at once."""
        ...

    def close(self) -> None:
        """Let go of what was begun; it goes on."""
        ...


class Learner:
    """Keeps what is known of every application of a store.

    Args:
        models: the folder of the fitted length models; None: there are none.
        fit: fits an application anew, after `fit_every` of its runs; None: nobody here does.
    """

    def __init__(
        self, store: Store, *, models: Path | None, fit: Fit | None = None, fit_every: int = 0
    ) -> None:
        self._store = store
        self._models = models
        self._fit = fit
        self._fit_every = fit_every
        self._known: dict[str, Knowledge] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def knowledge_of(self, application: str) -> Knowledge:
        """What is known of an application now; raises StoreError where it cannot be read."""
        async with self._locks[application]:
            known = await self._refreshed(application, self._known.get(application))
            self._known[application] = known
            return known

    async def run_ended(self, application: str) -> None:
        """A run's end is recorded: have the application fitted where enough of them came.

        That is not worth a failed run: what goes wrong here is logged.
        """
        if self._fit is None:
            return
        try:
            async with self._store.reading() as tx:
                fit = await tx.fits.get(application)
                last_id = 0 if fit is None else fit.last_pattern_id
                if await tx.patterns.count_since(application, last_id) < self._fit_every:
                    return
            self._fit.start(application)
        except (StoreError, OSError) as error:
            logger.warning("%s is not fitted now: %s", application, error)

    def close(self) -> None:
        """Nothing is fitted from here on; a fit that was begun goes on."""
        if self._fit is not None:
            self._fit.close()

    async def _refreshed(self, application: str, known: Knowledge | None) -> Knowledge:
        """What was known, with the runs that ended since, or all anew after a fit."""
        async with self._store.reading() as tx:
            fit = await tx.fits.get(application)
            if known is None or fit != known.fit:
                known = None
                records = await tx.patterns.of_application(
                    application, in_library=True, limit=CAPACITY
                )
                calls = await tx.calls.length_samples(application, limit=REPLAYED_CALLS)
            else:
                newer = await tx.patterns.count_since(application, known.newest_id)
                limit = min(newer, CAPACITY)
                records = await tx.patterns.of_application(application, limit=limit)
        if known is None:
            return await asyncio.to_thread(
                learned, application, records, calls, fit=fit, models=self._models
            )
        return await asyncio.to_thread(_with_newer, known, records) if records else known


def learned(
    application: str,
    records: Sequence[PatternRecord],
    calls: Sequence[LengthSample],
    *,
    fit: FitRecord | None,
    models: Path | None,
) -> Knowledge:
    """Knowledge from what a store holds; what cannot be read is logged, and left out.

    Args:
        records: the library's patterns, in any order.
        calls: oldest first.
    """
    kept = kept_patterns(records)
    samples = length_samples(calls)
    model = None if models is None else load_lengths(models, application)
    return Knowledge(
        application=application,
        library=PatternLibrary(kept, kernel_of(fit)),
        analyzer=RequestAnalyzer.replay(samples, model),
        runs=_runs_of(records),
        newest_id=max((_id_of(record) for record in records), default=0),
        fit=fit,
    )


def kept_patterns(records: Sequence[PatternRecord]) -> tuple[KeptPattern, ...]:
    """The patterns of records, oldest first; those that cannot be read are logged."""
    kept = []
    for record in sorted(records, key=_id_of):
        try:
            stages = decode(record.document).stages
        except CodecError as error:
            logger.warning("pattern %s cannot be learned from: %s", record.id, error)
            continue
        used_at = record.used_at or record.created_at
        kept.append(
            KeptPattern(
                key=_id_of(record),
                stages=stages,
                used_at_s=used_at.timestamp(),
                weight=record.weight,
                uses=record.uses,
            )
        )
    return tuple(kept)


def length_samples(calls: Sequence[LengthSample]) -> list[Sample]:
    """Finished calls as the analyzer learns from them; those that cannot be read are logged."""
    samples = []
    for call in calls:
        try:
            features = CallFeatures.decode(call.identity, call.features)
        except (CorruptFeatures, UnknownFeaturesVersion) as error:
            logger.warning("a call of run %s cannot be learned from: %s", call.run_id, error)
            continue
        began, ended = call.began_at.timestamp(), call.ended_at.timestamp()
        samples.append(Sample(features, call.output_tokens, began, ended))
    return samples


def _with_newer(known: Knowledge, records: Sequence[PatternRecord]) -> Knowledge:
    library = known.library.added(kept_patterns([r for r in records if r.weight > 0]))
    if len(library) > CAPACITY + SPARE:
        library = library.evicted(max(pattern.used_at_s for pattern in library.patterns))
    return replace(
        known,
        library=library,
        runs=known.runs | _runs_of(records),
        newest_id=max(_id_of(record) for record in records),
    )


def kernel_of(fit: FitRecord | None) -> StageKernel:
    """The kernel that a fit chose; the default before the first, and where it cannot be read."""
    if fit is None:
        return DEFAULT_KERNEL
    try:
        return StageKernel.from_document(fit.kernel)
    except CorruptKernel as error:
        logger.warning("the kernel of %s is not used: %s", fit.application, error)
        return DEFAULT_KERNEL


def _runs_of(records: Sequence[PatternRecord]) -> dict[int, str | None]:
    return {_id_of(record): record.run_id for record in records}


def _id_of(record: PatternRecord) -> int:
    assert record.id is not None, "the store gives ids"
    return record.id
