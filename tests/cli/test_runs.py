from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli.failures import ExitCode
from cli.render.describe import ago, short_ids
from orchestrator.display.run_text import deadline_outcome
from orchestrator.durability.liveness import ORPHANED, status_shown
from store.records import RunRecord, Status, StepRecord
from tests.cli.cli_samples import HOST, NOON, a_call, a_run, exit_code, fill_store, research_calls

NO_PROCESS = 2**30  # larger than any process id of Linux


def some_runs() -> list[RunRecord]:
    now = datetime.now(UTC)
    unfinished = {"elapsed_s": None, "finished_at": None, "status": Status.RUNNING}
    return [
        a_run("aaaa00010000", started_at=NOON),
        a_run(
            "aaaa00020000",
            started_at=NOON.replace(hour=13),
            status=Status.FAILED,
            elapsed_s=60.0,
            error_type="DeadlineExceeded",
            error_message="deep-research did not end within its 60 s",
        ),
        a_run("bbbb00030000", started_at=now, process_id=NO_PROCESS, **unfinished),
        a_run("cccc00040000", started_at=now, process_id=os.getpid(), **unfinished),
        a_run("dddd00050000", started_at=NOON.replace(hour=11), random_weights=True),
    ]


@pytest.fixture
def filled(store_url: str) -> str:
    fill_store(store_url, some_runs())
    return store_url


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    assert exit_code("ps", "--json", *arguments) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert isinstance(runs, list)
    return runs


