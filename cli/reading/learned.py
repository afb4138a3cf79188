"""Reads what has been learned about applications: patterns, fits, length models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli.errors import BadInput
from cli.reading.store_reader import existing_store
from orchestrator.learning.knowledge import REPLAYED_CALLS, kernel_of, readable_patterns
from orchestrator.learning.model_files import load_lengths, models_folder
from patterns.kernel import DEFAULT_KERNEL, StageKernel
from patterns.library import KeptPattern
from serving.analyzer.analyzer import MIN_STEP_CALLS
from serving.analyzer.fitted import MAX_CALLS
from store.records import FitRecord, LengthSample
from store.unit_of_work import Transaction

NO_RUNS = "no runs to learn from yet: try `orchestrate run`"


@dataclass(frozen=True, slots=True)
class LearnedData:
    """What has been learned about one application.

    Attributes:
        num_kept: patterns in the store, in the library or not; a fit deletes the least used.
        patterns: those of the library, oldest first.
        runs: pattern key -> id of the run that it was recorded from; None if unknown.
        fit: the latest fit; None: never fitted.
        num_since: patterns recorded since that fit, or all if there was none.
        samples: finished LLM calls, oldest first.
        num_forest_calls: calls that the length model was fitted on; None: there is no model.
    """

    application: str
    num_kept: int
    patterns: Sequence[KeptPattern] = ()
    runs: Mapping[int, str | None] = field(default_factory=dict)
    fit: FitRecord | None = None
    num_since: int = 0
    kernel: StageKernel = DEFAULT_KERNEL
    samples: Sequence[LengthSample] = ()
    num_forest_calls: int | None = None

    @property
    def stage_range(self) -> tuple[int, int] | None:
        """The smallest and the largest number of stages of a pattern; None without patterns."""
        counts = [len(pattern.stages) for pattern in self.patterns]
        return (min(counts), max(counts)) if counts else None

    @property
    def num_cut_off(self) -> int:
        """Patterns of the library that are of runs which their deadlines cut off."""
        return sum(pattern.is_cut_off for pattern in self.patterns)

    @property
    def lengths(self) -> LengthSource:
        """The source of the length bounds that the next run's calls will get."""
        counts = Counter(sample.identity for sample in self.samples[-REPLAYED_CALLS:])
        return LengthSource(
            self.num_forest_calls,
            num_steps=len(counts),
            num_known_steps=sum(count >= MIN_STEP_CALLS for count in counts.values()),
        )


@dataclass(frozen=True, slots=True)
class LengthSource:
    """Where the length bounds of an application's answers come from.

    Attributes:
        num_forest_calls: calls that the random forest was fitted on; None: there is no forest.
        num_steps: LLM steps with recorded answers.
        num_known_steps: those with enough answers (MIN_STEP_CALLS) for bounds of their own.
    """

    num_forest_calls: int | None
    num_steps: int
    num_known_steps: int

    @property
    def source(self) -> str:
        """The source's name in the records of calls."""
        if self.num_forest_calls is not None:
            return "forest"
        return "step" if self.num_known_steps else "limit"

    def __str__(self) -> str:
        if self.num_forest_calls is not None:
            return f"forest on {self.num_forest_calls:,} calls"
        if not self.num_known_steps:
            return "max_tokens only"
        if self.num_known_steps == self.num_steps:
            return "recent answers"
        return f"recent answers, {self.num_known_steps}/{self.num_steps} steps"


async def read_all_learned(url: str) -> list[LearnedData]:
    """What has been learned about each application, by name; empty if there is no store yet."""
    store = await existing_store(url)
    if store is None:
        return []
    async with store, store.reading() as tx:
        counts = await tx.patterns.count_by_application()
        models = models_folder(url)
        return [
            await _learned(tx, name, num_kept, models=models, max_calls=REPLAYED_CALLS)
            for name, num_kept in counts.items()
        ]


async def read_learned(url: str, application: str) -> LearnedData:
    """What has been learned about one application; raises BadInput if it has no patterns."""
    store = await existing_store(url)
    if store is None:
        raise BadInput(NO_RUNS)
    async with store, store.reading() as tx:
        counts = await tx.patterns.count_by_application()
        check_known([application], counts)
        num_kept = counts[application]
        models = models_folder(url)
        return await _learned(tx, application, num_kept, models=models, max_calls=MAX_CALLS)


async def library_sizes(url: str) -> dict[str, int]:
    """Application -> number of patterns in its library; empty if there is no store."""
    store = await existing_store(url)
    if store is None:
        return {}
    async with store, store.reading() as tx:
        return {
            name: len(await tx.patterns.of_application(name, in_library=True))
            for name in await tx.patterns.count_by_application()
        }


def check_known(wanted: Sequence[str], known: Mapping[str, object]) -> None:
    """Raise BadInput for the first application that has no patterns."""
    for application in wanted:
        if not known:
            raise BadInput(NO_RUNS)
        if application not in known:
            names = ", ".join(known)
            raise BadInput(f"no patterns of {application!r}; applications with patterns: {names}")


async def _learned(
    tx: Transaction, application: str, num_kept: int, *, models: Path, max_calls: int
) -> LearnedData:
    records = await tx.patterns.of_application(application, in_library=True)
    fit = await tx.fits.get(application)
    last_id = 0 if fit is None else fit.last_pattern_id
    model = load_lengths(models, application)
    return LearnedData(
        application,
        num_kept,
        patterns=readable_patterns(records),
        runs={record.id: record.run_id for record in records if record.id is not None},
        fit=fit,
        num_since=await tx.patterns.count_since(application, last_id),
        kernel=kernel_of(fit),
        samples=await tx.calls.length_samples(application, limit=max_calls),
        num_forest_calls=None if model is None else model.num_calls,
    )
