"""The command line that our server passes to vLLM's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.engine.clients.remote import RemoteEngine
from serving.engine.server.server import serve, server_arguments
from serving.engine.setup.config import EngineConfig
from serving.errors import InvalidEngineConfig, ModelNotLoaded
from serving.policies.table import PolicySpec


def flags(
    config: EngineConfig,
    platform: str = "cpu",
    *,
    host: str = "127.0.0.1",
    needs_key: bool = False,
) -> dict[str, list[str]]:
    """Flag -> its values."""
    arguments = server_arguments(
        config,
        "/models/it",
        platform,
        served_model="it",
        host=host,
        port=8123,
        needs_key=needs_key,
    )
    values: dict[str, list[str]] = {}
    for argument in arguments:
        flag, _, value = argument.partition("=")
        values.setdefault(flag, []).append(value)
    return values


def test_the_scheduler_and_its_policy_are_passed_to_the_engine_process() -> None:
    values = flags(EngineConfig(policy=PolicySpec("fcfs")))
    assert values["--scheduler-cls"] == ["serving.engine.scheduler.scheduler.SloScheduler"]
    [settings] = values["--additional-config"]
    policy = {"name": "fcfs", "params": {}}
    assert json.loads(settings) == {
        "orchestrate": {"policy": policy, "keep_scheduler_state": False}
    }
    assert flags(EngineConfig(), "gpu")["--scheduler-cls"] == [
        "serving.engine.scheduler.scheduler.SloAsyncScheduler"
    ]


def test_every_value_is_joined_to_its_flag() -> None:
    """Else a value that starts with a dash would be parsed as a flag."""
    arguments = server_arguments(
        EngineConfig(), "-odd", "cpu", served_model="-o", host="::1", port=1
    )
    assert all(argument.startswith("--") for argument in arguments)
    assert {"--model=-odd", "--served-model-name=-o", "--host=::1"} <= set(arguments)


def test_a_switch_is_set_by_its_name_or_its_no_form() -> None:
    values = flags(EngineConfig())
    assert "--enforce-eager" in values
    assert "--no-use-tqdm-on-load" in values
    assert "--use-tqdm-on-load" in flags(EngineConfig(verbose=True))


def test_only_the_demo_model_on_a_cpu_runs_in_the_engine_core_s_process() -> None:
    flag = "--distributed-executor-backend"
    assert flag in flags(EngineConfig())
    assert flag not in flags(EngineConfig(model="real/model"))
    assert flag not in flags(EngineConfig(), "gpu")


def test_the_access_log_is_outermost_and_then_what_limits_access() -> None:
    """vLLM puts the last one outermost. The keys are not among the arguments."""
    advice, tags, status, drain, access, local, log = (
        f"serving.engine.server.{name}"
        for name in (
            "advice.middleware.AdviceMiddleware",
            "slo_middleware.SloMiddleware",
            "engine_status.StatusMiddleware",
            "draining.DrainMiddleware",
            "access.AccessMiddleware",
            "local_host.LocalHostMiddleware",
            "access_log.AccessLogMiddleware",
        )
    )
    inner = [advice, tags, status, drain, access]
    assert flags(EngineConfig())["--middleware"] == [*inner, local, log]
    for values in (
        flags(EngineConfig(), host="0.0.0.0"),  # asked for explicitly
        flags(EngineConfig(), needs_key=True),
    ):
        assert values["--middleware"] == [*inner, log]
        assert "--api-key" not in values


def test_vllm_s_documentation_pages_are_not_served() -> None:
    assert "--disable-fastapi-docs" in flags(EngineConfig())


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(InvalidEngineConfig, match="port"):
        serve(EngineConfig(), port=port)


def test_an_empty_api_key_is_refused_and_not_treated_as_none() -> None:
    with pytest.raises(InvalidEngineConfig, match="api_key"):
        serve(EngineConfig(), api_key=" ")


def test_a_folder_without_a_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", dict[str, str]())
    with pytest.raises(ModelNotLoaded, match=r"no config\.json"):
        serve(EngineConfig(model=str(tmp_path)))


@pytest.mark.parametrize("key", ["\udcff", "schlüssel", "a\nb", " a", "a "])
def test_a_key_that_no_client_could_send_is_refused_by_server_and_client(key: str) -> None:
    with pytest.raises(InvalidEngineConfig, match="api_key") as refused:
        serve(EngineConfig(), api_key=key)
    assert "***" in str(refused.value)
    with pytest.raises(InvalidEngineConfig, match="api_key"):
        RemoteEngine("http://127.0.0.1:9/v1", api_key=key)
