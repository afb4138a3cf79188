"""`orchestrate discard`: which states are given up, and what can be done afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orchestrator import open_runtime
from orchestrator.environment import collection
from orchestrator.environment.errors import StateDiscarded
from orchestrator.environment.states.managed_root import ManagedRoot
from orchestrator.settings import Settings
from orchestrator.testing import ScriptedEngine
from store.records import Status
from tests.cli.cli_samples import a_run, exit_code, fill_store
from tests.cli.workspace_runs import RUN, edit, interrupted, new_base, nothing, record_run


@pytest.fixture
def base(tmp_path: Path, store_url: str, subprocesses: None) -> Path:
    """The folder of a recorded run of `edit`."""
    folder = new_base(tmp_path)
    record_run(store_url, edit, str(folder))
    return folder


def test_a_discarded_run_can_be_read_and_its_files_are_gone(
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(collection, "NEW_S", 0.0)
    assert exit_code("discard", "3f2a", "--yes") == 0
    assert f"5 states of run {RUN} given up" in capsys.readouterr().err
    assert exit_code("diff", "3f2a") == 1
    assert "it was given up by `orchestrate discard`" in " ".join(capsys.readouterr().err.split())
    assert exit_code("apply", "3f2a", "--yes") == 1
    assert exit_code("show", "3f2a") == 0
    assert exit_code("checkpoints", "3f2a") == 0
    assert exit_code("gc", "--grace", "1ms", "--verify") == 0
    assert "all are whole" in capsys.readouterr().out
    assert list(ManagedRoot(tmp_path / "runs.environments").blobs.all()) == []


def test_a_state_that_another_run_has_too_is_kept(
    base: Path, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record_run(store_url, edit, str(base), run_id="77aa")
    assert exit_code("discard", "3f2a", "--yes") == 0
    assert "no state that no other run has" in capsys.readouterr().err
    assert exit_code("diff", "3f2a", "--stat") == 0


def test_a_discarded_run_is_not_resumed_in_its_workspace_and_repeats_nothing(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch, subprocesses: None
) -> None:
    base = new_base(tmp_path)
    with pytest.raises(RuntimeError, match="interrupted here"):
        record_run(store_url, interrupted, str(base))
    assert exit_code("discard", "3f2a", "--yes") == 0

    monkeypatch.setenv("GO_ON", "1")

    async def resume() -> None:
        engine = ScriptedEngine(lambda *_: "word")
        async with open_runtime(Settings(store=store_url), engine=engine) as runtime:
            await runtime.resume(RUN, interrupted)

    with pytest.raises(StateDiscarded):
        asyncio.run(resume())


def test_a_run_that_is_executed_and_one_without_states_are_left(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run("abcd", status=Status.RUNNING, finished_at=None)])
    assert exit_code("discard", "abcd", "--yes") == 2
    assert "run abcd is still running" in capsys.readouterr().err
    record_run(store_url, nothing)
    assert exit_code("discard", "3f2a", "--yes") == 0
    assert "nothing to give up" in capsys.readouterr().err


def test_without_a_terminal_nothing_is_given_up_unless_yes_is_given(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("discard", "3f2a") == 2
    assert "give --yes" in capsys.readouterr().err
    assert exit_code("diff", "3f2a", "--stat") == 0
