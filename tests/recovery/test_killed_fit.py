"""A fit that is killed at any point leaves the former results, and the next fit succeeds."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.learning.background_fit import fit_alone
from orchestrator.learning.stage_deadlines import LEARNED
from tests.places import ROOT
from tests.recovery.killed_fit import POINTS
from tests.unit.orchestrator.learning_samples import typical
from tests.unit.orchestrator.orchestrator_samples import recorded, scripted_runtime, store_url

pytestmark = pytest.mark.usefixtures("subprocesses")

FLOW = "typical"


async def run_times(folder: Path, number: int) -> None:
    async with scripted_runtime(folder) as runtime:
        for _ in range(number):
            await runtime.run(typical)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with runs that were fitted once, and further runs since."""
    folder = tmp_path_factory.mktemp("fitted")

    async def prepare() -> None:
        await run_times(folder, 50)
        assert await fit_alone(store_url(folder), FLOW)
        await run_times(folder, 5)

    asyncio.run(prepare())
    return folder


def fit_results(folder: Path) -> dict[str, object]:
    """Everything that a fit replaces."""
    with closing(sqlite3.connect(folder / "store.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        patterns = connection.execute("SELECT id, weight FROM patterns ORDER BY id").fetchall()
        fits = connection.execute("SELECT * FROM fits").fetchall()
    models = folder / "store.models"
    return {
        "patterns": patterns,
        "fits": fits,
        "models": {file.name: file.read_bytes() for file in models.glob("*.lengths")},
    }


@pytest.mark.parametrize("point", POINTS)
async def test_a_killed_fit_leaves_the_former_library_and_models_in_use(
    tmp_path: Path, fitted: Path, point: str
) -> None:
    folder = tmp_path / "store"
    shutil.copytree(fitted, folder)
    before = fit_results(folder)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.recovery.killed_fit", point, store_url(folder), FLOW),
        cwd=ROOT,
    )
    assert await process.wait() == -signal.SIGKILL
    after = fit_results(folder)
    assert (after["patterns"], after["fits"]) == (before["patterns"], before["fits"])
    if point in ("reading", "clustering", "lengths", "renaming"):
        assert after["models"] == before["models"]
    async with scripted_runtime(folder) as runtime:
        result = await runtime.run(typical)
        record = await recorded(runtime.store, result.run_id)
    assert {stage.source for stage in result.stages} == {LEARNED}
    assert {call.bound_source for call in record.calls} == {"forest"}
    assert await fit_alone(store_url(folder), FLOW)
    assert fit_results(folder)["fits"] != before["fits"]
