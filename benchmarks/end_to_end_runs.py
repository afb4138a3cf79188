"""Runs of two pipelines on the real engine, for `benchmarks.end_to_end`: first period, cells."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from agents.deep_research.pipeline import deep_research, expected_stages
from agents.deep_research.report import Report
from agents.tools.corpus import Corpus
from agents.tree_of_thoughts.pipeline import tree_of_thoughts
from agents.tree_of_thoughts.solution import Solution
from benchmarks.command import say
from benchmarks.end_to_end_tasks import (
    BEAM,
    DOCUMENTS,
    PATIENCE_S,
    PIPELINES,
    RESEARCH,
    ROUNDS,
    TREES,
    WIDTH,
    Arrival,
    Task,
)
from benchmarks.live import core_wait_s
from orchestrator import RunResult, Runtime, Settings, open_runtime
from orchestrator.errors import OrchestrateError
from orchestrator.learning.background_fit import fit_alone
from orchestrator.learning.fitting import FitReport
from orchestrator.learning.stage_deadlines import LEARNED
from serving.errors import ServingError
from serving.policies.table import PolicySpec


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run ended.

    Attributes:
        at_s: its arrival, as in Arrival.
        took_s: from its arrival to its end; None: it had not ended PATIENCE_S after its deadline.
        is_whole: whether its result is what it would be without a deadline: a report from which
            nothing was left out, or a solved puzzle.
        cut: what was left out, or the error, in words.
        sources: of the sub-deadline of each stage: "learned" or "fallback".
    """

    pipeline: str
    at_s: float
    deadline_s: float
    took_s: float | None
    is_whole: bool
    cut: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def in_time(self) -> bool:
        """Whether it ended by its deadline, with a whole result or not."""
        return self.took_s is not None and self.took_s <= self.deadline_s

    @property
    def is_kept(self) -> bool:
        """Whether a whole result was there by the deadline."""
        return self.in_time and self.is_whole

    @property
    def num_learned(self) -> int:
        """Stages with sub-deadlines in the proportions of past runs."""
        return self.sources.count(LEARNED)

    @property
    def is_matched(self) -> bool:
        """Whether past runs were found when its deadline was first divided."""
        return self.sources[:1] == (LEARNED,)


