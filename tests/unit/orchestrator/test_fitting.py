"""What a fit makes of recorded runs, and that later runs use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from filelock import FileLock

from orchestrator import Runtime
from orchestrator.background import BackgroundFit, fit_alone
from orchestrator.deadlines import LEARNED
from orchestrator.fitting import FitReport, fit_application
from orchestrator.knowledge import kept_patterns
from orchestrator.models import model_file, models_folder
from patterns.codec import CODEC_VERSION, encode
from patterns.graph import PatternGraph
from patterns.library import CAPACITY
from patterns.nodes import LlmNode
from serving.errors import ModelNotSaved
from store.records import PatternRecord
from store.session import Store, open_store
from tests.unit.orchestrator.orchestrator_samples import recorded, scripted_runtime, store_url
from tests.unit.orchestrator.test_knowledge import usual

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(store_url(tmp_path)) as opened:
        yield opened


async def record(store: Store, number: int, **changes: object) -> None:
    """Patterns of past runs of three kinds, the longer the answers the slower."""
    async with store.transaction() as tx:
        for place in range(number):
            nodes = tuple(
                LlmNode(f"demo:{name}", 100, 50 * (1 + place % 3) ** 3, seconds)
                for name, seconds in (("plan", 1.0), ("write", 3.0 * (1 + place % 3)))
            )
            document = encode(PatternGraph(nodes, ((0, 1),)).canonical())
            given = {"created_at": NOW - timedelta(minutes=number - place)} | changes
            await tx.patterns.add(PatternRecord("app", document, CODEC_VERSION, **given))  # type: ignore[arg-type]


async def fitted(store: Store, folder: Path, **options: object) -> FitReport:
    return await fit_application(store, "app", models=folder, now=NOW, **options)  # type: ignore[arg-type]


async def weights(store: Store) -> list[float]:
    async with store.reading() as tx:
        return [pattern.weight for pattern in await tx.patterns.of_application("app")]


async def test_a_library_within_its_budget_keeps_every_run(store: Store, tmp_path: Path) -> None:
    await record(store, 12)
    report = await fitted(store, tmp_path)
    assert (report.num_runs, report.num_patterns, report.num_evicted) == (12, 12, 0)
    assert await weights(store) == [1.0] * 12
    async with store.reading() as tx:
        fit = await tx.fits.get("app")
    assert fit is not None
    assert (fit.fitted_at, fit.num_patterns, fit.kernel) == (NOW, 12, report.kernel.to_document())


async def test_medoids_stand_for_all_runs_within_the_budget(store: Store, tmp_path: Path) -> None:
    await record(store, 30)
    report = await fitted(store, tmp_path, budget_bytes=300)
    assert 1 <= report.num_patterns < 30
    assert report.library_bytes <= 300
    found = await weights(store)
    assert sum(found) == 30
    assert sum(weight > 0 for weight in found) == report.num_patterns


async def test_fitting_again_starts_from_all_recorded_runs(store: Store, tmp_path: Path) -> None:
    """What was compacted is not compacted further: a second fit gives the same library."""
    await record(store, 30)
    first = await fitted(store, tmp_path, budget_bytes=300)
    before = await weights(store)
    assert await fitted(store, tmp_path, budget_bytes=300) == first
    assert await weights(store) == before


async def test_three_groups_of_runs_make_three_patterns_by_silhouette(
    store: Store, tmp_path: Path
) -> None:
    await record(store, 30)
    report = await fitted(store, tmp_path, by_silhouette=True)
    assert report.num_patterns == 3
    assert sorted(weight for weight in await weights(store) if weight) == [10.0] * 3


async def test_at_the_capacity_the_least_used_runs_are_forgotten(
    store: Store, tmp_path: Path
) -> None:
    await record(store, CAPACITY + 7, created_at=NOW - timedelta(days=2), uses=1.0)
    await record(store, 3, created_at=NOW - timedelta(days=3), uses=0.5)
    report = await fitted(store, tmp_path)
    assert report.num_evicted == 10
    async with store.reading() as tx:
        left = await tx.patterns.of_application("app")
    assert len(left) == CAPACITY
    assert {pattern.uses for pattern in left} == {1.0}


async def test_an_application_without_runs_can_be_fitted(store: Store, tmp_path: Path) -> None:
    report = await fitted(store, tmp_path)
    assert (report.num_runs, report.num_patterns, report.has_length_model) == (0, 0, False)


async def learned_from(runtime: Runtime, num_runs: int, tmp_path: Path) -> FitReport:
    for _ in range(num_runs):
        await runtime.run(usual)
    return await fit_application(
        runtime.store,
        "usual",
        models=models_folder(store_url(tmp_path)),
        now=datetime.now(UTC),
    )


async def test_with_enough_calls_a_forest_bounds_the_next_runs_answers(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        report = await learned_from(runtime, 50, tmp_path)
        assert (report.num_calls, report.has_length_model) == (200, True)
        result = await runtime.run(usual)
        found = await recorded(runtime.store, result.run_id)
    assert {call.bound_source for call in found.calls} == {"forest"}
    assert {call.length_bound for call in found.calls} == {3.0}
    assert {stage.source for stage in result.stages} == {LEARNED}


async def test_with_fewer_calls_there_is_no_forest(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        report = await learned_from(runtime, 4, tmp_path)
    assert (report.num_calls, report.has_length_model) == (16, False)
    assert not models_folder(store_url(tmp_path)).exists()


async def test_a_length_model_that_cannot_be_saved_changes_nothing(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        for _ in range(50):
            await runtime.run(usual)
        models = tmp_path / "models"
        models.mkdir()
        model_file(models, "usual").mkdir()  # nothing can take its place
        with pytest.raises(ModelNotSaved):
            await fit_application(runtime.store, "usual", models=models, now=datetime.now(UTC))
        async with runtime.store.reading() as tx:
            assert await tx.fits.get("usual") is None


async def test_only_one_fit_of_an_application_works_at_a_time(tmp_path: Path) -> None:
    async with await open_store(store_url(tmp_path)) as store:
        await record(store, 5)
        models = models_folder(store_url(tmp_path))
        models.mkdir()
        with FileLock(model_file(models, "app").with_suffix(".lock")):
            assert not await fit_alone(store_url(tmp_path), "app")
        async with store.reading() as tx:
            assert await tx.fits.get("app") is None
        assert await fit_alone(store_url(tmp_path), "app")
        async with store.reading() as tx:
            assert await tx.fits.get("app") is not None


async def test_a_fit_in_a_process_of_its_own_changes_what_the_next_run_knows(
    tmp_path: Path,
) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        await runtime.run(usual)
        background = BackgroundFit(store_url(tmp_path))
        background.start("usual")
        async with asyncio.timeout(120):
            while True:
                async with runtime.store.reading() as tx:
                    fit = await tx.fits.get("usual")
                if fit is not None:
                    break
                await asyncio.sleep(0.05)
        await runtime.run(usual)
    background.close()


def test_patterns_come_oldest_first() -> None:
    document = encode(PatternGraph((LlmNode("demo:plan", 1, 1, 1.0),)))
    records = [
        PatternRecord("app", document, CODEC_VERSION, NOW, id=number, used_at=NOW)
        for number in (3, 1, 2)
    ]
    assert [pattern.key for pattern in kept_patterns(records)] == [1, 2, 3]
