"""Fits from recorded runs, and their use by later runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator import Runtime
from orchestrator.learning.background_fit import BackgroundFit, fit_alone, lock_of
from orchestrator.learning.fitting import FitReport, fit_application
from orchestrator.learning.knowledge import readable_patterns
from orchestrator.learning.model_files import model_file, models_folder
from orchestrator.learning.stage_deadlines import LEARNED
from patterns.codec import CODEC_VERSION, encode
from patterns.graph import PatternGraph
from patterns.library import CAPACITY, decayed
from patterns.nodes import LlmNode
from store.records import PatternRecord
from store.session import Store, open_store
from tests.unit.orchestrator.learning_samples import typical
from tests.unit.orchestrator.orchestrator_samples import recorded, scripted_runtime, store_url

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(store_url(tmp_path)) as opened:
        yield opened


async def record(store: Store, number: int, **changes: object) -> None:
    """Record patterns of past runs of three kinds; longer answers take more time."""
    async with store.transaction() as tx:
        for index in range(number):
            kind = 1 + index % 3
            nodes = tuple(
                LlmNode(f"demo:{name}", 100, 50 * kind**3, seconds)
                for name, seconds in (("plan", 1.0), ("write", 3.0 * kind))
            )
            document = encode(PatternGraph(nodes, ((0, 1),)).canonical())
            fields = {"created_at": NOW - timedelta(minutes=number - index)} | changes
            await tx.patterns.add(PatternRecord("app", document, CODEC_VERSION, **fields))  # type: ignore[arg-type]


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


async def test_beyond_the_budget_medoids_represent_all_runs(store: Store, tmp_path: Path) -> None:
    await record(store, 30)
    report = await fitted(store, tmp_path, budget_bytes=300)
    assert 1 <= report.num_patterns < 30
    assert report.library_bytes <= 300
    fitted_weights = await weights(store)
    assert sum(fitted_weights) == 30
    assert sum(weight > 0 for weight in fitted_weights) == report.num_patterns


async def test_fitting_again_starts_from_all_recorded_runs(store: Store, tmp_path: Path) -> None:
    """A reduced library is not reduced further: a second fit gives the same library."""
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


async def test_beyond_the_capacity_the_least_used_patterns_are_deleted(
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


async def fit_after_runs(runtime: Runtime, num_runs: int, tmp_path: Path) -> FitReport:
    for _ in range(num_runs):
        await runtime.run(typical)
    return await fit_application(
        runtime.store,
        "typical",
        models=models_folder(store_url(tmp_path)),
        now=datetime.now(UTC),
    )


@pytest.mark.slow
async def test_with_enough_calls_a_length_model_predicts_the_next_runs_answers(
    tmp_path: Path,
) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        report = await fit_after_runs(runtime, 50, tmp_path)
        assert (report.num_calls, report.has_length_model) == (200, True)
        result = await runtime.run(typical)
        calls = (await recorded(runtime.store, result.run_id)).calls
    assert {call.bound_source for call in calls} == {"forest"}
    assert {call.length_bound for call in calls} == {3.0}
    assert {stage.source for stage in result.stages} == {LEARNED}


async def test_with_fewer_calls_no_length_model_is_fitted(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        report = await fit_after_runs(runtime, 4, tmp_path)
    assert (report.num_calls, report.has_length_model) == (16, False)
    assert not models_folder(store_url(tmp_path)).exists()


@pytest.mark.slow
async def test_if_the_length_model_cannot_be_saved_the_rest_is_fitted(
    tmp_path: Path,
) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        for _ in range(50):
            await runtime.run(typical)
        models = tmp_path / "models"
        models.mkdir()
        model_file(models, "typical").mkdir()  # a file cannot replace a directory
        report = await fit_application(
            runtime.store, "typical", models=models, now=datetime.now(UTC)
        )
        async with runtime.store.reading() as tx:
            assert await tx.fits.get("typical") is not None
    assert not report.has_length_model
    assert "Is a directory" in str(report.length_error)


async def test_only_one_fit_of_an_application_runs_at_a_time(tmp_path: Path) -> None:
    async with await open_store(store_url(tmp_path)) as store:
        await record(store, 5)
        with lock_of(store_url(tmp_path), "app"):
            assert not await fit_alone(store_url(tmp_path), "app")
        async with store.reading() as tx:
            assert await tx.fits.get("app") is None
        assert await fit_alone(store_url(tmp_path), "app")
        async with store.reading() as tx:
            assert await tx.fits.get("app") is not None


@pytest.mark.usefixtures("subprocesses")
async def test_a_background_fit_changes_what_the_next_run_knows(
    tmp_path: Path,
) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        await runtime.run(typical)
        background = BackgroundFit(store_url(tmp_path))
        for _ in range(5):
            background.start("typical")
        assert len(background._watchers) == 1
        async with asyncio.timeout(120):
            while True:
                async with runtime.store.reading() as tx:
                    fit = await tx.fits.get("typical")
                if fit is not None:
                    break
                await asyncio.sleep(0.05)
        await runtime.run(typical)
    [watcher] = background._watchers.values()
    await asyncio.to_thread(watcher.join, 60)
    assert not watcher.is_alive()


@pytest.mark.usefixtures("subprocesses")
async def test_a_failed_background_fit_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "store.db").write_bytes(b"no database" * 100)
    background = BackgroundFit(store_url(tmp_path))
    background.start("typical")
    [watcher] = background._watchers.values()
    await asyncio.to_thread(watcher.join, 60)
    assert "typical was not fitted (exit 1)" in caplog.text
    assert "StoreCorrupt" in (tmp_path / "store.models" / "fit.log").read_text()


async def test_patterns_that_this_version_cannot_read_are_kept(
    store: Store, tmp_path: Path
) -> None:
    await record(store, 12)
    async with store.transaction() as tx:
        newer = PatternRecord("app", b"another version's", CODEC_VERSION + 1, NOW, weight=3.0)
        key = await tx.patterns.add(newer)
    report = await fitted(store, tmp_path)
    assert (report.num_unreadable, report.num_runs, report.num_evicted) == (1, 12, 0)
    async with store.reading() as tx:
        [kept] = await tx.patterns.get([key])
    assert (kept.document, kept.weight) == (newer.document, 3.0)


async def test_a_budget_holds_for_runs_of_uneven_size(store: Store, tmp_path: Path) -> None:
    """Large patterns differ from all others, so each is the medoid of its own cluster."""
    await record(store, 20)
    async with store.transaction() as tx:
        for size in range(6):
            nodes = tuple(
                LlmNode(f"demo:a step with a long name {step}", 10**size, 10**size, 1.0)
                for step in range(40)
            )
            edges = tuple((step, step + 1) for step in range(39))
            document = encode(PatternGraph(nodes, edges))
            await tx.patterns.add(PatternRecord("app", document, CODEC_VERSION, NOW))
    for budget_bytes in (10_000, 4_000, 1_000, 200):
        report = await fitted(store, tmp_path, budget_bytes=budget_bytes)
        assert report.library_bytes <= budget_bytes or report.num_patterns == 1


async def test_a_library_follows_a_lasting_change_of_runs(store: Store, tmp_path: Path) -> None:
    """At the capacity, runs of a new kind replace the old ones fit by fit."""

    async def runs(number: int, first_s: float, begin: int) -> None:
        nodes = (LlmNode("demo:plan", 100, 50, first_s), LlmNode("demo:write", 100, 50, 1.0))
        document = encode(PatternGraph(nodes, ((0, 1),)))
        for index in range(number):
            at = NOW + timedelta(hours=begin + index)
            patterns = readable_patterns(await all_of(store))
            used = {pattern.key: 1.0 / len(patterns) for pattern in patterns}
            async with store.transaction() as tx:
                await tx.patterns.add(PatternRecord("app", document, CODEC_VERSION, at, uses=1.0))

            def used_more(key: int, uses: float, used_at: datetime) -> float:
                return decayed(uses, (at - used_at).total_seconds()) + used[key]  # noqa: B023

            async with store.transaction() as tx:
                await tx.patterns.update_uses(used.keys(), used_more, at=at)

    capacity = 30
    for start, first_s in ((0, 9.0), (40, 0.1)):
        for offset in range(0, 40, 10):
            await runs(10, first_s, start + offset)
            now = NOW + timedelta(hours=start + offset + 10)
            await fit_application(store, "app", models=tmp_path, now=now, capacity=capacity)
    left = readable_patterns(await all_of(store))
    assert len(left) == capacity
    assert {round(pattern.stages[0].seconds, 1) for pattern in left} == {0.1}


async def all_of(store: Store) -> Sequence[PatternRecord]:
    async with store.reading() as tx:
        return await tx.patterns.of_application("app")


def test_readable_patterns_are_sorted_oldest_first() -> None:
    document = encode(PatternGraph((LlmNode("demo:plan", 1, 1, 1.0),)))
    records = [
        PatternRecord("app", document, CODEC_VERSION, NOW, id=number, used_at=NOW)
        for number in (3, 1, 2)
    ]
    assert [pattern.key for pattern in readable_patterns(records)] == [1, 2, 3]