@dataclass(frozen=True, slots=True)
class Learned:
    """The first period: runs one at a time without deadlines, and what was made of them.

    Attributes:
        isolated_s: pipeline -> mean duration of its runs.
        fits: pipeline -> the report of its fit.
    """

    runs: int
    isolated_s: Mapping[str, float]
    fits: Mapping[str, FitReport]


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy at one load and seed.

    Attributes:
        outcomes: of the runs that arrived within the window.
        patterns: pipeline -> number of patterns in the store at the cell's end.
        waited: as `benchmarks.live` measures it.
    """

    policy: str
    load: float
    seed: int
    outcomes: tuple[Outcome, ...]
    patterns: Mapping[str, int]
    waited: float | None


class Workplace:
    """The folder, the documents and the settings of all runs.

    Args:
        folder: for stores and the index of the documents.
        model: as in the settings; None: the default one.
    """

    def __init__(self, folder: Path, *, model: str | None) -> None:
        self._folder = folder
        self._model = model
        self._corpus = Corpus.open(DOCUMENTS, index_path=folder / "documents.db")

    def url(self, name: str) -> str:
        """The store with a name."""
        return f"sqlite:///{self._folder / name / 'runs.db'}"

    def new_store(self, name: str, *, like: str | None = None) -> None:
        """Make the folder of a store, which begins as a copy of another one, its models too."""
        shutil.rmtree(self._folder / name, ignore_errors=True)
        if like is None:
            (self._folder / name).mkdir()
        else:
            shutil.copytree(self._folder / like, self._folder / name)

    @asynccontextmanager
    async def runtime(self, store: str, policy: PolicySpec) -> AsyncIterator[Runtime]:
        """A runtime with an embedded engine of its own, started; no fits beside its runs."""
        settings = Settings(
            store=self.url(store),
            engine="embedded",
            model=self._model,
            policy=policy.name,
            policy_params=dict(policy.params),
            fit_every=0,
            keep_scheduler_state=False,
        )
        async with open_runtime(settings, start=True) as runtime:
            yield runtime

    async def run(
        self, runtime: Runtime, task: Task, deadline_s: float | None = None
    ) -> RunResult[Report] | RunResult[Solution]:
        """Run a task as `orchestrate run` does."""
        if task.pipeline == RESEARCH:
            research = deep_research.options(deadline=deadline_s, stages=expected_stages(ROUNDS))
            return await runtime.run(research, task.text, self._corpus, rounds=ROUNDS, width=WIDTH)
        search = tree_of_thoughts.options(deadline=deadline_s)
        return await runtime.run(search, task.text, beam=BEAM)


async def learn(place: Workplace, store: str, chosen: Mapping[str, Sequence[Task]]) -> Learned:
    """Run tasks one at a time, record them, and fit as `orchestrate patterns fit` does."""
    place.new_store(store)
    durations_s: dict[str, list[float]] = {name: [] for name in PIPELINES}
    async with place.runtime(store, PolicySpec("fcfs")) as runtime:
        for name in PIPELINES:
            await place.run(runtime, chosen[name][0])  # the first one warms the engine up
        for together in zip(*(chosen[name] for name in PIPELINES), strict=True):
            for task in together:
                result = await place.run(runtime, task)
                durations_s[task.pipeline].append(result.elapsed_s)
    fits = {}
    for name, flow in zip(PIPELINES, (deep_research, tree_of_thoughts), strict=True):
        report = await fit_alone(place.url(store), flow.name)
        assert report is not None, "no other process knows the store"
        fits[name] = report
    means_s = {name: fmean(each) for name, each in durations_s.items()}
    return Learned(sum(report.num_runs for report in fits.values()), means_s, fits)


async def drain(place: Workplace, backlog: Sequence[Task]) -> float:
    """The rate, in runs per second, at which fcfs ends runs that all begin at once."""
    place.new_store("drained")
    async with place.runtime("drained", PolicySpec("fcfs")) as runtime:
        await warm_up(place, runtime, backlog)
        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(place.run(runtime, task) for task in backlog))
        return len(backlog) / (asyncio.get_running_loop().time() - began_s)


async def warm_up(place: Workplace, runtime: Runtime, given: Sequence[Task]) -> None:
    """Run one task of each pipeline: fills the prefix cache with what all runs share."""
    for task in {task.pipeline: task for task in given}.values():
        await place.run(runtime, task)


async def measure(
    place: Workplace,
    policy: PolicySpec,
    arrivals: Sequence[Arrival],
    *,
    load: float,
    seed: int,
    warm_up_with: Sequence[Task],
    learned: str,
) -> Cell:
    """Run arrivals under a policy, on a new engine and a copy of what was learned."""
    place.new_store("measured", like=learned)
    async with place.runtime("measured", policy) as runtime:
        await warm_up(place, runtime, warm_up_with)
        loop = asyncio.get_running_loop()
        waited_s, began_s = core_wait_s(), loop.time()
        running: list[asyncio.Task[Outcome]] = []
        counted: list[asyncio.Task[Outcome]] = []
        num_counted = sum(each.is_counted for each in arrivals)
        for arrival in arrivals:
            await asyncio.sleep(began_s + arrival.at_s - loop.time())
            if len(counted) == num_counted and all(task.done() for task in counted):
                break
            task = asyncio.create_task(outcome_of(place, runtime, arrival, began_s))
            running.append(task)
            if arrival.is_counted:
                counted.append(task)
        outcomes = await asyncio.gather(*counted)
        waited = _waited(waited_s, loop.time() - began_s)
        await _cancelled(running)
        async with runtime.store.reading() as tx:
            numbers = await tx.patterns.count_by_application()
    patterns = {RESEARCH: numbers[deep_research.name], TREES: numbers[tree_of_thoughts.name]}
    return Cell(policy.label, load, seed, tuple(outcomes), patterns, waited)


async def outcome_of(
    place: Workplace, runtime: Runtime, arrival: Arrival, began_s: float
) -> Outcome:
    """Run an arrival, and say how it ended.

    Args:
        began_s: when the cell began, on the loop's clock: the deadline counts from the arrival.
    """
    task, loop = arrival.task, asyncio.get_running_loop()
    facts = (task.pipeline, arrival.at_s, arrival.deadline_s)
    try:
        async with asyncio.timeout(arrival.deadline_s + PATIENCE_S):
            result = await place.run(runtime, task, arrival.deadline_s)
    except (OrchestrateError, ServingError) as error:
        return Outcome(*facts, None, False, (f"{type(error).__name__}: {error}",))
    except TimeoutError:
        return Outcome(*facts, None, False, ("it did not end",))
    took_s = loop.time() - began_s - arrival.at_s
    cut = cut_of(result.value)
    sources = tuple(stage.source for stage in result.stages)
    return Outcome(*facts, took_s, not cut, cut, sources)


def cut_of(value: Report | Solution) -> tuple[str, ...]:
    """What a result lacks, in words; nothing if it is whole."""
    if isinstance(value, Report):
        return value.cut
    return () if value.solved else (value.ended,)


def _waited(before_s: float | None, took_s: float) -> float | None:
    after_s = core_wait_s()
    return None if before_s is None or after_s is None else (after_s - before_s) / took_s


async def _cancelled(running: Sequence[asyncio.Task[Outcome]]) -> None:
    """Cancel runs that do not count, and wait for their ends."""
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def say_cell(cell: Cell) -> None:
    """A cell's main numbers, for progress messages."""
    kept = sum(each.is_kept for each in cell.outcomes)
    in_time = sum(each.in_time for each in cell.outcomes)
    waited = "" if cell.waited is None else f"; waited {cell.waited:.2f}"
    say(
        f"{cell.policy} at {cell.load:g}, seed {cell.seed}: {kept} kept and {in_time} in time of"
        f" {len(cell.outcomes)}{waited}"
    )
