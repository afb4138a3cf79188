"""Arguments of vLLM that users may set themselves, and those that they may not, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from serving.errors import InvalidEngineConfig

_OURS = "belongs to our scheduler; choose a policy (ORCHESTRATE_POLICY)"
_ONE_ENGINE = "a scheduler plans for one engine; start several servers, with a gateway before them"

RESERVED: Mapping[str, str] = MappingProxyType(
    {
        "additional_config": _OURS,
        "async_scheduling": "follows from the platform: on for GPUs, off for CPUs",
        "scheduler_cls": _OURS,
        "scheduler_reserve_full_isl": _OURS,
        "scheduling_policy": _OURS,
        "policy": "is an option of this command: give it before --",
        "structured_outputs_config": "the check of schemas is written for the backend 'guidance'",
        "worker_cls": "belongs to the engine's set-up",
        "disable_log_stats": "the server's metrics need them",
        "model": "set ORCHESTRATE_MODEL, or give the model before --",
        "model_tag": "give the model before --",
        "max_num_seqs": "set ORCHESTRATE_SLOTS",
        "max_num_batched_tokens": "set ORCHESTRATE_STEP_TOKENS",
        "max_model_len": "set ORCHESTRATE_MAX_MODEL_TOKENS",
        "kv_cache_memory_bytes": "set ORCHESTRATE_KV_CACHE_BYTES",
        "dtype": "set ORCHESTRATE_DTYPE",
        "seed": "set ORCHESTRATE_SEED",
        "data_parallel_size": _ONE_ENGINE,
        "data_parallel_size_local": _ONE_ENGINE,
        "data_parallel_rank": _ONE_ENGINE,
        "data_parallel_start_rank": _ONE_ENGINE,
        "data_parallel_address": _ONE_ENGINE,
        "data_parallel_rpc_port": _ONE_ENGINE,
        "data_parallel_backend": _ONE_ENGINE,
        "data_parallel_hybrid_lb": _ONE_ENGINE,
        "data_parallel_external_lb": _ONE_ENGINE,
    }
)
"""Name of an argument of vLLM's EngineArgs -> why it cannot be set, or what to set in its place."""


def check_names(names: Iterable[str], reserved: Mapping[str, str] = RESERVED) -> None:
    """Raise InvalidEngineConfig for the first name that is reserved; it says why."""
    for name in names:
        if name in reserved:
            raise InvalidEngineConfig(
                f"vLLM's {name}", "...", f"cannot be set here: {reserved[name]}"
            )
