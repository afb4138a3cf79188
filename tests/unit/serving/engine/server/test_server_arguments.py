"""The command line that our server hands to vLLM's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.engine.server.server import serve, server_arguments
from serving.engine.setup.config import EngineConfig
from serving.errors import InvalidEngineConfig, ModelNotLoaded
from serving.policies.table import PolicySpec


def flags(
    config: EngineConfig, platform: str = "cpu", *, api_key: str | None = None
) -> dict[str, list[str]]:
    """Flag -> its values."""
    arguments = server_arguments(
        config,
        "/models/it",
        platform,
        served_model="it",
        host="127.0.0.1",
        port=8123,
        api_key=api_key,
    )
    found: dict[str, list[str]] = {}
    for argument in arguments:
        flag, _, value = argument.partition("=")
        found.setdefault(flag, []).append(value)
    return found


def test_the_scheduler_and_its_policy_reach_the_engine_process() -> None:
    found = flags(EngineConfig(policy=PolicySpec("fcfs")))
    assert found["--scheduler-cls"] == ["serving.engine.scheduler.scheduler.SloScheduler"]
    [settings] = found["--additional-config"]
    assert json.loads(settings) == {"orchestrate": {"policy": {"name": "fcfs", "params": {}}}}
    assert flags(EngineConfig(), "gpu")["--scheduler-cls"] == [
        "serving.engine.scheduler.scheduler.SloAsyncScheduler"
    ]


def test_every_value_is_bound_to_its_flag() -> None:
    """So that no value, whatever it starts with, is read as another flag."""
    arguments = server_arguments(
        EngineConfig(), "-odd", "cpu", served_model="-o", host="::1", port=1
    )
    assert all(argument.startswith("--") for argument in arguments)
    assert {"--model=-odd", "--served-model-name=-o", "--host=::1"} <= set(arguments)


def test_switches_are_turned_on_and_off_by_name() -> None:
    found = flags(EngineConfig())
    assert "--enforce-eager" in found
    assert "--no-use-tqdm-on-load" in found
    assert "--use-tqdm-on-load" in flags(EngineConfig(verbose=True))


def test_only_the_demo_model_shares_a_process_with_the_engine_core() -> None:
    flag = "--distributed-executor-backend"
    assert flag in flags(EngineConfig())
    assert flag not in flags(EngineConfig(model="real/model"))
    assert flag not in flags(EngineConfig(), "gpu")


def test_an_api_key_brings_the_guard_outermost() -> None:
    tags, guard = (
        f"serving.engine.server.slo_middleware.{name}" for name in ("SloMiddleware", "KeyGuard")
    )
    assert flags(EngineConfig())["--middleware"] == [tags]
    assert "--api-key" not in flags(EngineConfig())
    guarded = flags(EngineConfig(), api_key="secret")
    assert guarded["--middleware"] == [tags, guard]  # vLLM puts the last one outermost
    assert guarded["--api-key"] == ["secret"]


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(InvalidEngineConfig, match="port"):
        serve(EngineConfig(), port=port)


def test_an_empty_api_key_is_refused_rather_than_taken_for_none() -> None:
    with pytest.raises(InvalidEngineConfig, match="api_key"):
        serve(EngineConfig(), api_key=" ")


def test_a_folder_without_a_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", dict[str, str]())
    with pytest.raises(ModelNotLoaded, match=r"no config\.json"):
        serve(EngineConfig(model=str(tmp_path)))
