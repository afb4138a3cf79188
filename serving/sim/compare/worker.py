"""What a worker process of a comparison does: all imported once, then one task after another."""

from __future__ import annotations

import os
import warnings
from typing import Any

from serving.engine.setup.config import EngineConfig, vllm_platform
from serving.sim.compare.experiments import Task


def prepare() -> None:
    """Import all that tasks run, in peace; stdout belongs to the results of the owner.

    No task's time then holds an import, and no module is of other code than the rest.
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
    import serving.sim.drive.virtual_engine  # noqa: F401


def work(task: Task) -> dict[str, Any]:
    """The result of one task."""
    return task.run()
