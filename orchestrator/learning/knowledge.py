"""What past runs taught: loaded when a run begins, brought up to date as others end.

Nothing is learned in a call's way: a run takes what is known as it begins, its end is recorded
for later ones, and fitting goes on in another process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from orchestrator.learning.model_files import load_lengths
from patterns.codec import decode
from patterns.errors import CodecError, CorruptKernel
from patterns.kernel import DEFAULT_KERNEL, StageKernel
from patterns.library import CAPACITY, KeptPattern, PatternLibrary, used_more
from serving.analyzer.analyzer import RequestAnalyzer
from serving.analyzer.features import CallFeatures
from serving.analyzer.samples import Sample
from serving.errors import CorruptFeatures, UnknownFeaturesVersion
from store.errors import StoreCorrupt, StoreError
from store.records import FitRecord, LengthSample, PatternRecord
from store.session import Store

logger = logging.getLogger("orchestrate")

REPLAYED_CALLS = 1000
"""The newest calls from which the recent history of each step is taken up."""

MOST_USES = 1e12
"""No pattern stands for, or served, as many runs: a greater number is damage."""

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
        """Begin, unless one that was begun here is under way; returns at once."""
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
        self._tried: dict[str, int] = {}  # the newest pattern when a fit was last begun here
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def knowledge_of(self, application: str) -> Knowledge:
        """What is known of an application now.

        What is recorded of it may be damaged: that is logged, and costs what could be learned,
        never the run.

        Raises:
            StoreError: the store cannot be read.
        """
        async with self._locks[application]:
            try:
                known = await self._refreshed(application, self._known.get(application))
            except Exception as error:
                if isinstance(error, StoreError) and not isinstance(error, StoreCorrupt):
                    raise
                logger.warning(
                    "nothing is learned from past runs of %s now: %s: %s",
                    application,
                    type(error).__name__,
                    error,
                )
                return Knowledge(application)
            self._known[application] = known
            return known

    async def run_ended(self, application: str, *, used: Mapping[int, float], at: datetime) -> None:
        """A run's end is recorded: count what served it, and see whether a fit is due.

        Neither is worth a failed run: what goes wrong here is logged.

        Args:
            used: how much it rested on past runs, by the keys of their patterns.
        """
        try:
            if used:
                await self._count(used, at)
            if self._fit is not None and await self._is_due(application):
                self._fit.start(application)
        except Exception as error:
            logger.warning(
                "a run of %s is recorded, but not learned from now: %s: %s",
                application,
                type(error).__name__,
                error,
            )

    async def _count(self, used: Mapping[int, float], at: datetime) -> None:
        def rule(key: int, uses: float, used_at: datetime) -> float:
            sound = uses if 0 <= uses < MOST_USES else 0.0
            return used_more(sound, (at - used_at).total_seconds(), used[key])

        async with self._store.transaction() as tx:
            await tx.patterns.update_uses(used.keys(), rule, at=at)

    async def _is_due(self, application: str) -> bool:
        async with self._store.reading() as tx:
            fit = await tx.fits.get(application)
            last_id = max(
                self._tried.get(application, 0), 0 if fit is None else fit.last_pattern_id
            )
            if await tx.patterns.count_since(application, last_id) < self._fit_every:
                return False
            self._tried[application] = await tx.patterns.newest_id(application) or 0
            return True

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
    faults = []
    for record in sorted(records, key=_id_of):
        try:
            kept.append(_kept(record))
        except (CodecError, ValueError) as error:
            faults.append(f"pattern {record.id}: {error}")
    _say_left_out("patterns", faults)
    return tuple(kept)


def length_samples(calls: Sequence[LengthSample]) -> list[Sample]:
    """Finished calls as the analyzer learns from them; those that cannot be read are logged."""
    samples = []
    faults = []
    for call in calls:
        try:
            samples.append(_sample(call))
        except (CorruptFeatures, UnknownFeaturesVersion, ValueError) as error:
            faults.append(f"a call of run {call.run_id}: {error}")
    _say_left_out("calls", faults)
    return samples


def _kept(record: PatternRecord) -> KeptPattern:
    if not (0 <= record.weight <= MOST_USES and 0 <= record.uses <= MOST_USES):  # NaN is not
        raise ValueError(f"weight {record.weight}, uses {record.uses}")
    used_at = record.used_at or record.created_at
    return KeptPattern(
        key=_id_of(record),
        stages=decode(record.document).stages,
        recorded_at_s=record.created_at.timestamp(),
        weight=record.weight,
        uses=record.uses,
        used_at_s=used_at.timestamp(),
    )


def _sample(call: LengthSample) -> Sample:
    run_s = call.run_started_at.timestamp()
    features = CallFeatures.decode(call.identity, call.features)
    return Sample(features, call.output_tokens, run_s + call.started_s, run_s + call.finished_s)


def _say_left_out(what: str, faults: Sequence[str]) -> None:
    if faults:
        others = f", like {len(faults) - 1} other {what}" if len(faults) > 1 else ""
        logger.warning("left out of what is learned: %s%s", faults[0], others)


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
