"""What a worker process of a comparison does: vLLM imported once, then one task after another."""

from __future__ import annotations

import os
import warnings
from typing import Any

from serving.engine.config import EngineConfig, vllm_platform
from serving.sim.cases import Task


def prepare() -> None:
    """Import the production scheduler in peace; stdout belongs to the results of the owner."""
    os.dup2(2, 1)
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    for name, value in EngineConfig().environment(vllm_platform()).items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    import serving.engine.virtual  # noqa: F401 - so that no task's time holds the import


def work(task: Task) -> dict[str, Any]:
    """The result of one task."""
    return task.run()
