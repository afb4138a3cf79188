from __future__ import annotations

import pytest

from cli.commands.serve import is_loopback
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
    ("arguments", "is_warned"),
    [
        (["--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0", "--api-key", "secret"], False),
        ([], False),
    ],
)
def test_serving_other_machines_without_a_key_is_warned_of(
    capsys: pytest.CaptureFixture[str], arguments: list[str], is_warned: bool
) -> None:
    assert exit_code("serve", "--model", "/nowhere", *arguments) == 4
    assert ("warning: " in capsys.readouterr().err) is is_warned


def test_the_error_for_an_unknown_policy_lists_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code("serve", "--policy", "nonsense") == 2
    assert "fcfs" in capsys.readouterr().err
