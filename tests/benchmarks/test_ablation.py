"""The ablation: which variants run, and how shares of a gain are computed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks import ablation
from benchmarks.ablation import (
    ORACLE,
    PUBLISHED,
    VARIANTS,
    defaults,
    policy_specs,
    score,
    select_variants,
)
from benchmarks.comparing import Session
from serving.sim.compare.experiments import Experiment, Task
from tests.unit.serving.sim.bench_examples import InProcessRunner, fake_result

EARNED = {"fcfs": 100.0, "calm_published": 150.0, "calm": 200.0}


def fake_run(task: Task) -> dict[str, Any]:
    """A variant earns 175, and calm 240 with oracle predictions."""
    result = fake_result(task)
    if isinstance(task, Experiment):
        earned = 175.0 if task.policy.params else EARNED[task.policy.name]
        if task.config.predictions == "oracle":
            assert task.policy.name == "calm"
            earned = 240.0
        result["report"] |= {"token_goodput": earned, "request_goodput": earned / 100}
    return result


@contextmanager
def fake_session(jobs: int) -> Iterator[Session]:
    yield Session(InProcessRunner(jobs=jobs, work=fake_run))


def test_a_variant_runs_only_if_calm_has_its_parameters_and_other_defaults() -> None:
    default = {"price": True, "batch": 0}
    selection = select_variants(
        {"no price": {"price": False}, "no magic": {"magic": False}, "all at once": {"batch": 0}},
        default,
    )
    assert selection.variants == {"no price": {"price": False}}
    assert selection.skipped == {
        "no magic": "calm takes no magic",
        "all at once": "that is what calm does by default",
    }


def test_every_selected_variant_is_a_valid_policy() -> None:
    selection = select_variants(VARIANTS, defaults())
    assert selection.variants.keys() | selection.skipped.keys() == VARIANTS.keys()
    assert "no admitted set" in selection.variants
    specs = policy_specs(selection.variants)
    assert [specs[name].params for name in selection.variants] == list(selection.variants.values())


def test_a_share_is_the_lost_part_of_the_gain() -> None:
    worse = score(175.0, calm=200.0, fcfs=100.0, published=150.0)
    assert worse == (175.0, 0.875, 0.25, 0.5)
    better = score(210.0, calm=200.0, fcfs=100.0, published=150.0)
    assert (better.of_fcfs, better.of_published) == (-0.1, -0.2)


def test_without_a_gain_there_are_no_shares() -> None:
    without_gain = score(175.0, calm=200.0, fcfs=200.0, published=220.0)
    assert (without_gain.of_fcfs, without_gain.of_published) == (None, None)


def test_every_policy_and_variant_is_compared_with_calm_at_every_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ablation, "session", fake_session)
    arguments = ["--variant", "no admitted set", "--loads", "1,2", "--seeds", "2"]
    assert ablation.main([*arguments, "--json"]) == 0
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
    assert ablation.main(arguments) == 0
    assert "simulated goodput a second at 2x" in capsys.readouterr().out


def test_skipped_variants_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ablation, "session", fake_session)
    monkeypatch.setattr(ablation, "VARIANTS", {"no magic": {"magic": False}})
    assert ablation.main(["--loads", "1", "--seeds", "1"]) == 0
    captured = capsys.readouterr()
    line = "not run: no magic: calm takes no magic"
    assert line in captured.out.splitlines()
    assert line in captured.err.splitlines()
