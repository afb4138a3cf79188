"""Knowledge from past runs: loaded when a run begins, updated as other runs end.

No call waits for learning: a run uses what is known when it begins, its end is recorded for later
runs, and fits run in another process.
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
from patterns.codec import stages_in
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
"""Number of newest calls from which the analyzer's recent history of each step is restored."""

MAX_USES = 1e12
"""Larger weights and use counts of a pattern are implausible, and treated as damage."""

SPARE = 50
"""Patterns by which a library may exceed its capacity before the least used are evicted; saves an
eviction after every run."""


@dataclass(frozen=True)
class Knowledge:
    """What is known about one application.

    Attributes:
        library: patterns of past runs, with their ids as keys.
        analyzer: predicts the lengths of answers; learns as calls end.
        runs: pattern id -> id of the run that left it.
        newest_id: id of the newest pattern included; 0 without any.
        fit: the last fit included.
    """

    application: str
    library: PatternLibrary = field(default_factory=PatternLibrary)
    analyzer: RequestAnalyzer = field(default_factory=RequestAnalyzer)
    runs: dict[int, str | None] = field(default_factory=dict)
    newest_id: int = 0
    fit: FitRecord | None = None

    def without_runs(self, *run_ids: str | None) -> Knowledge:
        """The knowledge without what was learned from these runs' patterns; None: no run."""
        known = {run_id for run_id in run_ids if run_id is not None}
        keys = {key for key, run_id in self.runs.items() if run_id in known}
        return replace(self, library=self.library.without(keys)) if keys else self


class Fit(Protocol):
    """Fits applications in the background."""

    def start(self, application: str) -> None:
        """Start a fit, unless one started here still runs; returns at once."""
        ...


class Learner:
    """Keeps the knowledge about all applications of a store.

    Args:
        models: the folder of the fitted length models; None: there are none.
        fit: starts a fit after every `fit_every` runs of an application; None: no fits.
    """

    def __init__(
        self, store: Store, *, models: Path | None, fit: Fit | None = None, fit_every: int = 0
    ) -> None:
        self._store = store
        self._models = models
        self._fit = fit
        self._fit_every = fit_every
        self._known: dict[str, Knowledge] = {}
        self._fit_started_at: dict[str, int] = {}  # newest pattern id when a fit was last started
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def knowledge_of(self, application: str) -> Knowledge:
        """The current knowledge about an application.

        If its records are damaged, that is logged and the knowledge is empty; the run proceeds.

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
                    "past runs of %s are not used: %s: %s",
                    application,
                    type(error).__name__,
                    error,
                )
                return Knowledge(application)
            self._known[application] = known
            return known

    async def run_ended(self, application: str, *, used: Mapping[int, float], at: datetime) -> None:
        """After a run's end is recorded: count the patterns it used, and start a fit if due.

        Errors are logged and not raised: they must not make the run fail.

        Args:
            used: pattern key -> weight with which the run used it.
            at: wall time of the run's end.
        """
        try:
            if used:
                await self._count_uses(used, at)
            if self._fit is not None and await self._is_due(application):
                self._fit.start(application)
        except Exception as error:
            logger.warning(
                "a run of %s is recorded, but could not be learned from: %s: %s",
                application,
                type(error).__name__,
                error,
            )

    async def _count_uses(self, used: Mapping[int, float], at: datetime) -> None:
        def new_uses(key: int, uses: float, used_at: datetime) -> float:
            plausible = uses if 0 <= uses < MAX_USES else 0.0
            return used_more(plausible, (at - used_at).total_seconds(), used[key])

        async with self._store.transaction() as tx:
            await tx.patterns.update_uses(used.keys(), new_uses, at=at)

    async def _is_due(self, application: str) -> bool:
        async with self._store.reading() as tx:
            fit = await tx.fits.get(application)
            last_id = max(
                self._fit_started_at.get(application, 0), 0 if fit is None else fit.last_pattern_id
            )
            if await tx.patterns.count_since(application, last_id) < self._fit_every:
                return False
            self._fit_started_at[application] = await tx.patterns.newest_id(application) or 0
            return True

    async def _refreshed(self, application: str, known: Knowledge | None) -> Knowledge:
        """The knowledge with the runs that ended since; loaded completely after a new fit."""
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
                build_knowledge, application, records, calls, fit=fit, models=self._models
            )
        return await asyncio.to_thread(_with_newer, known, records) if records else known


def build_knowledge(
    application: str,
    records: Sequence[PatternRecord],
    calls: Sequence[LengthSample],
    *,
    fit: FitRecord | None,
    models: Path | None,
) -> Knowledge:
    """The knowledge from an application's records; unreadable ones are logged and left out.

    Args:
        records: the library's patterns, in any order.
        calls: recent calls, oldest first.
    """
    patterns = readable_patterns(records)
    samples = length_samples(calls)
    model = None if models is None else load_lengths(models, application)
    return Knowledge(
        application=application,
        library=PatternLibrary(patterns, kernel_of(fit)),
        analyzer=RequestAnalyzer.replay(samples, model),
        runs=_runs_of(records),
        newest_id=max((_id_of(record) for record in records), default=0),
        fit=fit,
    )


def readable_patterns(records: Sequence[PatternRecord]) -> tuple[KeptPattern, ...]:
    """The patterns of records, oldest first, without those that cannot be read (logged)."""
    patterns = []
    faults = []
    for record in sorted(records, key=_id_of):
        try:
            patterns.append(_pattern_of(record))
        except (CodecError, ValueError) as error:
            faults.append(f"pattern {record.id}: {error}")
    _log_faults("patterns", faults)
    return tuple(patterns)


def length_samples(calls: Sequence[LengthSample]) -> list[Sample]:
    """Finished calls in the analyzer's form, without those that cannot be read (logged)."""
    samples = []
    faults = []
    for call in calls:
        try:
            samples.append(_sample(call))
        except (CorruptFeatures, UnknownFeaturesVersion, ValueError) as error:
            faults.append(f"a call of run {call.run_id}: {error}")
    _log_faults("calls", faults)
    return samples


