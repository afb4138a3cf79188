"""A prepared worker process of a comparison."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.places import ROOT

pytestmark = pytest.mark.usefixtures("subprocesses")

SCRIPT = """
import sys
from serving.policies.table import PolicySpec
from serving.sim.compare import worker
from serving.sim.compare.capacity import CapacityExperiment
from serving.sim.compare.experiments import BoundExperiment, Experiment
from serving.sim.workloads.load_generator import Source
from serving.sim.compare.experiment_config import ExperimentConfig

worker.prepare()
before = set(sys.modules)
config = ExperimentConfig(source=Source.generator("coder"), window_s=1.0, warmup_s=0.0)
point = {"config": config, "load": 1.0, "rate_per_s": 2.0, "seed": 0}
run, bound = Experiment(policy=PolicySpec("calm"), **point), BoundExperiment(**point)
for task in (run, bound, CapacityExperiment(config=config, seed=0, num_programs=2)):
    worker.work(task)
late = {name for name in set(sys.modules) - before if name.startswith("serving.")}
assert not late, late
"""


def test_a_prepared_worker_has_imported_every_module_of_ours_that_tasks_use() -> None:
    """A later import could load another code version than the one that was checked."""
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
