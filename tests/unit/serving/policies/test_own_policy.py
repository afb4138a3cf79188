"""A user's own policy, named by its file: it is used like any other, or refused with a reason."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from cli.work.bench_request import policy_of
from serving.errors import InvalidEngineConfig, InvalidReference
from serving.policies.table import PolicySpec
from serving.sim.compare.compare import Plan
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import Experiment
from serving.sim.compare.runner import key_of
from serving.sim.workloads.load_generator import Source
from serving.workload_errors import InvalidWorkload
from tests.places import ROOT
from tests.unit.serving.serving_examples import request, step

EXAMPLE = "examples/my_policy.py:shortest_prompt_first"

FILE = """
from serving.policies.ranking import order_by

def mine(view, *, sign: int = 1):
    return order_by(view, None, sign * view.requests.prompt_tokens)

def faulty(view):
    return order_by(view, None)._replace(order=())

def plain(view):
    return "a plan"

def broken(view):
    raise KeyError("soon")

not_a_function = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policies_of_mine.py"
    path.write_text(FILE)
    return path


def test_the_example_puts_short_prompts_first_until_a_long_one_has_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    requests = (request("long", prompt_tokens=90), request("short", prompt_tokens=5))
    soon, late = (step(*requests, now_s=now_s) for now_s in (1.0, 20.0))
    assert PolicySpec(EXAMPLE).build()(soon).order == ("short", "long")
    assert PolicySpec(EXAMPLE).build()(late).order == ("long", "short")
    patient = policy_of(f"{EXAMPLE}:patience_s=60")
    assert patient.build()(late).order == ("short", "long")


def test_a_spec_has_an_absolute_path_and_reaches_another_process(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    spec = PolicySpec(f"{file.name}:mine", {"sign": -1})
    assert (spec.name, spec.label) == (f"{file}:mine", "mine")
    monkeypatch.chdir("/")
    assert PolicySpec.from_json(spec.to_json()) == pickle.loads(pickle.dumps(spec)) == spec


def test_results_of_an_own_policy_are_not_cached_as_its_code_may_use_any_other(file: Path) -> None:
    config = ExperimentConfig(source=Source.generator("coder"), window_s=4.0, warmup_s=1.0)
    own, ours = (
        Experiment(config=config, policy=PolicySpec(name), load=1.0, rate_per_s=1.0, seed=0)
        for name in (f"{file}:mine", "edf")
    )
    assert key_of(own) is None
    assert key_of(ours) is not None


def test_policies_that_would_be_shown_under_one_name_are_refused_or_distinguished(
    file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "policies.py"
    other.parent.mkdir()
    other.write_text(FILE)
    config = ExperimentConfig(source=Source.generator("coder"), window_s=4.0, warmup_s=1.0)

    def plan(*names: str) -> Plan:
        specs = tuple(map(PolicySpec, names))
        return Plan(config=config, policies=specs, loads=(1.0,), seeds=(0,))

    with pytest.raises(InvalidWorkload, match="under one name"):
        plan(f"{file}:mine", f"{other}:mine")
    assert len(plan(f"{file}:mine", "edf").policies) == 2
    same = tmp_path / "edf.py"
    same.write_text(FILE.replace("def mine", "def edf"))
    assert PolicySpec(f"{same}:edf").label == "edf.py:edf"
    assert [each.label for each in plan("edf", f"{same}:edf").policies] == ["edf", "edf.py:edf"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("faulty", "order must name every request"),
        ("plain", "it returned str and not a Plan"),
        ("broken", "KeyError: 'soon'"),
        ("not_a_function", "not a Python function"),
    ],
)
def test_a_policy_that_would_end_the_engine_is_refused(file: Path, name: str, reason: str) -> None:
    with pytest.raises(InvalidEngineConfig, match=reason):
        PolicySpec(f"{file}:{name}")


def test_unknown_parameters_and_unknown_names_are_refused(file: Path) -> None:
    with pytest.raises(InvalidEngineConfig, match="sign"):
        PolicySpec(f"{file}:mine", {"speed": 1})
    with pytest.raises(InvalidReference, match="it defines mine, faulty, plain, broken"):
        PolicySpec(f"{file}:missing")
    with pytest.raises(InvalidEngineConfig, match=r"your own as FILE\.py:FUNCTION"):
        PolicySpec("mine")