def test_ps_lists_runs_newest_first(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [run["id"] for run in listed(capsys)]
    assert set(ids[:2]) == {"bbbb00030000", "cccc00040000"}
    assert ids[2:] == ["aaaa00020000", "aaaa00010000", "dddd00050000"]


def test_ps_distinguishes_orphaned_runs_from_running_ones(
    filled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    statuses = {run["id"]: run["status"] for run in listed(capsys)}
    assert statuses["bbbb00030000"] == "orphaned"
    assert statuses["cccc00040000"] == "running"
    assert [run["id"] for run in listed(capsys, "--status", "orphaned")] == ["bbbb00030000"]
    assert [run["id"] for run in listed(capsys, "--status", "running")] == ["cccc00040000"]


def test_ps_lists_at_most_limit_runs(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(listed(capsys, "--limit", "2")) == 2
    runs = listed(capsys, "--limit", "1", "--status", "completed")
    assert [run["id"] for run in runs] == ["aaaa00010000"]


def test_ps_lists_only_runs_with_what_is_given(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sea = {"tags": {"team": "sea", "note": "a=b"}}
    fill_store(
        store_url,
        [
            a_run("r1", flow="a", slo_user="ann", attributes=sea),
            a_run("r2", flow="b", slo_user="ann", attributes={"tags": {"team": "sea"}}),
            a_run("r3", flow="b", slo_user="", status=Status.FAILED),
        ],
    )

    def ids(*arguments: str) -> set[object]:
        return {run["id"] for run in listed(capsys, *arguments)}

    assert ids("--flow", "b") == {"r2", "r3"}
    assert ids("--user", "ann") == {"r1", "r2"}
    assert ids("--user", "") == {"r3"}
    assert ids("--tag", "team=sea") == {"r1", "r2"}
    assert ids("--tag", "team=sea", "--tag", "note=a=b") == {"r1"}
    assert ids("--flow", "b", "--user", "ann", "--tag", "team=sea", "--status", "completed") == {
        "r2"
    }
    for arguments in (["--flow", "c"], ["--tag", "team="], ["--user", "ben"]):
        assert exit_code("ps", *arguments) == 0
        assert "no such runs" in capsys.readouterr().err


@pytest.mark.parametrize("tags", [["team"], [""], ["team=sea", "team=land"]])
def test_a_tag_that_no_run_can_have_is_bad_input(
    filled: str, capsys: pytest.CaptureFixture[str], tags: list[str]
) -> None:
    given = [argument for tag in tags for argument in ("--tag", tag)]
    assert exit_code("ps", *given) == ExitCode.BAD_INPUT
    assert "--tag" in capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 80, 140, 200])
def test_the_table_of_runs_fits_the_terminal(
    filled: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert exit_code("ps") == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width for line in lines)
    assert "DeadlineExceeded: deep-research did" in "\n".join(lines)
    assert all(word in "\n".join(lines) for word in ("completed", " met", " missed"))


def test_the_table_shows_outcomes_models_and_errors(
    filled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("ps") == 0
    lines = capsys.readouterr().out.splitlines()
    by_id = {line.split()[0]: line.split() for line in reversed(lines)}
    assert "met" in by_id["aaaa0001"]
    assert "missed" in by_id["aaaa0002"]
    assert "orphaned" in by_id["bbbb0003"]
    assert "*demo" in by_id["dddd0005"]
    assert "demo" in by_id["aaaa0001"]
    assert lines[-2:] == [
        "aaaa0002  DeadlineExceeded: deep-research did not end within its 60 s",
        "* random weights: the text is meaningless",
    ]


def test_ps_without_a_store_creates_none(
    new_default_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("ps") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no runs yet" in captured.err
    assert not new_default_store.exists()


def test_shortened_ids_stay_distinct() -> None:
    assert short_ids(["aaaa00000001", "bbbb00000001"]) == ["aaaa0000", "bbbb0000"]
    assert short_ids(["aaaa00000001", "aaaa00000002"]) == ["aaaa00000001", "aaaa00000002"]
    assert short_ids([]) == []
    assert short_ids(["a", "a"]) == ["a", "a"]


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (a_run(), "met"),
        (a_run(elapsed_s=60.1), "missed"),
        (a_run(deadline_s=None), ""),
        (a_run(status=Status.FAILED, error_type="EngineDied"), ""),
        (a_run(status=Status.FAILED, error_type="DeadlineExceeded"), "missed"),
        (a_run(status=Status.CANCELLED), ""),
    ],
)
def test_only_a_run_completed_in_time_met_its_deadline(run: RunRecord, outcome: str) -> None:
    assert deadline_outcome(run, run.elapsed_s) == outcome


def test_a_run_of_another_host_is_not_called_orphaned() -> None:
    run = a_run(status=Status.RUNNING, process_id=NO_PROCESS)
    assert status_shown(run, host=HOST) == ORPHANED
    assert status_shown(run, host="elsewhere") == Status.RUNNING


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-5, "0 s"), (59, "59 s"), (180, "3 min"), (7300, "2 h"), (9e5, "10 d")]
)
def test_the_time_since_a_moment_has_a_suitable_unit(seconds: float, shown: str) -> None:
    assert (
        ago(datetime.fromtimestamp(1e9 - seconds, UTC), datetime.fromtimestamp(1e9, UTC)) == shown
    )


@pytest.fixture
def one_run(store_url: str) -> str:
    run_id = "3f2a9c1b77de"
    steps = [StepRecord(run_id=run_id, path="plan", name="plan", started_s=0.0)]
    fill_store(store_url, [a_run(run_id, random_weights=True)], research_calls(), steps)
    return run_id


