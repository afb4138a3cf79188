from __future__ import annotations

import importlib
import inspect
import pickle
import signal
from pathlib import Path

import pytest

from cli.errors import CommandError, Interrupted
from cli.failures import EXIT_CODES, MEANINGS, ExitCode, exit_code_of, message_of
from orchestrator.errors import DeadlineExceeded, OrchestrateError
from serving.errors import EngineDied
from store.errors import StoreLocked
from tests.cli.cli_samples import exit_code, fill_store
from tests.places import ROOT

PACKAGES = ("agents", "cli", "orchestrator", "serving", "store")


def error_classes() -> list[type[BaseException]]:
    """All error classes that our errors.py modules define."""
    files = [file for package in PACKAGES for file in ROOT.glob(f"{package}/**/*errors.py")]
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    return [
        kind
        for name in modules
        for kind in vars(importlib.import_module(name)).values()
        if inspect.isclass(kind) and issubclass(kind, BaseException) and kind.__module__ == name
    ]


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_every_error_class_is_listed_with_an_exit_code(
    kind: type[BaseException],
) -> None:
    assert f"{kind.__module__}.{kind.__qualname__}" in EXIT_CODES


@pytest.mark.parametrize("name", [name for name in EXIT_CODES if "builtins" not in name])
def test_every_listed_error_class_exists(name: str) -> None:
    module, _, kind = name.rpartition(".")
    assert issubclass(getattr(importlib.import_module(module), kind), BaseException)


def test_every_exit_code_is_explained() -> None:
    assert set(MEANINGS) == set(ExitCode)


def test_an_unlisted_error_has_the_exit_code_of_its_base_class() -> None:
    class StillLocked(StoreLocked):
        pass

    assert exit_code_of(StillLocked("sqlite:///x", "busy")) is ExitCode.STORE


def test_the_first_error_of_nested_groups_decides_code_and_message() -> None:
    inner = ExceptionGroup("inner", [EngineDied("out of memory")])
    outer = ExceptionGroup("outer", [inner, ValueError("later")])
    assert exit_code_of(outer) is ExitCode.ENGINE
    assert message_of(outer) == "the engine died: out of memory"


def test_the_message_of_a_foreign_error_starts_with_its_type() -> None:
    assert exit_code_of(ZeroDivisionError("by zero")) is ExitCode.RUN_FAILED
    assert message_of(ZeroDivisionError("by zero")).startswith("ZeroDivisionError: by zero")
    assert message_of(ZeroDivisionError()).startswith("ZeroDivisionError (")
    assert "ORCHESTRATE_VERBOSE=1" in message_of(ZeroDivisionError())


def test_the_message_of_our_own_errors_is_their_text() -> None:
    error = DeadlineExceeded("deep-research", 60.0)
    assert message_of(error) == "deep-research did not end within its 60 s"


def test_a_missing_module_points_to_the_doctor() -> None:
    assert "orchestrate doctor" in message_of(ModuleNotFoundError("No module named 'vllm'"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_exits_with_128_plus_the_signal_number(number: int) -> None:
    error = Interrupted(number, "3f2a")
    assert exit_code_of(error) == 128 + number
    assert "3f2a" in message_of(error)
    assert exit_code_of(pickle.loads(pickle.dumps(error))) == 128 + number


def test_the_base_classes_have_the_exit_code_of_a_failed_run() -> None:
    assert exit_code_of(OrchestrateError()) is exit_code_of(CommandError()) is ExitCode.RUN_FAILED


def test_a_failure_is_one_line_on_stderr_and_nothing_on_stdout(
    store_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill_store(store_url, [])
    assert exit_code("show", "nothing") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: no run 'nothing' in this store; list the runs to see their ids\n"


def test_a_traceback_is_printed_if_requested(
    store_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_store(store_url, [])
    monkeypatch.setenv("ORCHESTRATE_VERBOSE", "1")
    assert exit_code("show", "nothing") == 2
    errors = capsys.readouterr().err
    assert "Traceback" in errors
    assert errors.endswith("list the runs to see their ids\n")


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["ps", "--limit", "0"], ["ps", "--status", "odd"], ["run", "x"]]
)
def test_wrong_usage_is_bad_input(arguments: list[str]) -> None:
    assert exit_code(*arguments) == ExitCode.BAD_INPUT


def test_an_invalid_setting_is_bad_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATE_SLOTS", "many")
    assert exit_code("ps") == ExitCode.BAD_INPUT
    assert "ORCHESTRATE_SLOTS" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["ps"], ["show"]])
def test_a_file_that_is_no_store_is_a_failure_of_the_store(
    tmp_path: Path, command: list[str]
) -> None:
    file = tmp_path / "broken.db"
    file.write_bytes(b"this is no database" * 100)
    assert exit_code(*command, "--store", f"sqlite:///{file}") == ExitCode.STORE
    assert exit_code(*command, "--store", "mysql://localhost/runs") == ExitCode.STORE
