"""Random operations in workspaces and in plain folders show the same; see workspace_model."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.environment.environments import Backend
from tests.unit.orchestrator.environment.workspace_model import Asked, run_model
from tests.unit.orchestrator.environment.workspace_samples import require_backend

BACKENDS: list[Backend] = ["overlay", "copies"]


@pytest.fixture
async def available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Backend, subprocesses: None
) -> Backend:
    monkeypatch.setenv("ORCHESTRATE_STORE", f"sqlite:///{tmp_path / 'runs.db'}")
    await require_backend(tmp_path, backend)
    return backend


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_workspace_is_like_a_plain_folder_whose_states_come_back(
    tmp_path: Path, available: Backend
) -> None:
    world = run_model(Asked(examples=8, steps=20, folder=tmp_path, backend=available, seed=3))
    assert world.counts["comparisons"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["overlay"])
def test_folders_of_its_own_make_no_difference_to_what_a_workspace_shows(
    tmp_path: Path, available: Backend
) -> None:
    run_model(Asked(examples=4, steps=20, folder=tmp_path, backend=available, own=("a",)))
