"""Pieces of a comparison on the production scheduler, in virtual time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serving.policies.table import PolicySpec
from serving.sim.compare.capacity import CapacityExperiment
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import Experiment
from serving.sim.workloads.load_generator import Source
from serving.workload_errors import InvalidWorkload
from tests.places import ROOT

pytestmark = pytest.mark.usefixtures("imported_vllm")

CODER = ExperimentConfig(source=Source.generator("coder"), window_s=4.0, warmup_s=1.0)


def ran(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "setting": CODER,
        "policy": PolicySpec("fcfs"),
        "load": 1.0,
        "rate_per_s": 8.0,
        "seed": 0,
    }
    return Experiment(**given | changes).run()


@pytest.mark.parametrize("policy", ["fcfs", "calm_published"])
def test_the_same_case_gives_the_same_bytes_but_for_what_is_measured(policy: str) -> None:
    one, two = (ran(policy=PolicySpec(policy)) for _ in range(2))
    for document in (one, two):
        assert document["report"].pop("schedule_ms_per_step") > 0
    assert json.dumps(one) == json.dumps(two)
    assert one["report"]["counts"]["arrived"] > 10


HASHED = """
import json
import sys
from pathlib import Path
from serving.sim.compare import worker

worker.prepare()
from serving.policies.table import PolicySpec
from serving.sim.compare.experiments import Experiment
from serving.sim.workloads.load_generator import Source
from serving.sim.compare.experiment_config import ExperimentConfig

setting = ExperimentConfig(
    source=Source.generator("tools"), window_s=3.0, warmup_s=0.0, prefix_caching=True
)
case = Experiment(setting=setting, policy=PolicySpec("calm"), load=1.0, rate_per_s=4.0, seed=0)
document = case.run()
document["report"].pop("schedule_ms_per_step")
Path(sys.argv[1]).write_text(json.dumps(document))
"""


def test_two_processes_give_the_same_bytes_however_they_hash(tmp_path: Path) -> None:
    """Also with the prefix cache on, whose blocks are known by hashes."""
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", HASHED, str(tmp_path / seed)],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            timeout=300,
        )
    one, two = ((tmp_path / seed).read_bytes() for seed in ("1", "2"))
    assert json.loads(one)["report"]["counts"]["arrived"] > 3
    assert one == two


def test_seeds_and_loads_make_a_difference() -> None:
    goodputs = {
        ran(**changes)["report"]["token_goodput"]
        for changes in ({}, {"seed": 1}, {"rate_per_s": 30.0})
    }
    assert len(goodputs) == 3


@pytest.mark.parametrize("policy", ["fcfs", "calm"])
def test_programs_that_repeat_their_context_keep_more_promises_with_a_prefix_cache(
    policy: str,
) -> None:
    """For calm that takes knowing what will be found: else it does not begin them."""
    goodputs = {}
    for caching in (False, True):
        loops = ExperimentConfig(
            source=Source.generator("tools"), window_s=15.0, warmup_s=10.0, prefix_caching=caching
        )
        report = ran(setting=loops, policy=PolicySpec(policy), rate_per_s=6.0)["report"]
        goodputs[caching] = report["token_goodput"]
    assert goodputs[True] > 1.3 * goodputs[False] > 0


def test_a_backlog_of_twice_as_many_drains_as_fast() -> None:
    few, many = (
        CapacityExperiment(setting=CODER, seed=0, num_programs=number).run()["programs_s"]
        for number in (40, 80)
    )
    assert many == pytest.approx(few, rel=0.35)
    assert 5.0 < many < 50.0


def test_a_call_that_the_machine_has_no_room_for_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    line = '{{"timestamp": {}, "input_length": 500000, "output_length": 3}}\n'
    path.write_text("".join(line.format(second) for second in range(3)))
    setting = ExperimentConfig(source=Source.file(path), window_s=4.0, warmup_s=0.0)
    with pytest.raises(InvalidWorkload, match="has room for 467,264 tokens"):
        ran(setting=setting)


def test_a_call_longer_than_the_usual_context_has_room(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    line = '{{"timestamp": {}, "input_length": 100000, "output_length": 3}}\n'
    path.write_text("".join(line.format(100 * second) for second in range(3)))
    setting = ExperimentConfig(source=Source.file(path), window_s=10.0, warmup_s=0.0)
    counts = ran(setting=setting, rate_per_s=0.2)["report"]["counts"]
    assert counts["arrived"] == 2
    assert counts["finished"] >= 1
