"""The verdicts of robustness: which results count as worse than fcfs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks import robustness
from benchmarks.comparing import Session
from benchmarks.loose_slos import LooseExperiment
from benchmarks.robustness import CONDITIONS, GOODPUTS, NO_TAGS, goodput_rows, table, untagged_rows
from serving.sim.compare.compare import compare
from serving.sim.compare.experiments import Experiment, Task
from tests.unit.serving.sim.bench_examples import InProcessRunner, fake_result, make_plan


def results(throughput: float, e2el_s: float, *, finished: int = 9) -> list[dict[str, Any]]:
    """Results of two seeds with these means."""
    return [
        {
            "throughput_tokens_s": throughput + change,
            "mean_e2el_s": e2el_s - change / 10,
            "arrived": 9,
            "finished": finished,
        }
        for change in (-1.0, 1.0)
    ]


def fake_run(task: Task) -> dict[str, Any]:
    """calm has 0.979 of the request goodput of fcfs, and the same token goodput."""
    if isinstance(task, LooseExperiment):
        return results(1000.0, 10.0)[task.seed]
    result = fake_result(task)
    if isinstance(task, Experiment):
        earned = 0.979 if task.policy.name == "calm" else 1.0
        result["report"] |= {"token_goodput": 500.0, "request_goodput": earned}
    return result


@contextmanager
def fake_session(jobs: int) -> Iterator[Session]:
    yield Session(InProcessRunner(jobs=jobs, work=fake_run))


def test_a_row_is_ok_only_if_neither_goodput_is_below_98_percent() -> None:
    plan = make_plan("fcfs", "calm", "sjf", loads=(2.0,))
    rows = {row.policy: row for row in goodput_rows("x", compare(plan, InProcessRunner()))}
    assert rows["fcfs"].is_ok is None
    assert rows["calm"].is_ok is True  # fake results depend on the length of the name
    assert rows["sjf"].is_ok is False
    assert rows["sjf"].ratios == pytest.approx(dict.fromkeys(GOODPUTS, 0.75), abs=0.001)
    below = compare(plan, InProcessRunner(work=fake_run))
    rows = {row.policy: row for row in goodput_rows("x", below)}
    assert (rows["sjf"].is_ok, rows["calm"].is_ok) == (True, False)


@pytest.mark.parametrize(
    ("documents", "is_ok"),
    [
        (results(1000.0, 10.0), True),
        (results(981.0, 10.19), True),
        (results(979.0, 10.0), False),
        (results(1000.0, 10.21), False),
        (results(1000.0, 10.0, finished=8), False),
        (results(1100.0, 9.0), True),
    ],
)
def test_without_tags_throughput_and_latency_must_hold_and_all_programs_complete(
    documents: list[dict[str, Any]], is_ok: bool
) -> None:
    rows = list(untagged_rows(1.0, {"fcfs": results(1000.0, 10.0), "calm": documents}))
    assert [row.is_ok for row in rows] == [None, is_ok]


def test_every_condition_has_a_different_config() -> None:
    configs = {
        name: condition.config(window_s=30.0, warmup_s=5.0)
        for name, condition in CONDITIONS.items()
        if name != NO_TAGS
    }
    keys = {json.dumps(each.predictions_key(), sort_keys=True) for each in configs.values()}
    assert len(keys) == len(configs)
    assert all(each.window_s == 30.0 for each in configs.values())


def test_the_table_names_the_missed_conditions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(robustness, "session", fake_session)
    arguments = ["--condition", "burst", "--condition", NO_TAGS, "--loads", "2", "--seeds", "2"]
    assert robustness.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("simulated goodput")
    assert lines[-1] == "calm: 1 of 2 ok; MISS: burst at 2x"
    assert robustness.main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"] is True
    assert [(row["condition"], row["policy"], row["is_ok"]) for row in document["rows"]] == [
        ("burst", "fcfs", None),
        ("burst", "calm", False),
        (NO_TAGS, "fcfs", None),
        (NO_TAGS, "calm", True),
    ]


def test_an_invalid_argument_is_an_error_without_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(robustness, "session", fake_session)
    for arguments in (["--loads", "high"], ["--policy", "unknown"]):
        assert robustness.main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "error: " in captured.err


def test_a_comparison_without_seeds_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        robustness.main(["--seeds", "0"])
    assert ended.value.code == 2
    assert "--seeds: must be at least 1" in capsys.readouterr().err


def test_a_table_with_untagged_rows_only_has_no_goodputs() -> None:
    rows = list(untagged_rows(1.0, {"fcfs": results(1000.0, 10.0)}))
    assert "goodput" not in table(rows)
