"""The work of a worker process: import everything once, then run one task after another."""

from __future__ import annotations

import os
import warnings
from typing import Any

from serving.engine.setup.config import EngineConfig, vllm_platform
from serving.sim.compare.experiments import Task


def prepare() -> None:
    """Import all modules that tasks use, quietly: stdout belongs to the parent's results.

    Then no task's time includes an import, and all modules are of the same code version.
    """
    os.dup2(2, 1)
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    for name, value in EngineConfig().environment(vllm_platform()).items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    import serving.sim.bound.bound
    import serving.sim.compare.capacity
    import serving.sim.drive.live
    import serving.sim.drive.replaying_engine
    import serving.sim.drive.steady_engine  # noqa: F401


def work(task: Task) -> dict[str, Any]:
    """Compute the result of one task."""
    return task.run()
