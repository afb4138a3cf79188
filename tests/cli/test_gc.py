"""`orchestrate gc`: what goes, what stays, and what is told of it."""

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
    """A run that ended 40 days ago, with much that only it used, one of yesterday, one at work."""

    async def fill() -> None:
        async with await open_store(store_url) as store, store.transaction() as tx:
            many = await tx.payloads.put(NOISE)
            few = await tx.payloads.put(NOISE[:20_000])
            old, new = days_ago(40), days_ago(1)
            await tx.runs.add(a_run("old", started_at=old, finished_at=old, input_payload=many))
            await tx.runs.add(a_run("recent", started_at=new, finished_at=new, input_payload=few))
            at_work: dict[str, Any] = {"status": Status.RUNNING, "finished_at": None}
            await tx.runs.add(a_run("running", started_at=old, **at_work))

    asyncio.run(fill())
    return store_url


def ids(url: str) -> set[str]:
    return {run.id for run in recorded_runs(url)}


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert exit_code("gc", "--json", *arguments) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_runs_that_ended_more_than_thirty_days_ago_go_by_default(
    filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = document(capsys)
    assert ids(filled) == IDS - {"old"}
    assert (told["runs"], told["keep_s"], told["dry_run"]) == (1, 30 * 86400, False)
    assert told["payloads"] > 300
    assert told["payload_bytes"] == pytest.approx(len(NOISE), rel=0.1)
    file = tmp_path / "runs.db"
    assert told["file_bytes_before"] > len(NOISE)
    assert told["file_bytes_after"] == file.stat().st_size < 400_000
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    assert document(capsys)["payloads"] == 0


@pytest.mark.parametrize(
    ("keep", "stay"),
    [
        ("41d", IDS),
        ("999999999d", IDS),
        ("960h", IDS - {"old"}),
        ("36h", IDS - {"old"}),
        ("1ms", {"running"}),
    ],
)
def test_keep_says_how_long_ago_a_run_must_have_ended(
    filled: str, keep: str, stay: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert document(capsys, "--keep", keep)["runs"] == len(IDS - stay)
    assert ids(filled) == stay


def test_a_dry_run_tells_the_same_and_changes_no_byte(
    filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (tmp_path / "runs.db").read_bytes()
    would = document(capsys, "--dry-run")
    assert (tmp_path / "runs.db").read_bytes() == before
    assert would["file_bytes_before"] == would["file_bytes_after"] == len(before)
    did = document(capsys)
    differs = {"dry_run", "file_bytes_after"}
    assert {name: would[name] for name in would if name not in differs} == {
        name: did[name] for name in did if name not in differs
    }


def test_it_tells_in_words_what_went_and_what_the_file_takes(
    filled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("gc", "--dry-run") == 0
    would = capsys.readouterr().out.splitlines()
    assert would[0].startswith("would remove 1 run, 0 steps, 0 calls, ")
    assert would[0].endswith(" payloads of 3.0 MB")
    assert would[1].startswith("the file takes ")
    assert exit_code("gc") == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[0] == would[0].replace("would remove", "removed")
    assert " MB before, " in told.out
    assert "looking for what is in use" in told.err


def test_what_damage_hinders_is_told(
    filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [recent] = [run for run in recorded_runs(filled) if run.id == "recent"]
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
        change = "UPDATE payloads SET data = x'00' WHERE hash = ?"
        connection.execute(change, (recent.input_payload,))
    assert exit_code("gc") == 0
    told = capsys.readouterr()
    assert told.out.startswith("removed 1 run, 0 steps, 0 calls, 1 payload of ")
    assert "warning: 1 payload in use cannot be read" in told.err


def test_a_file_that_others_write_to_keeps_its_size_and_that_is_no_failure(
    filled: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from store import space
    from store.errors import StoreLocked

    async def refuse(url: str) -> None:
        raise StoreLocked(url, "database is locked")

    monkeypatch.setattr(space, "reclaim", refuse)
    assert exit_code("gc") == 0
    told = capsys.readouterr()
    assert told.out.startswith("removed 1 run")
    assert "warning: the file keeps its size: the store" in told.err


def test_without_a_store_there_is_nothing_to_remove_and_none_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("gc") == 0
    told = capsys.readouterr()
    assert (told.out, "no runs yet" in told.err) == ("", True)
    assert document(capsys)["runs"] == 0
    assert not (tmp_path / "runs.db").exists()


@pytest.mark.parametrize("keep", ["", "0d", "-1d", "thirty days", "30 days", "1e9d"])
def test_what_is_no_time_to_keep_is_bad_input_and_removes_nothing(filled: str, keep: str) -> None:
    assert exit_code("gc", "--keep", keep) == ExitCode.BAD_INPUT
    assert ids(filled) == IDS


@pytest.mark.parametrize(
    ("is_removed", "told"), [(False, "nothing was removed"), (True, "goes on")]
)
def test_an_interruption_says_whether_anything_was_removed(is_removed: bool, told: str) -> None:
    error = RemovalInterrupted(2, is_removed)
    assert told in str(error)
    assert exit_code_of(error) is ExitCode.INTERRUPTED
