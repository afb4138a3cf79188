"""What one run leaves, the next one knows: in this process and in another."""

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


async def test_the_first_run_is_divided_evenly_and_the_second_like_the_first(
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


async def test_what_is_recorded_of_a_stage_is_what_its_calls_were_promised(
    runtime: Runtime,
) -> None:
    for _ in range(3):
        result = await runtime.run(typical)
    found = await recorded(runtime.store, result.run_id)
    stages = await stages_of(runtime.store, result.run_id)
    assert [stage.stage for stage in stages] == [0, 1]
    for call in found.calls:
        stage = stages[call.stage]
        assert (call.sub_deadline_s, call.deadline_source) == (stage.sub_deadline_s, stage.source)
        assert stage.began_s <= call.started_s
    assert [(stage.stage, stage.sub_deadline_s) for stage in result.stages] == [
        (stage.stage, stage.sub_deadline_s) for stage in stages
    ]


async def test_a_shorter_limit_around_a_stage_is_recorded_as_its_deadline(
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


async def test_a_run_that_does_something_else_is_like_none_from_there_on(
    runtime: Runtime,
) -> None:
    await runtime.run(typical)
    result = await runtime.run(atypical)
    assert [stage.source for stage in result.stages] == [LEARNED, FALLBACK, FALLBACK]
    again = await runtime.run(atypical)
    assert [stage.source for stage in again.stages] == [LEARNED] * 3


async def test_runs_of_another_flow_teach_nothing(runtime: Runtime) -> None:
    await runtime.run(typical)
    result = await runtime.run(flow(deadline="1h", name="other")(typical.body))
    assert {stage.source for stage in result.stages} == {FALLBACK}


async def test_a_run_that_failed_leaves_nothing_to_learn_from(runtime: Runtime) -> None:
    async def fails() -> None:
        await plan()
        raise RuntimeError

    failing = flow(deadline="1h")(fails)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await runtime.run(failing)
    async with runtime.store.reading() as tx:
        assert await tx.patterns.of_application("fails") == []


async def test_another_process_knows_what_this_one_recorded(tmp_path: Path) -> None:
    """Also while it has runs of its own: each run begins with all that ended before."""
    async with scripted_runtime(tmp_path) as one, scripted_runtime(tmp_path) as two:
        first = await one.run(typical)
        second = await two.run(typical)
        third = await one.run(typical)
        matches = [await stages_of(one.store, run.run_id) for run in (second, third)]
    assert {match.run_id for match in matches[0][0].matches} == {first.run_id}
    assert {match.run_id for match in matches[1][0].matches} == {first.run_id, second.run_id}


async def uses_of(store: Store, application: str) -> list[float]:
    async with store.reading() as tx:
        newest_first = await tx.patterns.of_application(application)
    return [pattern.uses for pattern in newest_first]


async def test_past_runs_are_used_as_much_as_they_weighed(runtime: Runtime) -> None:
    """Each counts once by itself; the second run rests on the first, the third on both."""
    for _ in range(3):
        result = await runtime.run(typical)
    newest, second, first = await uses_of(runtime.store, "typical")
    last = (await stages_of(runtime.store, result.run_id))[-1]
    weights = [match.weight for match in last.matches]
    assert newest == pytest.approx(1.0)
    assert second + first == pytest.approx(2.0 + 1.0 + sum(weights), abs=1e-3)
    assert sum(weights) == pytest.approx(1.0)


async def test_being_one_of_all_is_no_use(runtime: Runtime) -> None:
    """Before its first stage a run is like every past one: none of them is chosen."""
    for _ in range(3):
        await runtime.run(flow(deadline="1h")(plan))
    assert await uses_of(runtime.store, "plan") == pytest.approx([1.0] * 3, abs=1e-3)


async def test_only_the_heaviest_past_runs_are_recorded_and_all_are_counted(
    runtime: Runtime,
) -> None:
    for _ in range(BEST_K + 3):
        result = await runtime.run(typical)
    first, _ = await stages_of(runtime.store, result.run_id)
    assert len(first.matches) == BEST_K
    assert first.num_matches == first.num_candidates == BEST_K + 2


async def test_answers_are_bounded_once_a_step_has_answered_often_enough(
    runtime: Runtime,
) -> None:
    for _ in range(6):
        result = await runtime.run(typical)
    assert requests_of(runtime)[0].slo.length is None
    last = requests_of(runtime)[-1].slo.length
    assert last is not None
    assert last.upper(0.9) == 3  # "all is well"
    found = await recorded(runtime.store, result.run_id)
    bounds = {call.identity: (call.bound_source, call.length_bound) for call in found.calls}
    assert bounds == {"script:plan": ("limit", None), "script:work": ("step", 3.0)}
    async with runtime.store.reading() as tx:
        samples = await tx.calls.length_samples("typical", limit=100)
    assert len(samples) == 24
    assert {sample.output_tokens for sample in samples} == {3}


async def test_the_history_of_a_step_outlives_the_process(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        for _ in range(4):
            await runtime.run(typical)
    async with scripted_runtime(tmp_path) as runtime:
        await runtime.run(typical)
        assert requests_of(runtime)[-1].slo.length is not None


async def test_calls_carry_the_rest_of_the_run(runtime: Runtime) -> None:
    for _ in range(2):
        await runtime.run(typical)
    slo = requests_of(runtime)[4].slo
    assert slo.kind is SloKind.COMPOUND
    assert slo.future is not None
    assert slo.future.calls == 3
    assert slo.future.decode_tokens == 9


async def test_no_prompt_can_be_read_from_what_is_kept_of_a_call(runtime: Runtime) -> None:
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


async def test_an_application_is_fitted_after_so_many_runs_and_no_sooner(
    runtime: Runtime,
) -> None:
    started: list[str] = []

    class Watch:
        def start(self, application: str) -> None:
            started.append(application)

    learner = Learner(runtime.store, models=None, fit=Watch(), fit_every=3)
    watched = Runtime(runtime.engine, runtime.store, learner=learner)
    for number in range(7):
        await watched.run(typical)
        assert started == ["typical"] * ((number + 1) // 3)
    async with runtime.store.transaction() as tx:
        last_id = await tx.patterns.newest_id("typical")
        assert last_id is not None
        await tx.fits.put(FitRecord("typical", datetime.now(UTC), last_id, 4, {}))
    for _ in range(3):
        assert len(started) == 2
        await watched.run(typical)
    assert len(started) == 3


@pytest.mark.parametrize(
    ("one", "two"), [("a b", "a-b"), ("A", "a"), ("../x", "x"), ("x" * 500, "x" * 501), ("", "-")]
)
def test_every_application_has_a_file_of_its_own_within_the_folder(
    tmp_path: Path, one: str, two: str
) -> None:
    files = [model_file(tmp_path, name) for name in (one, two)]
    assert files[0] != files[1]
    assert {file.parent for file in files} == {tmp_path}
    assert all(len(file.name) < 100 for file in files)


def test_the_models_of_a_sqlite_store_lie_beside_it(tmp_path: Path) -> None:
    assert models_folder(f"sqlite:///{tmp_path / 'runs.db'}") == tmp_path / "runs.models"


def test_the_models_of_a_database_do_not_depend_on_its_password() -> None:
    one, two = [models_folder(f"postgresql://me:{word}@host/runs") for word in ("secret", "other")]
    assert one == two
    assert one != models_folder("postgresql://me@host/other")
    assert "secret" not in str(one)


async def test_a_library_that_nobody_fits_does_not_grow_without_end(tmp_path: Path) -> None:
    """Neither in the memory of one process nor in that of one that starts later."""
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
