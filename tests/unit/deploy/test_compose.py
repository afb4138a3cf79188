"""The compose file: its commands are ours, and its parts name each other rightly."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import typer
import yaml

from cli.main import app
from tests.places import ROOT

FOLDER = ROOT / "deploy" / "compose"


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


COMPOSE = read("compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"] == "orchestrate"]


def test_there_are_two_replicas_two_workers_and_a_gateway() -> None:
    commands = sorted(SERVICES[name]["command"][0] for name in OURS)
    assert commands == ["gateway", "serve", "serve", "serve", "worker", "worker"]


@pytest.mark.parametrize("name", OURS)
def test_each_command_is_one_of_the_cli_with_its_options(name: str) -> None:
    command, *arguments = SERVICES[name]["command"]
    group = typer.main.get_command(app)
    parsed = group.commands[command].make_context(command, list(arguments))  # type: ignore[attr-defined]
    assert parsed.params.get("host", "0.0.0.0") == "0.0.0.0"


def test_each_address_is_that_of_a_service_at_its_port() -> None:
    texts = [json.dumps(COMPOSE), json.dumps(read("prometheus.yml"))]
    texts.append(json.dumps(read("grafana/datasource.yml")))
    found = re.findall(
        r'(?:http://|@|")([a-z]+[a-z0-9-]*)(?::(\d+)|(?=/orchestrate))', " ".join(texts)
    )
    assert len(found) >= 7
    for host, port in found:
        assert host in SERVICES
        command = SERVICES[host].get("command", [])
        if port and "--port" in command:
            assert command[command.index("--port") + 1] == port


def test_the_files_that_are_mounted_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (FOLDER / source).exists()


def test_open_requests_have_their_time_before_a_container_is_killed() -> None:
    for name in OURS:
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > 30
