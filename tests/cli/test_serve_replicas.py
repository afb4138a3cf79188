"""`orchestrate serve --replicas`: what it refuses. Replicas themselves: tests/replicas."""

from __future__ import annotations

import sys

import pytest

from cli.commands.servers.replicas import replica_numbers
from cli.errors import BadInput
from tests.cli.cli_samples import exit_code


@pytest.mark.parametrize(("written", "numbers"), [("2", (2, 2)), (" 1-4 ", (1, 4))])
def test_replicas_are_a_number_or_a_range(written: str, numbers: tuple[int, int]) -> None:
    assert replica_numbers(written) == numbers


@pytest.mark.parametrize("written", ["", "0", "0-2", "3-2", "two", "1-", "-1", "1.5", "99999"])
def test_other_numbers_of_replicas_are_refused(written: str) -> None:
    with pytest.raises(BadInput, match="--replicas"):
        replica_numbers(written)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--ray", "auto"], "--replicas"),
        (["--replicas", "2", "--access-log", "-"], "--access-log"),
        (["--replicas", "2", "--host", "0.0.0.0"], "--insecure"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert exit_code("serve", "random", *arguments) == 2
    assert named in capsys.readouterr().err


def test_without_ray_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith("serving.replicas.ray")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert exit_code("serve", "random", "--replicas", "2") == 4
    assert "orchestrate-llm[ray]" in capsys.readouterr().err
