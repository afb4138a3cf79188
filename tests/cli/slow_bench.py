"""`orchestrate bench` with runs that do not end, for tests that interrupt it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from cli.main import main
from cli.work import bench_session
from serving.sim.compare.capacity import CapacityExperiment
from serving.sim.compare.experiments import Task
from serving.sim.compare.runner import Runner


def prepare() -> None:
    """Do nothing: no scheduler is needed."""


def work(task: Task) -> dict[str, Any]:
    """Return capacities at once; for runs, write a file named by the process id, then sleep."""
    if isinstance(task, CapacityExperiment):
        return {"programs_s": 2.0}
    (Path(sys.argv[1]) / str(os.getpid())).touch()
    time.sleep(600)
    return {}


class SlowRunner(Runner):
    """A runner that executes `work` above."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"work": work, "prepare": prepare})


if __name__ == "__main__":
    bench_session.Runner = SlowRunner  # type: ignore[misc]
    main(["bench", "coder", "--policy", "fcfs", "--jobs", "2", "--no-bound"])
