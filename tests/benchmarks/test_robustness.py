"""The verdicts of robustness: what counts as worse than first come, first served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks import robustness
from benchmarks.comparing import Session
from benchmarks.robustness import CONDITIONS, GOODPUTS, NO_TAGS, goodput_rows, table, untagged_rows
from benchmarks.unpressed import Unpressed
from serving.sim.compare.compare import compare
from serving.sim.compare.experiments import Experiment, Task
from tests.unit.serving.sim.bench_examples import HereRunner, a_plan, made_up


def results(throughput: float, e2el_s: float, *, finished: int = 9) -> list[dict[str, Any]]:
    """Two seeds around these means."""
    return [
        {
            "throughput_tokens_s": throughput + change,
            "mean_e2el_s": e2el_s - change / 10,
            "arrived": 9,
            "finished": finished,
        }
        for change in (-1.0, 1.0)
    ]


def made_up_here(task: Task) -> dict[str, Any]:
    """calm earns 0.979 of fcfs in requests, and as much in tokens."""
    if isinstance(task, Unpressed):
        return results(1000.0, 10.0)[task.seed]
    found = made_up(task)
    if isinstance(task, Experiment):
        earned = 0.979 if task.policy.name == "calm" else 1.0
        found["report"] |= {"token_goodput": 500.0, "request_goodput": earned}
    return found


@contextmanager
def made_up_session(jobs: int) -> Iterator[Session]:
    yield Session(HereRunner(jobs=jobs, work=made_up_here))


def test_a_cell_is_ok_only_if_neither_goodput_is_below_98_percent() -> None:
    plan = a_plan("fcfs", "calm", "sjf", loads=(2.0,))
    rows = {row.policy: row for row in goodput_rows("x", compare(plan, HereRunner()))}
    assert rows["fcfs"].is_ok is None
    assert rows["calm"].is_ok is True  # as long a name earns as much
    assert rows["sjf"].is_ok is False
    assert rows["sjf"].ratios == pytest.approx(dict.fromkeys(GOODPUTS, 0.75), abs=0.001)
    below = compare(plan, HereRunner(work=made_up_here))
    rows = {row.policy: row for row in goodput_rows("x", below)}
    assert (rows["sjf"].is_ok, rows["calm"].is_ok) == (True, False)


@pytest.mark.parametrize(
    ("found", "is_ok"),
    [
        (results(1000.0, 10.0), True),
        (results(981.0, 10.19), True),
        (results(979.0, 10.0), False),
        (results(1000.0, 10.21), False),
        (results(1000.0, 10.0, finished=8), False),
        (results(1100.0, 9.0), True),
    ],
)
def test_without_tags_nobody_may_be_slower_or_be_left_behind(
    found: list[dict[str, Any]], is_ok: bool
) -> None:
    rows = list(untagged_rows(1.0, {"fcfs": results(1000.0, 10.0), "calm": found}))
    assert [row.is_ok for row in rows] == [None, is_ok]


def test_every_condition_is_a_setting_of_its_own() -> None:
    settings = {
        name: condition.setting(window_s=30.0, warmup_s=5.0)
        for name, condition in CONDITIONS.items()
        if name != NO_TAGS
    }
    keys = {json.dumps(each.predictions_key(), sort_keys=True) for each in settings.values()}
    assert len(keys) == len(settings)
    assert all(each.window_s == 30.0 for each in settings.values())


def test_the_table_names_the_cells_that_were_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(robustness, "session", made_up_session)
    chosen = ["--condition", "burst", "--condition", NO_TAGS, "--loads", "2", "--seeds", "2"]
    assert robustness.main(chosen) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("simulated goodput")
    assert lines[-1] == "calm: 1 of 2 ok; MISS: burst at 2x"
    assert robustness.main([*chosen, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"] is True
    assert [(row["condition"], row["policy"], row["is_ok"]) for row in document["rows"]] == [
        ("burst", "fcfs", None),
        ("burst", "calm", False),
        (NO_TAGS, "fcfs", None),
        (NO_TAGS, "calm", True),
    ]


def test_nonsense_ends_with_an_error_and_no_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(robustness, "session", made_up_session)
    for given in (["--loads", "high"], ["--policy", "nobody"]):
        assert robustness.main(given) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "error: " in captured.err


def test_a_comparison_over_no_seeds_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        robustness.main(["--seeds", "0"])
    assert ended.value.code == 2
    assert "--seeds: must be at least 1" in capsys.readouterr().err


def test_a_table_of_no_promises_alone_has_no_goodputs() -> None:
    rows = list(untagged_rows(1.0, {"fcfs": results(1000.0, 10.0)}))
    assert "goodput" not in table(rows)
