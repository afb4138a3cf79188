"""Runtimes on scripted engines and SQLite files, and access to what their stores hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, settings

from orchestrator import Runtime, Settings, llm, open_runtime, step
from orchestrator.clock import Clock
from orchestrator.events import Listener
from orchestrator.testing import ScriptedEngine
from patterns import PatternGraph, decode
from serving.generation import Engine, GenerationRequest
from store.records import CallRecord, PatternRecord, RunRecord, Status, StepKind, StepRecord
from store.session import Store

T = TypeVar("T")

# Property tests without a time limit: each example makes a store of its own.
law = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Boom(Exception):
    """The error that flows of tests raise."""


NEVER_S = 3600.0
"""Seconds that no test waits for: a test that does has failed."""


def answer_ok(request: GenerationRequest) -> str:
    """The script of an engine with a constant answer."""
    return "all is well"


def store_url(folder: Path) -> str:
    """The URL of the store that `scripted_runtime` makes in a folder."""
    return f"sqlite:///{folder / 'store.db'}"


@asynccontextmanager
async def scripted_runtime(
    folder: Path,
    engine: ScriptedEngine | None = None,
    *,
    durable: bool = True,
    record_text: bool = False,
    on_event: Listener | None = None,
    clock: Clock | None = None,
    engines: Mapping[str, Engine] | None = None,
) -> AsyncIterator[Runtime]:
    """A runtime with a store in the folder; its engine answers "all is well" by default."""
    settings = Settings(
        store=store_url(folder), durable=durable, record_text=record_text, fit_every=0
    )
    engine = engine or ScriptedEngine(answer_ok)
    async with open_runtime(
        settings, engine=engine, engines=engines, on_event=on_event, clock=clock
    ) as runtime:
        yield runtime


async def until_generating(engine: ScriptedEngine) -> None:
    """Wait until an engine is answering a request."""
    async with asyncio.timeout(30):
        while not engine.num_running:  # noqa: ASYNC110 - it has no event to wait for
            await asyncio.sleep(0.001)


async def as_coroutine(work: Awaitable[T]) -> T:
    """Any awaitable as a coroutine, from which asyncio can make a task."""
    return await work


@step
async def ask(prompt: str = "how is it?") -> str:
    """The default step of tests: one LLM call."""
    return await llm(prompt)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Everything that a store holds about one run."""

    run: RunRecord
    journal: dict[str, StepRecord]
    calls: Sequence[CallRecord]
    edges: set[tuple[int, int]]
    pattern_records: Sequence[PatternRecord]

    @property
    def steps(self) -> dict[str, StepRecord]:
        """The steps of the journal that are neither calls nor values."""
        kinds = {path: step.kind for path, step in self.journal.items()}
        return {path: self.journal[path] for path in kinds if kinds[path] is StepKind.STEP}

    @property
    def pattern(self) -> PatternGraph:
        """The pattern that the run left; it must have left one."""
        [record] = self.pattern_records
        return decode(record.document)

    def still_running(self) -> list[str]:
        """The run, steps and calls that are recorded as running."""
        parts = {f"step {path}": step.status for path, step in self.journal.items()}
        parts |= {f"call {call.node}": call.status for call in self.calls}
        parts["run"] = self.run.status
        return [name for name, status in parts.items() if status is Status.RUNNING]


async def recorded(store: Store, run_id: str) -> Recorded:
    """Everything that a store holds about a run."""
    async with store.reading() as tx:
        run = await tx.runs.get(run_id)
        patterns = await tx.patterns.of_application(run.flow)
        return Recorded(
            run=run,
            journal={step.path: step for step in await tx.journal.of_run(run_id)},
            calls=await tx.calls.of_run(run_id),
            edges={(edge.parent, edge.child) for edge in await tx.calls.edges_of_run(run_id)},
            pattern_records=[pattern for pattern in patterns if pattern.run_id == run_id],
        )


async def the_run(store: Store) -> Recorded:
    """Everything that a store holds about its only run."""
    async with store.reading() as tx:
        [run] = await tx.runs.newest()
    return await recorded(store, run.id)


async def all_runs(store: Store) -> list[Recorded]:
    """Everything that a store holds about each of its runs, oldest first."""
    async with store.reading() as tx:
        runs = await tx.runs.newest()
    return [await recorded(store, run.id) for run in reversed(runs)]
