"""What a store has learned of each application, read for the commands that show it."""

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
class Learned:
    """What is known of one application.

    Attributes:
        num_kept: patterns in the store, in the library or not; a fit forgets the least used.
        patterns: the library's, oldest first.
        runs: the run that left each of them, by its key.
        fit: the last one; None: never fitted.
        num_since: runs that came after it; all of them without one.
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
        """The fewest and the most stages of a pattern; None without any."""
        numbers = [len(pattern.stages) for pattern in self.patterns]
        return (min(numbers), max(numbers)) if numbers else None

    @property
    def lengths(self) -> LengthSource:
        """What the next run's answers will be bounded by."""
        counts = Counter(sample.identity for sample in self.samples[-REPLAYED_CALLS:])
        return LengthSource(
            self.num_forest_calls,
            num_steps=len(counts),
            num_known_steps=sum(count >= MIN_STEP_CALLS for count in counts.values()),
        )


@dataclass(frozen=True, slots=True)
class LengthSource:
    """What bounds the lengths of an application's answers.

    Attributes:
        num_forest_calls: calls that a forest was fitted on; None: there is none.
        num_steps: LLM steps that are known.
        num_known_steps: those with enough answers of their own.
    """

    num_forest_calls: int | None
    num_steps: int
    num_known_steps: int

    @property
    def source(self) -> str:
        """The name under which a call's record has it."""
        if self.num_forest_calls is not None:
            return "forest"
        return "step" if self.num_known_steps else "limit"

    def __str__(self) -> str:
        if self.num_forest_calls is not None:
            return f"forest on {self.num_forest_calls:,} calls"
        if not self.num_known_steps:
            return "limits only"
        if self.num_known_steps == self.num_steps:
            return "last answers"
        return f"last answers, {self.num_known_steps}/{self.num_steps} steps"


async def learned_of_all(url: str) -> list[Learned]:
    """What is known of every application, by name; none where there is no store yet."""
    store = await existing_store(url)
    if store is None:
        return []
    async with store, store.reading() as tx:
        counts = await tx.patterns.count_by_application()
        models = models_folder(url)
        return [
            await _learned(tx, name, num_kept, models=models, most_calls=REPLAYED_CALLS)
            for name, num_kept in counts.items()
        ]


async def learned_of(url: str, application: str) -> Learned:
    """What is known of one application; raises BadInput for one that is not known."""
    store = await existing_store(url)
    if store is None:
        raise BadInput(NO_RUNS)
    async with store, store.reading() as tx:
        counts = await tx.patterns.count_by_application()
        check_known([application], counts)
        num_kept = counts[application]
        models = models_folder(url)
        return await _learned(tx, application, num_kept, models=models, most_calls=MAX_CALLS)


async def library_sizes(url: str) -> dict[str, int]:
    """How many patterns each application's library has, by name; none where there is no store."""
    store = await existing_store(url)
    if store is None:
        return {}
    async with store, store.reading() as tx:
        return {
            name: len(await tx.patterns.of_application(name, in_library=True))
            for name in await tx.patterns.count_by_application()
        }


def check_known(wanted: Sequence[str], known: Mapping[str, object]) -> None:
    """Raise BadInput for the first application that has left no pattern."""
    for application in wanted:
        if not known:
            raise BadInput(NO_RUNS)
        if application not in known:
            names = ", ".join(known)
            raise BadInput(f"nothing is learned of {application!r}; there are patterns of: {names}")


async def _learned(
    tx: Transaction, application: str, num_kept: int, *, models: Path, most_calls: int
) -> Learned:
    records = await tx.patterns.of_application(application, in_library=True)
    fit = await tx.fits.get(application)
    last_id = 0 if fit is None else fit.last_pattern_id
    model = load_lengths(models, application)
    return Learned(
        application,
        num_kept,
        patterns=readable_patterns(records),
        runs={record.id: record.run_id for record in records if record.id is not None},
        fit=fit,
        num_since=await tx.patterns.count_since(application, last_id),
        kernel=kernel_of(fit),
        samples=await tx.calls.length_samples(application, limit=most_calls),
        num_forest_calls=None if model is None else model.num_calls,
    )
