"""Damaged knowledge and unlearnable runs: skipped with a warning, and no run fails."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Runtime, flow, llm
from orchestrator.learning.knowledge import Learner
from orchestrator.learning.model_files import model_file, models_folder
from orchestrator.learning.stage_deadlines import LEARNED
from orchestrator.testing import ScriptedEngine
from serving.generation import Completion, GenerationRequest, Usage
from store.records import FitRecord, PatternRecord, Status
from tests.unit.orchestrator.learning_samples import stages_of, typical
from tests.unit.orchestrator.orchestrator_samples import (
    answer_ok,
    recorded,
    scripted_runtime,
    store_url,
)


async def test_a_damaged_pattern_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        first = await runtime.run(typical)
        async with runtime.store.transaction() as tx:
            await tx.patterns.add(PatternRecord("typical", b"damaged", 1, datetime.now(UTC)))
    async with scripted_runtime(tmp_path) as runtime:
        with caplog.at_level(logging.WARNING, logger="orchestrate"):
            result = await runtime.run(typical)
        stages = await stages_of(runtime.store, result.run_id)
    assert {match.run_id for match in stages[0].matches} == {first.run_id}
    assert "skipped as unreadable" in caplog.text


async def test_an_unreadable_kernel_is_replaced_by_the_default_with_a_warning(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    await runtime.run(typical)
    fit = FitRecord("typical", datetime.now(UTC), 1, 1, {"version": 99})
    async with runtime.store.transaction() as tx:
        await tx.fits.put(fit)
    with caplog.at_level(logging.WARNING, logger="orchestrate"):
        result = await runtime.run(typical)
    assert {stage.source for stage in result.stages} == {LEARNED}
    assert "kernel" in caplog.text


async def test_a_damaged_length_model_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = model_file(models_folder(store_url(tmp_path)), "typical")
    path.parent.mkdir()
    path.write_bytes(b"no model")
    async with scripted_runtime(tmp_path) as runtime:
        with caplog.at_level(logging.WARNING, logger="orchestrate"):
            await runtime.run(typical)
    assert str(path) in caplog.text


async def test_a_fit_that_cannot_be_started_does_not_fail_the_run(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def start(self, application: str) -> None:
            raise OSError("no more processes")

    learner = Learner(runtime.store, models=None, fit=Broken(), fit_every=1)
    with caplog.at_level(logging.WARNING, logger="orchestrate"):
        await Runtime(runtime.engine, runtime.store, learner=learner).run(typical)
    assert "no more processes" in caplog.text


DAMAGE = {
    "uses": "UPDATE patterns SET uses = 9e999",
    "negative uses": "UPDATE patterns SET uses = -1",
    "weight": "UPDATE patterns SET weight = 9e999",
    "used_at": "UPDATE patterns SET used_at = 'never'",
    "kernel": "UPDATE fits SET kernel = '{'",
    "fitted_at": "UPDATE fits SET fitted_at = 'never'",
    "tokens": "UPDATE calls SET output_tokens = 99999999999",
    "negative tokens": "UPDATE calls SET output_tokens = -1",
    "times": "UPDATE calls SET finished_s = 9e999",
    "features": "UPDATE calls SET features = x'00'",
    "documents": "UPDATE patterns SET document = x'00'",
}


@pytest.mark.parametrize("what", DAMAGE)
async def test_damaged_records_do_not_fail_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        for _ in range(3):
            await runtime.run(typical)
        async with runtime.store.transaction() as tx:
            await tx.fits.put(FitRecord("typical", datetime.now(UTC), 3, 3, {"version": 0}))
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        assert connection.execute(DAMAGE[what]).rowcount
    with caplog.at_level(logging.WARNING, logger="orchestrate"):
        async with scripted_runtime(tmp_path) as runtime:
            results = [await runtime.run(typical) for _ in range(2)]
            async with runtime.store.reading() as tx:
                runs = [await tx.runs.get(result.run_id) for result in results]
    assert {run.status for run in runs} == {Status.COMPLETED}
    assert caplog.records


@pytest.mark.parametrize("options", [{"max_tokens": -1}, {"temperature": -1.0}])
async def test_invalid_sampling_parameters_are_passed_to_the_engine_without_a_prediction(
    runtime: Runtime, options: dict[str, Any]
) -> None:
    """The call and its stage are recorded; the answer's length is not predicted."""

    async def body() -> None:
        await llm("well?", **options)

    result = await runtime.run(flow(deadline="1h")(body))
    [call] = (await recorded(runtime.store, result.run_id)).calls
    assert (call.features, call.length_bound, call.bound_source) == (None, None, None)
    assert len(await stages_of(runtime.store, result.run_id)) == 1


async def test_a_run_that_no_pattern_can_represent_is_recorded_as_completed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Overcounting(ScriptedEngine):
        async def generate(self, request: GenerationRequest) -> Completion:
            completion = await super().generate(request)
            return replace(completion, usage=Usage(1, 2**50))

    async with scripted_runtime(tmp_path, Overcounting(answer_ok)) as runtime:
        result = await runtime.run(typical)
        record = await recorded(runtime.store, result.run_id)
    assert record.run.status is Status.COMPLETED
    assert record.pattern_records == []
    assert "no pattern of run" in caplog.text
