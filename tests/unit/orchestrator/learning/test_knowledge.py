"""Knowledge from past runs: available to the next run, in this process and in others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchestrator import Runtime, flow, within
from orchestrator.learning.knowledge import SPARE, Learner
from orchestrator.learning.model_files import model_file, models_folder
from orchestrator.learning.stage_deadlines import FALLBACK, LEARNED
from patterns.library import CAPACITY
from patterns.matching import BEST_K
from serving.slo import SloKind
from store.records import CallKind, FitRecord
from store.session import Store
from tests.unit.orchestrator.learning_samples import atypical, plan, requests_of, stages_of, typical
from tests.unit.orchestrator.orchestrator_samples import recorded, scripted_runtime


async def test_the_first_runs_deadline_is_divided_evenly_and_the_seconds_like_the_first_run(
    runtime: Runtime,
) -> None:
    first, second = [await runtime.run(typical) for _ in range(2)]
    assert [stage.source for stage in first.stages] == [FALLBACK, FALLBACK]
    assert [stage.source for stage in second.stages] == [LEARNED, LEARNED]
    before, after = [await stages_of(runtime.store, run.run_id) for run in (first, second)]
    assert [(stage.share, stage.matches) for stage in before] == [(None, ()), (None, ())]
    assert [stage.num_candidates for stage in after] == [1, 1]
    assert [[match.run_id for match in stage.matches] for stage in after] == [[first.run_id]] * 2
    assert after[-1].share == 1.0
    assert after[-1].sub_deadline_s == pytest.approx(3600.0)


async def test_the_recorded_sub_deadline_of_a_stage_is_that_of_its_calls(
    runtime: Runtime,
) -> None:
    for _ in range(3):
        result = await runtime.run(typical)
    record = await recorded(runtime.store, result.run_id)
    stages = await stages_of(runtime.store, result.run_id)
    assert [stage.stage for stage in stages] == [0, 1]
    for call in record.calls:
        stage = stages[call.stage]
        assert (call.sub_deadline_s, call.deadline_source) == (stage.sub_deadline_s, stage.source)
        assert stage.began_s <= call.started_s
    assert [(stage.stage, stage.sub_deadline_s) for stage in result.stages] == [
        (stage.stage, stage.sub_deadline_s) for stage in stages
    ]


async def test_a_shorter_limit_around_a_stage_is_recorded_as_its_sub_deadline(
    runtime: Runtime,
) -> None:
    async def limited() -> None:
        async with within("10s"):
            await plan()

    for _ in range(2):
        result = await runtime.run(flow(deadline="1h")(limited))
    [stage] = await stages_of(runtime.store, result.run_id)
    assert stage.share == 1.0
    assert stage.sub_deadline_s == pytest.approx(10.0, abs=5.0)


async def test_a_run_that_deviates_from_all_past_runs_falls_back_from_there_on(
    runtime: Runtime,
) -> None:
    await runtime.run(typical)
    result = await runtime.run(atypical)
    assert [stage.source for stage in result.stages] == [LEARNED, FALLBACK, FALLBACK]
    second = await runtime.run(atypical)
    assert [stage.source for stage in second.stages] == [LEARNED] * 3


async def test_nothing_is_learned_from_runs_of_another_flow(runtime: Runtime) -> None:
    await runtime.run(typical)
    result = await runtime.run(flow(deadline="1h", name="other")(typical.body))
    assert {stage.source for stage in result.stages} == {FALLBACK}


async def test_a_failed_run_leaves_no_pattern(runtime: Runtime) -> None:
    async def fails() -> None:
        await plan()
        raise RuntimeError

    failing = flow(deadline="1h")(fails)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await runtime.run(failing)
    async with runtime.store.reading() as tx:
        assert await tx.patterns.of_application("fails") == []


async def test_another_runtime_learns_from_the_runs_that_this_one_recorded(tmp_path: Path) -> None:
    """Each run uses all runs that ended before it, in either runtime."""
    async with scripted_runtime(tmp_path) as here, scripted_runtime(tmp_path) as there:
        first = await here.run(typical)
        second = await there.run(typical)
        third = await here.run(typical)
        matches = [await stages_of(here.store, run.run_id) for run in (second, third)]
    assert {match.run_id for match in matches[0][0].matches} == {first.run_id}
    assert {match.run_id for match in matches[1][0].matches} == {first.run_id, second.run_id}


async def uses_of(store: Store, application: str) -> list[float]:
    async with store.reading() as tx:
        newest_first = await tx.patterns.of_application(application)
    return [pattern.uses for pattern in newest_first]


async def test_the_uses_of_a_past_run_grow_by_its_weights(runtime: Runtime) -> None:
    """Each run counts itself once; the second run uses the first, the third uses both."""
    for _ in range(3):
        result = await runtime.run(typical)
    newest, second, first = await uses_of(runtime.store, "typical")
    last = (await stages_of(runtime.store, result.run_id))[-1]
    weights = [match.weight for match in last.matches]
    assert newest == pytest.approx(1.0)
    assert second + first == pytest.approx(2.0 + 1.0 + sum(weights), abs=1e-3)
    assert sum(weights) == pytest.approx(1.0)


async def test_a_match_of_the_first_stage_does_not_count_as_a_use(runtime: Runtime) -> None:
    """Before its first stage a run matches every past run, so that none is selected."""
    for _ in range(3):
        await runtime.run(flow(deadline="1h")(plan))
    assert await uses_of(runtime.store, "plan") == pytest.approx([1.0] * 3, abs=1e-3)


async def test_only_the_best_matches_of_a_stage_are_recorded_but_all_are_counted(
    runtime: Runtime,
) -> None:
    for _ in range(BEST_K + 3):
        result = await runtime.run(typical)
    first, _ = await stages_of(runtime.store, result.run_id)
    assert len(first.matches) == BEST_K
    assert first.num_matches == first.num_candidates == BEST_K + 2


async def test_lengths_are_predicted_once_a_step_has_enough_answers(
    runtime: Runtime,
) -> None:
    for _ in range(6):
        result = await runtime.run(typical)
    assert requests_of(runtime)[0].slo.length is None
    last = requests_of(runtime)[-1].slo.length
    assert last is not None
    assert last.upper(0.9) == 3  # "all is well"
    record = await recorded(runtime.store, result.run_id)
    bounds = {call.identity: (call.bound_source, call.length_bound) for call in record.calls}
    assert bounds == {"script:plan": ("limit", None), "script:work": ("step", 3.0)}
    async with runtime.store.reading() as tx:
        samples = await tx.calls.length_samples("typical", limit=100)
    assert len(samples) == 24
    assert {sample.output_tokens for sample in samples} == {3}


async def test_the_answer_lengths_of_a_step_are_known_to_the_next_process(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        for _ in range(4):
            await runtime.run(typical)
    async with scripted_runtime(tmp_path) as runtime:
        await runtime.run(typical)
        assert requests_of(runtime)[-1].slo.length is not None


async def test_an_slo_has_the_future_work_of_the_run(runtime: Runtime) -> None:
    for _ in range(2):
        await runtime.run(typical)
    slo = requests_of(runtime)[4].slo
    assert slo.kind is SloKind.COMPOUND
    assert slo.future is not None
    assert slo.future.calls == 3
    assert slo.future.decode_tokens == 9


async def test_the_recorded_features_of_a_call_do_not_contain_its_prompt(runtime: Runtime) -> None:
    await runtime.run(typical)
    async with runtime.store.reading() as tx:
        [run] = await tx.runs.newest()
        calls = await tx.calls.of_run(run.id)
    for call in calls:
        assert call.kind is CallKind.LLM
        assert call.features is not None
        assert len(call.features) < 64
        assert b"part" not in call.features
        assert b"done" not in call.features


async def test_a_fit_is_started_after_every_fit_every_runs(
    runtime: Runtime,
) -> None:
    started: list[str] = []

    class Recording:
        def start(self, application: str) -> None:
            started.append(application)

    learner = Learner(runtime.store, models=None, fit=Recording(), fit_every=3)
    learning_runtime = Runtime(runtime.engine, runtime.store, learner=learner)
    for number in range(7):
        await learning_runtime.run(typical)
        assert started == ["typical"] * ((number + 1) // 3)
    async with runtime.store.transaction() as tx:
        last_id = await tx.patterns.newest_id("typical")
        assert last_id is not None
        await tx.fits.put(FitRecord("typical", datetime.now(UTC), last_id, 4, {}))
    for _ in range(3):
        assert len(started) == 2
        await learning_runtime.run(typical)
    assert len(started) == 3


@pytest.mark.parametrize(
    ("first", "second"),
    [("a b", "a-b"), ("A", "a"), ("../x", "x"), ("x" * 500, "x" * 501), ("", "-")],
)
def test_every_application_has_a_different_file_within_the_folder(
    tmp_path: Path, first: str, second: str
) -> None:
    files = [model_file(tmp_path, name) for name in (first, second)]
    assert files[0] != files[1]
    assert {file.parent for file in files} == {tmp_path}
    assert all(len(file.name) < 100 for file in files)


def test_the_models_of_a_sqlite_store_are_in_a_folder_beside_it(tmp_path: Path) -> None:
    assert models_folder(f"sqlite:///{tmp_path / 'runs.db'}") == tmp_path / "runs.models"


def test_the_models_of_a_database_do_not_depend_on_its_password() -> None:
    folder, same = [
        models_folder(f"postgresql://me:{word}@host/runs") for word in ("secret", "other")
    ]
    assert folder == same
    assert folder != models_folder("postgresql://me@host/other")
    assert "secret" not in str(folder)


async def test_a_library_without_fits_does_not_grow_beyond_its_capacity(tmp_path: Path) -> None:
    """Neither in a process that keeps running nor in one that starts later."""
    async with scripted_runtime(tmp_path) as runtime:
        first = await runtime.run(typical)
        learner = Learner(runtime.store, models=None)
        await learner.knowledge_of("typical")
        async with runtime.store.transaction() as tx:
            [pattern] = await tx.patterns.of_application("typical")
            copy = replace(pattern, id=None, run_id=None, used_at=None)
            for _ in range(CAPACITY + SPARE):
                await tx.patterns.add(copy)
        grown = await learner.knowledge_of("typical")
        started = await Learner(runtime.store, models=None).knowledge_of("typical")
    assert first.run_id in grown.runs.values()
    assert len(grown.library) <= CAPACITY + SPARE
    assert len(started.library) == CAPACITY
    assert started.newest_id == grown.newest_id