def _pattern_of(record: PatternRecord) -> KeptPattern:
    if not (0 <= record.weight <= MAX_USES and 0 <= record.uses <= MAX_USES):  # also for NaN
        raise ValueError(f"weight {record.weight}, uses {record.uses}")
    used_at = record.used_at or record.created_at
    return KeptPattern(
        key=_id_of(record),
        stages=stages_in(record.document),
        recorded_at_s=record.created_at.timestamp(),
        weight=record.weight,
        uses=record.uses,
        used_at_s=used_at.timestamp(),
        is_cut_off=record.is_cut_off,
    )


def _sample(call: LengthSample) -> Sample:
    run_s = call.run_started_at.timestamp()
    features = CallFeatures.decode(call.identity, call.features)
    return Sample(features, call.output_tokens, run_s + call.started_s, run_s + call.finished_s)


def _log_faults(what: str, faults: Sequence[str]) -> None:
    if faults:
        others = f" (and {len(faults) - 1} other {what})" if len(faults) > 1 else ""
        logger.warning("skipped as unreadable: %s%s", faults[0], others)


def _with_newer(known: Knowledge, records: Sequence[PatternRecord]) -> Knowledge:
    # The pattern of a run that was resumed and has ended again replaces its former one.
    former = known.without_runs(*(record.run_id for record in records)).library
    library = former.added(readable_patterns([r for r in records if r.weight > 0]))
    if len(library) > CAPACITY + SPARE:
        library = library.evicted(max(pattern.used_at_s for pattern in library.patterns))
    return replace(
        known,
        library=library,
        runs=known.runs | _runs_of(records),
        newest_id=max(_id_of(record) for record in records),
    )


def kernel_of(fit: FitRecord | None) -> StageKernel:
    """The kernel that a fit chose; the default without a fit or if it cannot be read."""
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
