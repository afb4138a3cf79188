"""`orchestrate gc`: what is removed, what is kept, and what is reported."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.errors import RemovalInterrupted
from cli.failures import ExitCode, exit_code_of
from store.records import Status
from store.session import open_store
from tests.cli.cli_samples import a_run, exit_code, recorded_runs

NOISE = random.Random(0).randbytes(3_000_000)
IDS = {"old", "recent", "running"}


def days_ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


@pytest.fixture
def filled(store_url: str) -> str:
    """A store with an old run with 3 MB of its own payloads, a recent run, and a running one."""

    async def fill() -> None:
        async with await open_store(store_url) as store, store.transaction() as tx:
            large = await tx.payloads.put(NOISE)
            small = await tx.payloads.put(NOISE[:20_000])
            old, new = days_ago(40), days_ago(1)
            await tx.runs.add(a_run("old", started_at=old, finished_at=old, input_payload=large))
            await tx.runs.add(a_run("recent", started_at=new, finished_at=new, input_payload=small))
            unfinished: dict[str, Any] = {"status": Status.RUNNING, "finished_at": None}
            await tx.runs.add(a_run("running", started_at=old, **unfinished))

    asyncio.run(fill())
    return store_url


def ids(url: str) -> set[str]:
    return {run.id for run in recorded_runs(url)}


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert exit_code("gc", "--json", *arguments) == 0
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def test_runs_that_ended_more_than_30_days_ago_are_removed_by_default(
    filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    removal = document(capsys)
    assert ids(filled) == IDS - {"old"}
    assert (removal["runs"], removal["keep_s"], removal["dry_run"]) == (1, 30 * 86400, False)
    assert removal["payloads"] > 300
    assert removal["payload_bytes"] == pytest.approx(len(NOISE), rel=0.1)
    file = tmp_path / "runs.db"
    assert removal["file_bytes_before"] > len(NOISE)
    assert removal["file_bytes_after"] == file.stat().st_size < 400_000
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    assert document(capsys)["payloads"] == 0


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("41d", IDS),
        ("999999999d", IDS),
        ("960h", IDS - {"old"}),
        ("36h", IDS - {"old"}),
        ("1ms", {"running"}),
    ],
)
def test_runs_that_ended_before_the_time_to_keep_are_removed(
    filled: str, keep: str, kept: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert document(capsys, "--keep", keep)["runs"] == len(IDS - kept)
    assert ids(filled) == kept


def test_a_dry_run_reports_the_same_and_changes_no_byte(
    filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (tmp_path / "runs.db").read_bytes()
    planned = document(capsys, "--dry-run")
    assert (tmp_path / "runs.db").read_bytes() == before
    assert planned["file_bytes_before"] == planned["file_bytes_after"] == len(before)
    actual = document(capsys)
    differs = {"dry_run", "file_bytes_after"}
    assert {name: planned[name] for name in planned if name not in differs} == {
        name: actual[name] for name in actual if name not in differs
    }


def test_the_text_says_what_was_removed_and_how_large_the_file_is(
    filled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("gc", "--dry-run") == 0
    planned = capsys.readouterr().out.splitlines()
    assert planned[0].startswith("would remove 1 run, 0 steps, 0 calls, ")
    assert planned[0].endswith(" payloads of 3.0 MB")
    assert planned[1].startswith("the file takes ")
    assert exit_code("gc") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0] == planned[0].replace("would remove", "removed")
    assert " MB before, " in captured.out
    assert "looking for payloads in use" in captured.err


def test_damaged_payloads_are_warned_of(
    filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [recent] = [run for run in recorded_runs(filled) if run.id == "recent"]
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
        change = "UPDATE payloads SET data = x'00' WHERE hash = ?"
        connection.execute(change, (recent.input_payload,))
    assert exit_code("gc") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("removed 1 run, 0 steps, 0 calls, 1 payload of ")
    assert "warning: 1 payload in use cannot be read" in captured.err


def test_a_locked_file_is_not_shrunk_and_that_is_only_a_warning(
    filled: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cli.work import cleanup
    from store.errors import StoreLocked

    async def refuse(url: str) -> None:
        raise StoreLocked(url, "database is locked")

    monkeypatch.setattr(cleanup, "reclaim", refuse)
    assert exit_code("gc") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("removed 1 run")
    assert "warning: the file keeps its size: the store" in captured.err


def test_without_a_store_nothing_is_removed_and_no_store_is_created(
    new_default_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("gc") == 0
    captured = capsys.readouterr()
    assert (captured.out, "no runs yet" in captured.err) == ("", True)
    assert document(capsys)["runs"] == 0
    assert not new_default_store.exists()


@pytest.mark.parametrize("keep", ["", "0d", "-1d", "thirty days", "30 dogs", "1e9d"])
def test_an_invalid_time_to_keep_is_bad_input_and_removes_nothing(filled: str, keep: str) -> None:
    assert exit_code("gc", "--keep", keep) == ExitCode.BAD_INPUT
    assert ids(filled) == IDS


@pytest.mark.parametrize(
    ("has_removed", "message"),
    [(False, "nothing was removed"), (True, "the same command removes the rest")],
)
def test_an_interruption_says_whether_anything_was_removed(has_removed: bool, message: str) -> None:
    error = RemovalInterrupted(2, has_removed)
    assert message in str(error)
    assert exit_code_of(error) is ExitCode.INTERRUPTED
