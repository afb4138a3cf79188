"""EngineConfig: values out of range are rejected; vLLM's arguments follow from it."""

import importlib.metadata
import json
import os
from pathlib import Path

import pytest

from serving.engine.setup import cpu_limits
from serving.engine.setup.config import PINNED_VLLM, EngineConfig, vllm_platform
from serving.errors import EngineMissing, InvalidEngineConfig
from serving.policies.table import PolicySpec


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("model", ""),
        ("model", "  "),
        ("slots", 0),
        ("slots", -1),
        ("step_tokens", 0),
        ("max_model_tokens", 0),
        ("kv_cache_bytes", 0),
        ("cpu_threads", 0),
    ],
)
def test_a_setting_out_of_range_is_named(setting: str, value: object) -> None:
    with pytest.raises(InvalidEngineConfig) as caught:
        EngineConfig(**{setting: value})  # type: ignore[arg-type]
    assert caught.value.args[:2] == (setting, value)


def test_a_step_must_have_a_token_for_every_slot() -> None:
    assert EngineConfig(slots=64, step_tokens=64).step_tokens == 64
    with pytest.raises(InvalidEngineConfig, match="at least slots"):
        EngineConfig(slots=65, step_tokens=64)


def test_the_scheduler_class_depends_on_the_platform() -> None:
    """Deriving from Scheduler on a GPU would switch asynchronous scheduling off."""
    config = EngineConfig()
    cpu = config.vllm_arguments("/m", "cpu")["scheduler_cls"]
    gpu = config.vllm_arguments("/m", "gpu")["scheduler_cls"]
    assert cpu == "serving.engine.scheduler.scheduler.SloScheduler"
    assert gpu == "serving.engine.scheduler.scheduler.SloAsyncScheduler"


def test_the_policy_survives_the_conversion_to_json() -> None:
    spec = PolicySpec("edf", {"batch": 3})
    arguments = EngineConfig(policy=spec).vllm_arguments("/m", "cpu")
    converted = json.loads(json.dumps(arguments["additional_config"]))
    assert PolicySpec.from_json(converted["orchestrate"]["policy"]) == spec


def test_sizes_are_passed_to_vllm_and_omitted_where_not_set() -> None:
    sized = EngineConfig(
        model="org/model", slots=3, step_tokens=99, max_model_tokens=500, kv_cache_bytes=1 << 30
    ).vllm_arguments("/m", "gpu")
    assert sized["model"] == "/m"
    assert (sized["max_num_seqs"], sized["max_num_batched_tokens"]) == (3, 99)
    assert (sized["max_model_len"], sized["kv_cache_memory_bytes"]) == (500, 1 << 30)
    unset = EngineConfig(model="org/model").vllm_arguments("/m", "gpu")
    assert unset.keys().isdisjoint({"max_model_len", "kv_cache_memory_bytes", "dtype"})


def test_float32_is_the_default_on_a_cpu_and_an_explicit_dtype_wins() -> None:
    assert EngineConfig().vllm_arguments("/m", "cpu")["dtype"] == "float32"
    for platform in ("cpu", "gpu"):
        arguments = EngineConfig(dtype="bfloat16").vllm_arguments("/m", platform)
        assert arguments["dtype"] == "bfloat16"


def test_the_demo_model_has_a_small_kv_cache_and_needs_no_network() -> None:
    demo, other = EngineConfig(), EngineConfig(model="org/model")
    assert demo.is_random
    assert not other.is_random
    assert demo.vllm_arguments("/m", "cpu")["kv_cache_memory_bytes"] == 64 << 20
    assert demo.environment("cpu")["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in other.environment("cpu")


def test_on_a_cpu_the_kv_cache_fits_into_the_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(1 << 20))

    def kv_cache_bytes(available: int) -> int:
        monkeypatch.setattr(cpu_limits, "available_bytes", lambda: available)
        arguments = EngineConfig(model="org/model").vllm_arguments(str(tmp_path), "cpu")
        return int(arguments["kv_cache_memory_bytes"])

    assert kv_cache_bytes((2 << 30) + (2 << 20)) == 512 << 20
    assert kv_cache_bytes(1 << 40) == 1 << 30
    assert kv_cache_bytes(0) == 64 << 20
    assert cpu_limits.available_bytes() == 0


def test_available_memory_is_that_of_the_machine_or_less() -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < cpu_limits.available_bytes() <= machine


def test_threads_on_a_cpu_are_not_bound_and_leave_cores_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    for config, threads in (
        (EngineConfig(), "1"),
        (EngineConfig(model="org/model"), "4"),
        (EngineConfig(model="org/model", cpu_threads=3), "3"),
    ):
        environment = config.environment("cpu")
        assert environment["OMP_NUM_THREADS"] == threads
        assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_verbose_does_not_set_vllm_s_log_level() -> None:
    assert "VLLM_LOGGING_LEVEL" in EngineConfig().environment("gpu")
    assert "VLLM_LOGGING_LEVEL" not in EngineConfig(verbose=True).environment("gpu")


class Distributions:
    """Stands for the installed distributions: name -> version."""

    def __init__(self, **versions: str) -> None:
        self._versions = {name.replace("_", "-"): each for name, each in versions.items()}

    def version(self, name: str) -> str:
        if name not in self._versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return self._versions[name]


@pytest.mark.parametrize(
    ("installed", "platform"),
    [
        (Distributions(vllm_cpu=PINNED_VLLM), "cpu"),
        (Distributions(vllm_cpu=f"{PINNED_VLLM}+cpu"), "cpu"),
        (Distributions(vllm=PINNED_VLLM), "gpu"),
        (Distributions(vllm=f"{PINNED_VLLM}+cu129"), "gpu"),
    ],
)
def test_the_platform_depends_on_the_installed_distribution(
    installed: Distributions, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", installed.version)
    assert vllm_platform() == platform


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        (Distributions(), "not installed"),
        (Distributions(vllm="0.31.0"), "0.31.0 is installed, 0.32.0 is needed"),
        (Distributions(vllm_cpu="0.33.0+cpu"), "vllm-cpu 0.33.0"),
    ],
)
def test_a_version_of_vllm_other_than_the_pinned_one_is_refused(
    installed: Distributions, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", installed.version)
    with pytest.raises(EngineMissing, match=message):
        vllm_platform()
