"""`orchestrate gc`: the states of workspaces, their contents and layers."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from cli.work.cleanup import Cleanup
from cli.work.cleanup_report import report_lines, warnings_of
from cli.work.sizes import bytes_of
from cli.work.state_collection import StateCleanup, StateRequest, bytes_below
from orchestrator.environment import collection
from orchestrator.environment.collection import Collected
from orchestrator.environment.states.managed_root import ManagedRoot
from store.session import open_store
from tests.cli.cli_samples import exit_code
from tests.cli.workspace_runs import RUN, edit, edit_and_apply, new_base, record_run

SOON = ("--grace", "1ms")


@pytest.fixture
def root(tmp_path: Path, store_url: str, subprocesses: None) -> ManagedRoot:
    """The states of a recorded run of `edit`."""
    record_run(store_url, edit, str(new_base(tmp_path)))
    return ManagedRoot(tmp_path / "runs.environments")


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was just written counts as an hour old."""
    monkeypatch.setattr(collection, "NEW_S", 0.0)


def age(tmp_path: Path, run_id: str = RUN) -> None:
    """A run ended 40 days ago."""
    ended = (datetime.now(UTC) - timedelta(days=40)).strftime("%Y-%m-%d %H:%M:%S.%f")
    engine = create_engine(f"sqlite:///{tmp_path / 'runs.db'}")
    with engine.begin() as connection:
        columns = "finished_at = :ended, leased_until = NULL"
        change = text(f"UPDATE runs SET {columns} WHERE id = :id")
        connection.execute(change, {"ended": ended, "id": run_id})
    engine.dispose()


def state_ids(url: str) -> set[str]:
    async def read() -> set[str]:
        async with await open_store(url) as store, store.reading() as tx:
            return set(await tx.states.all_ids())

    return asyncio.run(read())


