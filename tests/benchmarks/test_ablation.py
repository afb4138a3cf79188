"""The ablation: which variants are run, and how a gain is divided."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks import ablation
from benchmarks.ablation import ORACLE, PUBLISHED, VARIANTS, chosen, defaults, named, score
from benchmarks.comparing import Session
from serving.sim.compare.experiments import Experiment, Task
from tests.unit.serving.sim.bench_examples import HereRunner, made_up

EARNED = {"fcfs": 100.0, "calm_published": 150.0, "calm": 200.0}


def made_up_here(task: Task) -> dict[str, Any]:
    """A variant earns 175, and calm 240 where it is told the truth."""
    found = made_up(task)
    if isinstance(task, Experiment):
        earned = 175.0 if task.policy.params else EARNED[task.policy.name]
        if task.setting.predictions == "oracle":
            assert task.policy.name == "calm"
            earned = 240.0
        found["report"] |= {"token_goodput": earned, "request_goodput": earned / 100}
    return found


@contextmanager
def made_up_session(jobs: int) -> Iterator[Session]:
    yield Session(HereRunner(jobs=jobs, work=made_up_here))


def test_a_variant_is_run_only_if_calm_knows_it_and_does_otherwise() -> None:
    default = {"price": True, "batch": 0}
    choice = chosen(
        {"no price": {"price": False}, "no magic": {"magic": False}, "all at once": {"batch": 0}},
        default,
    )
    assert choice.kept == {"no price": {"price": False}}
    assert choice.skipped == {
        "no magic": "calm takes no magic",
        "all at once": "that is what calm does by default",
    }


def test_every_variant_that_is_kept_is_a_policy_that_works() -> None:
    choice = chosen(VARIANTS, defaults())
    assert choice.kept.keys() | choice.skipped.keys() == VARIANTS.keys()
    assert "no admitted set" in choice.kept
    specs = named(choice.kept)
    assert [specs[name].params for name in choice.kept] == list(choice.kept.values())


def test_a_share_is_what_is_lost_of_the_gain() -> None:
    found = score(175.0, calm=200.0, fcfs=100.0, published=150.0)
    assert found == (175.0, 0.875, 0.25, 0.5)
    better = score(210.0, calm=200.0, fcfs=100.0, published=150.0)
    assert (better.of_fcfs, better.of_published) == (-0.1, -0.2)


def test_without_a_gain_there_are_no_shares_of_it() -> None:
    found = score(175.0, calm=200.0, fcfs=200.0, published=220.0)
    assert (found.of_fcfs, found.of_published) == (None, None)


def test_all_are_compared_with_calm_at_every_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ablation, "session", made_up_session)
    given = ["--variant", "no admitted set", "--loads", "1,2", "--seeds", "2"]
    assert ablation.main([*given, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"] is True
    names = ["fcfs", PUBLISHED, "calm", "no admitted set", ORACLE]
    assert [(row["load"], row["name"]) for row in document["rows"]] == [
        (load, name) for load in (1.0, 2.0) for name in names
    ]
    lost = {row["name"]: row["tokens"]["of_fcfs"] for row in document["rows"]}
    assert lost == pytest.approx(
        {"fcfs": 1.0, PUBLISHED: 0.5, "calm": 0.0, "no admitted set": 0.25, ORACLE: -0.4}
    )
    assert ablation.main(given) == 0
    assert "simulated goodput a second at 2x" in capsys.readouterr().out


def test_what_is_not_run_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ablation, "session", made_up_session)
    monkeypatch.setattr(ablation, "VARIANTS", {"no magic": {"magic": False}})
    assert ablation.main(["--loads", "1", "--seeds", "1"]) == 0
    captured = capsys.readouterr()
    told = "not run: no magic: calm takes no magic"
    assert told in captured.out.splitlines()
    assert told in captured.err.splitlines()
