from __future__ import annotations

import socket
from pathlib import Path

import pytest

import serving.engine.server.server
from serving.engine.server.local_host import is_loopback
from serving.engine.setup.config import EngineConfig
from tests.cli.cli_samples import exit_code


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("example.org", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("arguments", "is_refused"),
    [
        (["--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0", "--api-key", "secret"], False),
        (["--host", "0.0.0.0", "--insecure"], False),
        ([], False),
    ],
)
def test_serving_other_machines_needs_a_key_or_an_explicit_option(
    capsys: pytest.CaptureFixture[str], arguments: list[str], is_refused: bool
) -> None:
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
    code = exit_code("serve", "--model", "/nowhere", "--port", port, *arguments)
    assert code == (2 if is_refused else 4)
    assert ("--insecure" in capsys.readouterr().err) is is_refused


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    file.write_text('[[keys]]\nuser = "alice"\nkey = "secret"\n')
    file.chmod(0o600)
    return file


def test_a_file_of_keys_allows_serving_other_machines(
    capsys: pytest.CaptureFixture[str], keys: Path
) -> None:
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
    arguments = ("--model", "/nowhere", "--port", port, "--host", "0.0.0.0")
    assert exit_code("serve", *arguments, "--api-keys", str(keys)) == 4
    assert "config.json" in capsys.readouterr().err


def test_an_invalid_file_of_keys_is_reported_with_its_entry(
    capsys: pytest.CaptureFixture[str], keys: Path
) -> None:
    keys.write_text('[[keys]]\nuser = "alice"\n')
    assert exit_code("serve", "--api-keys", str(keys)) == 2
    assert "key 1" in capsys.readouterr().err


def test_a_key_and_a_file_of_keys_exclude_each_other(
    capsys: pytest.CaptureFixture[str], keys: Path
) -> None:
    assert exit_code("serve", "--api-key", "other", "--api-keys", str(keys)) == 2
    assert "--api-keys" in capsys.readouterr().err


def test_the_error_for_an_unknown_policy_lists_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code("serve", "--policy", "nonsense") == 2
    assert "fcfs" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_a_taken_port_is_reported_before_vllm_is_imported(
    capsys: pytest.CaptureFixture[str], host: str
) -> None:
    """This test may not import vLLM."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = str(server.getsockname()[1])
        arguments = ("--model", "someone/model", "--host", host, "--port", port, "--insecure")
        assert exit_code("serve", *arguments) == 2
    error = capsys.readouterr().err
    assert f"{host}:{port}" in error
    assert "cannot listen there" in error


def test_a_host_of_another_machine_is_reported_before_vllm_is_imported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code("serve", "--model", "someone/model", "--host", "192.0.2.1") == 2
    assert "192.0.2.1:8000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["one", "two"], "one model is served"),
        (["one", "--model", "two"], "give the model once"),
        (["random", "--access-log", "/no/such/folder/log"], "access_log"),
    ],
)
def test_what_cannot_be_served_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
    assert exit_code("serve", "--port", port, *arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.engine
@pytest.mark.usefixtures("imported_vllm")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["random", "--", "--scheduler-cls", "x"], "choose a policy"),
        (["random", "--", "--max-num-seqs=4"], "ORCHESTRATE_SLOTS"),
        (["--", "--port", "9"], "give it before --"),
        (["random", "--", "--no-such-flag"], "no-such-flag"),
        (["random", "--", "--tensor-parallel-size", "many"], "tensor-parallel-size"),
        (["random", "--", "--help"], "vllm serve --help"),
    ],
)
def test_what_would_break_the_server_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
    assert exit_code("serve", "--port", port, *arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("setting", "is_kept"), [(None, True), ("1", True), ("0", False)])
def test_a_server_keeps_what_its_scheduler_learns_unless_it_is_told_not_to(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, is_kept: bool
) -> None:
    served = []

    def serve(config: EngineConfig, **_: object) -> None:
        served.append(config.keep_scheduler_state)

    monkeypatch.setattr(serving.engine.server.server, "serve", serve)
    if setting is not None:
        monkeypatch.setenv("ORCHESTRATE_KEEP_SCHEDULER_STATE", setting)
    assert exit_code("serve", "random") == 0
    assert served == [is_kept]