def document(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert exit_code("gc", "--json", *arguments) == code
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def stored(root: ManagedRoot) -> set[str]:
    return {each.name for each in root.states.iterdir()}


def test_the_states_of_a_kept_run_stay(
    root: ManagedRoot, store_url: str, old: None, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stored(root)
    done = document(capsys, *SOON)
    assert (done["states"], done["state_documents"], done["contents"]) == (0, 0, 0)
    assert done["states_kept"] == len(before) == len(state_ids(store_url))
    assert stored(root) == before
    assert exit_code("diff", "3f2a", "--stat") == 0


def test_with_an_old_run_its_states_contents_and_layers_are_removed(
    root: ManagedRoot,
    tmp_path: Path,
    store_url: str,
    old: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    num = len(stored(root))
    age(tmp_path)
    planned = document(capsys, *SOON, "--dry-run")
    assert len(stored(root)) == num == planned["states"] == planned["state_documents"]
    done = document(capsys, *SOON)
    differs = {"dry_run", "file_bytes_after", "state_bytes", "state_bytes_after"}
    assert {name: planned[name] for name in planned if name not in differs} == {
        name: done[name] for name in done if name not in differs
    }
    assert 0 < planned["state_bytes"] <= done["state_bytes"]
    assert done["contents"] > num
    assert done["layers"] >= 1
    assert stored(root) == set() == state_ids(store_url)
    assert list(root.blobs.all()) == []


def test_what_is_newer_than_an_hour_stays_on_the_disk_for_a_later_collection(
    root: ManagedRoot,
    tmp_path: Path,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = stored(root)
    age(tmp_path)
    assert document(capsys, *SOON)["states"] == len(before)
    assert stored(root) == before
    monkeypatch.setattr(collection, "NEW_S", 0.0)
    assert document(capsys, *SOON)["state_documents"] == len(before)
    assert stored(root) == set()


def test_unused_states_stay_for_the_time_of_grace_but_not_beyond_the_budget(
    root: ManagedRoot,
    tmp_path: Path,
    store_url: str,
    old: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    age(tmp_path)
    assert document(capsys, "--grace", "7d", "--budget", "1GB")["state_documents"] == 0
    assert stored(root) != set()
    done = document(capsys, "--grace", "7d", "--budget", "1B")
    assert done["state_documents"] > 0
    assert stored(root) == set()
    assert done["over_budget_bytes"] == done["state_bytes_after"] - 1


def test_what_a_kept_run_needs_stays_whatever_the_budget_and_that_is_said(
    root: ManagedRoot, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stored(root)
    assert exit_code("gc", "--budget", "1kB") == 0
    warned = " ".join(capsys.readouterr().err.split())
    assert "more than the budget: 5 states that runs name are kept" in warned
    assert stored(root) == before


def test_a_verified_store_is_whole_and_a_damaged_content_is_an_exit_code(
    root: ManagedRoot, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("gc", "--verify") == 0
    assert "verified 5 states: all are whole" in capsys.readouterr().out
    content = next(each for each in root.blobs.all() if root.blobs.read(each) == b"one\n2\nthree\n")
    root.blobs.path_of(content).chmod(0o644)
    root.blobs.path_of(content).write_bytes(b"one\n3\nthree\n")
    checked = document(capsys, "--verify", code=1)["verified"]
    assert (checked["whole"], len(checked["damaged"])) == (False, 4)
    missing = sorted(stored(root))[0]
    (root.states / missing).unlink()
    assert document(capsys, "--verify", code=1)["verified"]["missing"] == [missing]
    assert exit_code("gc", "--verify") == 1
    assert f"missing: {missing[:12]}" in capsys.readouterr().out


def test_wrong_counters_are_corrected_unless_only_counting(
    root: ManagedRoot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'runs.db'}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE states SET uses = uses + 1"))
    engine.dispose()
    assert document(capsys, "--verify", "--dry-run")["verified"]["miscounted"] == 5
    assert document(capsys, "--verify")["verified"]["miscounted"] == 5
    assert document(capsys, "--verify")["verified"]["miscounted"] == 0


def test_states_that_another_store_names_in_the_same_folder_stay(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: None,
    capsys: pytest.CaptureFixture[str],
    subprocesses: None,
) -> None:
    shared = tmp_path / "shared"
    monkeypatch.setenv("ORCHESTRATE_ENVIRONMENTS", str(shared))
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("one", "two")]
    base = str(new_base(tmp_path))
    record_run(urls[0], edit, base, environments=str(shared))
    record_run(urls[1], edit_and_apply, base, environments=str(shared))
    root = ManagedRoot(shared)
    before = stored(root)
    assert document(capsys, *SOON, "--store", urls[0])["state_documents"] == 0
    assert stored(root) == before
    (tmp_path / "two.db").write_bytes(b"no store" * 1000)
    done = document(capsys, *SOON, "--store", urls[0])
    assert done["unread_stores"] == [urls[1]]
    assert stored(root) == before
    (tmp_path / "two.db").unlink()
    assert document(capsys, *SOON, "--store", urls[0])["state_documents"] > 0
    assert stored(root) == state_ids(urls[0])


def test_the_workspace_of_a_process_that_has_died_is_removed(
    root: ManagedRoot, old: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (root.live / "dead").mkdir()
    assert document(capsys, *SOON)["dead_workspaces"] == 1
    assert list(root.live.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "bytes_"),
    [("5GB", 5_000_000_000), ("1.5 MiB", 1_572_864), ("4096", 4096), (" 2kb ", 2000), ("0", 0)],
)
def test_sizes_have_units(size: str, bytes_: int) -> None:
    assert bytes_of(size) == bytes_


@pytest.mark.parametrize("size", ["", "GB", "-1GB", "5 gigs", "5GB free", "1e9", "9" * 400])
def test_what_is_no_size_or_time_is_bad_input(size: str, store_url: str) -> None:
    assert exit_code("gc", "--budget", size) == 2
    assert exit_code("gc", "--grace", "-1h") == 2


def test_the_size_of_a_folder_counts_a_file_with_two_names_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    alone = bytes_below(tmp_path)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert bytes_below(tmp_path) == alone >= 100_000
    assert bytes_below(tmp_path / "missing") == 0


def test_the_report_has_a_line_for_each_fact() -> None:
    states = StateCleanup(3, 7, Collected(4, 20, 2, 1, 5_000_000, 6), root_bytes=9_000_000)
    request = StateRequest(3600.0, budget_bytes=8_000_000)
    assert list(report_lines(Cleanup(states=states), request))[1:] == [
        "removed 4 states, 20 contents, 2 layers, 1 workspace of processes that have died: 5.0 MB",
        "the states take 9.0 MB",
    ]
    (warning,) = warnings_of(Cleanup(states=states), request)
    assert warning.startswith("the states take 1.0 MB more than the budget: 7 states")
