from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.main import get_command

from cli.failures import ExitCode
from cli.main import app
from tests.cli.cli_samples import exit_code

COMMANDS = [
    ["run"],
    ["run", "deep-research"],
    ["submit"],
    ["submit", "deep-research"],
    ["worker"],
    ["queue"],
    *(
        ["queue", each]
        for each in ("list", "waiting", "pause", "drain", "resume", "limit", "requeue")
    ),
    ["queue", "schedules"],
    ["queue", "unschedule"],
    ["resume"],
    ["fork"],
    ["answer"],
    ["cancel"],
    ["ps"],
    ["show"],
    ["logs"],
    ["watch"],
    ["checkpoints"],
    ["diff"],
    ["changeset"],
    ["apply"],
    ["discard"],
    ["shell"],
    ["patterns"],
    ["patterns", "list"],
    ["patterns", "show"],
    ["patterns", "fit"],
    ["patterns", "explain"],
    ["bench"],
    ["gc"],
    ["doctor"],
    ["serve"],
    ["gateway"],
]


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_every_help_has_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*command, "--help") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert f"Example: orchestrate {' '.join(command)}".strip() in output


def test_the_help_lists_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code("--help")
    lines = capsys.readouterr().out.splitlines()
    for code in ExitCode:
        assert any(line.split()[:1] == [str(code.value)] for line in lines)


def test_these_tests_cover_all_commands() -> None:
    assert set(get_command(app).commands) == {command[0] for command in COMMANDS}  # type: ignore[attr-defined]


def test_the_help_lists_the_commands_in_the_documented_order() -> None:
    group = get_command(app)
    listed = group.list_commands(group.make_context("orchestrate", ["ps"]))  # type: ignore[attr-defined]
    assert listed == list(dict.fromkeys(command[0] for command in COMMANDS))


def test_patterns_without_a_command_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("patterns") == 0
    output = capsys.readouterr().out
    assert all(command in output for command in ("list", "show", "fit", "explain"))


def test_run_without_a_name_lists_the_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("run") == 0
    assert "deep-research" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out.startswith("orchestrate 0.")


PRINTING_COMMANDS = (["ps", "--json"], ["doctor"], ["--help"], ["--version"], ["bench", "--help"])


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command; no store is named, and the default one does not exist."""
    environment = os.environ | {"XDG_DATA_HOME": "/nowhere"}
    environment.pop("ORCHESTRATE_STORE", None)
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("unbuffered", ["PYTHONUNBUFFERED=", "PYTHONUNBUFFERED=1"])
@pytest.mark.parametrize("arguments", PRINTING_COMMANDS, ids=" ".join)
def test_a_full_disk_under_stdout_is_a_named_error(arguments: list[str], unbuffered: str) -> None:
    done = shell(f"{unbuffered} {sys.executable} -m cli {' '.join(arguments)} >/dev/full")
    assert done.returncode == ExitCode.BAD_INPUT
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: cannot write the results to stdout: No space left on device")
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("unbuffered", ["PYTHONUNBUFFERED=", "PYTHONUNBUFFERED=1"])
@pytest.mark.parametrize("arguments", PRINTING_COMMANDS, ids=" ".join)
def test_a_closed_pipe_is_no_error(arguments: list[str], unbuffered: str) -> None:
    command = f"{unbuffered} {sys.executable} -m cli {' '.join(arguments)}"
    done = shell(f"( sleep 0.2; {command}; echo $? >&2 ) | true")
    *errors, code = done.stderr.splitlines()
    assert int(code) == ExitCode.DONE
    assert not any("rror" in line or "Exception" in line for line in errors)


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_stream_is_no_error_and_the_other_stream_is_unaffected(closed: str) -> None:
    number = {"stdout": 1, "stderr": 2}[closed]
    done = shell(f"exec {sys.executable} -m cli ps --json {number}>&-")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if closed == "stderr":
        assert json.loads(done.stdout)["runs"] == []
