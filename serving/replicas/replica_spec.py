"""What a replica serves, as it is sent to the machine that it runs on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.engine.setup.config import EngineConfig


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What a replica serves.

    Attributes:
        config: of its engine.
        host: the address that it listens on; None: that of its machine in the cluster.
        api_key: a key that clients may send; None: none.
        keys: the text of a file of keys; None: there is none.
        vllm_flags: flags of vLLM's server.
        analyzer: the module of the analyzer's process beside it; None: there is none.
        drain_s: seconds that open requests have when it is removed.
    """

    config: EngineConfig
    host: str | None = None
    api_key: str | None = field(default=None, repr=False)
    keys: str | None = field(default=None, repr=False)
    vllm_flags: tuple[str, ...] = ()
    analyzer: str | None = None
    drain_s: float = 30.0


def gpus_of(arguments: Mapping[str, Any], platform: str) -> int:
    """GPUs of a replica with these arguments of vLLM: the product of its parallel sizes.

    Args:
        platform: "cpu" or "gpu" (`serving.engine.setup.config.vllm_platform`).
    """
    if platform == "cpu":
        return 0
    sizes = (arguments.get(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size"))
    return math.prod(int(size) for size in sizes)
