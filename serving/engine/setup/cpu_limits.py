"""How much of a machine without a GPU the engine takes: memory for its KV cache, and threads."""

from __future__ import annotations

import os
from pathlib import Path

MIN_KV_CACHE_BYTES = 64 << 20
MAX_KV_CACHE_BYTES = 1 << 30
"""vLLM clears the cache when it starts: measured on two cores, 3.5 s for each GiB."""

KV_CACHE_SHARE = 0.25
"""Share of the free memory that the KV cache takes; the rest is for activations and others."""

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
_LOADED_PER_STORED = 2
"""Weights are stored in 16 bits, and loaded in 32 on a CPU."""


def default_kv_cache_bytes(model_path: str) -> int:
    """The size of the KV cache for a model on a CPU, from the free memory and the model's size.

    vLLM's own choice, 92% of the machine's memory, fails wherever something else runs.

    Args:
        model_path: a folder; the weights of a Hugging Face id are unknown here, and count as none.
    """
    left = available_bytes() - _LOADED_PER_STORED * weights_bytes(Path(model_path))
    return int(min(max(KV_CACHE_SHARE * left, MIN_KV_CACHE_BYTES), MAX_KV_CACHE_BYTES))


def weights_bytes(folder: Path) -> int:
    """The size of the weights in a model's folder."""
    return sum(file.stat().st_size for pattern in _WEIGHTS for file in folder.glob(pattern))


def available_bytes() -> int:
    """Memory that this process can still take: of the machine, and of its control group."""
    return min([_available_on_machine(), *_left_in_cgroup()])


def default_threads() -> int:
    """OpenMP threads of a step: half the cores, so that the scheduler and clients have the others.

    With as many threads as cores each step waits for the thread that shares its core with another
    process.
    """
    return max(1, len(os.sched_getaffinity(0)) // 2)


def _available_on_machine() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _left_in_cgroup() -> list[int]:
    """What a limit of version 2 leaves; empty without one."""
    folder = Path("/sys/fs/cgroup")
    try:
        most = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return []
    return [] if most == "max" else [max(int(most) - used, 0)]
