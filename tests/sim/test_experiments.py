"""Experiments on the production scheduler, in virtual time."""

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


def run(**changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "config": CODER,
        "policy": PolicySpec("fcfs"),
        "load": 1.0,
        "rate_per_s": 8.0,
        "seed": 0,
    }
    return Experiment(**arguments | changes).run()


@pytest.mark.parametrize("policy", ["fcfs", "calm_published"])
def test_the_same_experiment_gives_the_same_document_except_measured_times(policy: str) -> None:
    first, second = (run(policy=PolicySpec(policy)) for _ in range(2))
    for document in (first, second):
        assert document["report"].pop("schedule_ms_per_step") > 0
    assert json.dumps(first) == json.dumps(second)
    assert first["report"]["counts"]["arrived"] > 10


def tools_document() -> str:
    """The document of an experiment with prefix caching, which identifies blocks by their hash."""
    config = ExperimentConfig(
        source=Source.generator("tools"), window_s=3.0, warmup_s=0.0, prefix_caching=True
    )
    document = run(config=config, policy=PolicySpec("calm"), rate_per_s=4.0)
    document["report"].pop("schedule_ms_per_step")
    return json.dumps(document)


SCRIPT = """
import sys
from pathlib import Path
from serving.sim.compare import worker

worker.prepare()
from tests.sim.test_experiments import tools_document

Path(sys.argv[1]).write_text(tools_document())
"""


@pytest.mark.usefixtures("subprocesses")
def test_a_process_with_another_hash_seed_gives_the_same_document(tmp_path: Path) -> None:
    other = tmp_path / "document"
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(other)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "1"},
        check=True,
        timeout=300,
    )
    document = tools_document()
    assert json.loads(document)["report"]["counts"]["arrived"] > 3
    assert other.read_text() == document


def test_other_seeds_and_rates_give_another_goodput() -> None:
    goodputs = {
        run(**changes)["report"]["token_goodput"]
        for changes in ({}, {"seed": 1}, {"rate_per_s": 30.0})
    }
    assert len(goodputs) == 3


@pytest.mark.parametrize("policy", ["fcfs", "calm"])
def test_prefix_caching_raises_the_goodput_of_programs_that_repeat_their_context(
    policy: str,
) -> None:
    """calm must predict the cached tokens, or it would not admit these programs."""
    goodputs = {}
    for caching in (False, True):
        loops = ExperimentConfig(
            source=Source.generator("tools"), window_s=8.0, warmup_s=6.0, prefix_caching=caching
        )
        report = run(config=loops, policy=PolicySpec(policy), rate_per_s=6.0)["report"]
        goodputs[caching] = report["token_goodput"]
    assert goodputs[True] > 1.2 * goodputs[False] > 0


def test_the_measured_capacity_hardly_depends_on_the_size_of_the_backlog() -> None:
    few, many = (
        CapacityExperiment(config=CODER, seed=0, num_programs=number).run()["programs_s"]
        for number in (40, 80)
    )
    assert many == pytest.approx(few, rel=0.35)
    assert 5.0 < many < 50.0


def test_a_call_longer_than_the_kv_cache_raises_a_named_error(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    line = '{{"timestamp": {}, "input_length": 500000, "output_length": 3}}\n'
    path.write_text("".join(line.format(second) for second in range(3)))
    config = ExperimentConfig(source=Source.file(path), window_s=4.0, warmup_s=0.0)
    with pytest.raises(InvalidWorkload, match="KV cache holds 467,264 tokens"):
        run(config=config)


def test_a_call_longer_than_the_default_context_is_served(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    line = '{{"timestamp": {}, "input_length": 100000, "output_length": 3}}\n'
    path.write_text("".join(line.format(100 * second) for second in range(3)))
    config = ExperimentConfig(source=Source.file(path), window_s=10.0, warmup_s=0.0)
    counts = run(config=config, rate_per_s=0.2)["report"]["counts"]
    assert counts["arrived"] == 2
    assert counts["finished"] >= 1