def test_show_names_the_engines_and_models_that_answered(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = {"engine": "remote", "engine_name": "judge", "model": "large"}
    calls = [
        a_call(0, 0, "plan", engine="embedded", engine_name="", model="demo"),
        a_call(1, 1, "x", **judged, identity="large:review", random_weights=True),
        a_call(2, 2, "y", engine="embedded", engine_name="", model="b", identity="b:write"),
    ]
    run = a_run()
    fill_store(store_url, [run], calls)
    assert exit_code("show", run.id, "--calls") == 0
    output = capsys.readouterr().out
    assert "review @judge" in output
    assert "b:write" in output
    for text in ("engine judge with model large: 1 call", "model b: 1 call"):
        assert text in " ".join(output.split())
    assert "one of the models has random weights" in output
    assert exit_code("show", run.id, "--json") == 0
    shown = json.loads(capsys.readouterr().out)["calls"][1]
    assert (shown["engine"], shown["engine_name"], shown["model"]) == ("remote", "judge", "large")


def test_show_finds_a_run_by_the_beginning_of_its_id_and_the_newest_without_one(
    one_run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([], ["3f2a"], [one_run]):
        assert exit_code("show", *arguments) == 0
        assert one_run in capsys.readouterr().out


def test_show_prints_the_outcome_and_the_calls(
    one_run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("show", "--calls") == 0
    output = capsys.readouterr().out
    assert "took 41.2 s of 60.0 s: deadline met, 18.8 s to spare" in output
    assert "6 calls in 4 stages" in output
    assert "random weights" in output
    assert "#4 read" in output


@pytest.mark.parametrize("width", [60, 80, 140, 200])
def test_the_timeline_fits_the_terminal(
    one_run: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert exit_code("show") == 0
    drawn = capsys.readouterr().out.split("\n\n")[1]
    assert all(len(line) <= width for line in drawn.splitlines())


def test_show_as_json_holds_all_records(one_run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("show", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["run"]["id"] == one_run
    assert document["run"]["started_at"].startswith("2026-03-01T12:00:00")
    assert document["in_time"] is True
    assert len(document["calls"]) == 6
    assert [step["path"] for step in document["steps"]] == ["plan"]
    assert document["edges"] == []


@pytest.mark.parametrize(("policy", "by"), [("calm", "engine"), ("", "client")])
def test_show_says_whether_the_engine_or_the_client_enforces_the_deadline(
    store_url: str, policy: str, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run(engine="remote", policy=policy)])
    assert exit_code("show", "--json") == 0
    assert json.loads(capsys.readouterr().out)["run"]["deadline_kept_by"] == by
    assert exit_code("show") == 0
    assert ("deadline enforced by the client only" in capsys.readouterr().out) == (by == "client")


@pytest.mark.parametrize("user", ["alice", ""])
def test_show_names_the_user_of_a_run(
    store_url: str, user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run(slo_user=user)])
    assert exit_code("show", "--json") == 0
    assert json.loads(capsys.readouterr().out)["run"]["slo_user"] == user
    assert exit_code("show") == 0
    assert ("user alice" in capsys.readouterr().out) == (user == "alice")


def test_show_and_ps_name_the_tags_of_a_run(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tags = {"team": "search", "ticket": "a\nb"}
    fill_store(store_url, [a_run(attributes={"tags": tags})])
    assert exit_code("show", "--json") == 0
    assert json.loads(capsys.readouterr().out)["run"]["tags"] == tags
    assert exit_code("ps", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["tags"] == tags
    assert exit_code("show") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "team=search" in printed
    assert "ticket=a b" in printed


def test_show_prints_the_errors_of_the_run_and_its_calls(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = {
        "status": Status.FAILED,
        "error_type": "EngineDied",
        "error_message": "the engine died: out of memory",
    }
    call = a_call(0, 0, "plan", finished_s=3.0, **failed)
    fill_store(store_url, [a_run(elapsed_s=3.0, **failed)], [call])
    assert exit_code("show") == 0
    output = capsys.readouterr().out
    assert "failed: EngineDied: the engine died: out of memory" in output
    assert "call #0 plan after 3.0 s: EngineDied" in output


def test_show_lists_the_ids_that_an_ambiguous_prefix_matches(
    filled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("show", "aaaa") == 2
    assert "aaaa00010000" in capsys.readouterr().err


@pytest.mark.usefixtures("new_default_store")
def test_show_without_runs_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("show") == 2
    assert "no runs are recorded yet" in capsys.readouterr().err
