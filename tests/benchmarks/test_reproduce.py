"""The commands behind the documents' figures: all are listed, and their output is stored."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from typer.main import get_command

from benchmarks import reproduce
from benchmarks.figures import FIGURES, Figure
from benchmarks.reproduce import ROOT, argv, locked, main
from cli.errors import BadInput
from cli.main import app
from cli.work.bench_request import policy_of
from serving.sim.workloads.workloads import WORKLOADS

_COMMAND = re.compile(r"^    ((?:python|orchestrate) .*(?:(?<=\\)\n.*)*)$", re.MULTILINE)
_PATH_OPTION = re.compile(r"--(plot|trace|json|data) \S+")
_ADD_ARGUMENT = re.compile(r'add_argument\(\s*"(--[a-z-]+)"')


def without_paths(command: str) -> str:
    """A command without the values of options that are paths."""
    return _PATH_OPTION.sub(r"--\1", " ".join(shlex.split(command.replace("\\\n", " "))))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """An empty table of figures in place of the real one."""
    table: dict[str, Figure] = {}
    monkeypatch.setattr(reproduce, "FIGURES", table)
    return table


def running(code: str) -> Figure:
    return Figure("a test", f"python -c {shlex.quote(code)}")


def printing(text: str) -> Figure:
    return running(f"print('{text}')")


@pytest.mark.parametrize("document", ["results.md"])
def test_every_command_of_the_documents_is_listed(document: str) -> None:
    commands = _COMMAND.findall((ROOT / "docs" / document).read_text(encoding="utf-8"))
    listed = {without_paths(figure.command) for figure in FIGURES.values()}
    assert commands
    assert {without_paths(command) for command in commands} <= listed


@pytest.mark.parametrize("name", FIGURES)
def test_a_command_uses_existing_files_options_policies_and_workloads(name: str) -> None:
    program, first, *rest = shlex.split(FIGURES[name].command)
    if program == "pytest":
        assert (ROOT / rest[-1]).exists()
        return
    options = {each for each in rest if each.startswith("--")}
    assert options <= (options_of_bench() if program == "orchestrate" else options_of(first, rest))
    for option, value in pairwise(rest):
        if option == "--policy":
            policy_of(value)
    if program == "orchestrate":
        assert first == "bench"
        assert rest[0] in WORKLOADS or rest[0] in ("--trace", "--suite")


def options_of_bench() -> set[str]:
    bench = get_command(app).commands["bench"]  # type: ignore[attr-defined]
    return {option for each in bench.params for option in each.opts}


def options_of(first: str, rest: list[str]) -> set[str]:
    """The options of a script, or of a module after -m, with those from shared modules."""
    source = ROOT / (first if first != "-m" else f"{rest[0].replace('.', '/')}.py")
    text = source.read_text(encoding="utf-8")
    for shared, marker in (("comparing", "options(__doc__"), ("pattern_report", "pattern_report")):
        if marker in text:
            text += (ROOT / "benchmarks" / f"{shared}.py").read_text(encoding="utf-8")
    return set(_ADD_ARGUMENT.findall(text))


@pytest.mark.usefixtures("subprocesses")
def test_the_output_of_a_command_is_stored_and_the_command_not_run_again(
    figures: dict[str, Figure], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--only", "one", "--out", str(tmp_path / "new")]
    figures["one"] = running("import time; print(time.monotonic())")
    assert main(arguments) == 0
    output = tmp_path / "new" / "one.txt"
    first = output.read_text(encoding="utf-8")
    assert main(arguments) == 0
    assert output.read_text(encoding="utf-8") == first
    assert "already" in capfd.readouterr().err
    assert {each.name for each in output.parent.iterdir()} == {"one.txt", ".lock"}


@pytest.mark.usefixtures("subprocesses")
def test_a_changed_command_or_code_version_is_run_again(
    figures: dict[str, Figure], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--only", "one", "--out", str(tmp_path)]
    versions = set()
    for text, version in (("first", "a"), ("second", "a"), ("second", "b")):
        figures["one"] = printing(text)
        monkeypatch.setattr(reproduce, "project_version", lambda version=version: version)
        assert main(arguments) == 0
        head, _, printed = (tmp_path / "one.txt").read_text(encoding="utf-8").partition("\n\n")
        assert printed == f"{text}\n"
        assert text in head
        versions.add(head.splitlines()[-1])
    assert versions == {"# code a", "# code b"}


@pytest.mark.usefixtures("subprocesses")
def test_a_failed_command_is_reported_with_its_output_and_the_others_run(
    figures: dict[str, Figure], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    figures["bad"] = running("print('so far'); raise SystemExit(3)")
    figures["good"] = printing("fine")
    assert main(["--only", "bad", "good", "--out", str(tmp_path)]) == 1
    assert (tmp_path / "bad.failed.txt").read_text(encoding="utf-8").endswith("\n\nso far\n")
    assert not (tmp_path / "bad.txt").exists()
    assert (tmp_path / "good.txt").exists()
    log = capfd.readouterr().err
    assert "exit code 3" in log
    assert "failed: bad" in log
    figures["bad"] = printing("repaired")
    assert main(["--only", "bad", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "bad.failed.txt").exists()


@pytest.mark.usefixtures("subprocesses")
def test_commands_with_missing_files_or_packages_are_left_out_and_reported(
    figures: dict[str, Figure], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    figures["data"] = printing("data")._replace(reads=("traces",))
    figures["rival"] = printing("rival")._replace(imports=("no_such_package.part",))
    figures["last"] = printing("last")
    arguments = ["--only", *figures, "--out", str(tmp_path / "out"), "--data", str(tmp_path)]
    assert main(arguments) == 0
    assert not (tmp_path / "out" / "data.txt").exists()
    log = capfd.readouterr().err.splitlines()
    assert "traces does not exist" in log[-2]
    assert "no_such_package.part is not installed" in log[-1]
    (tmp_path / "traces").mkdir()
    assert main(arguments) == 0
    assert (tmp_path / "out" / "data.txt").exists()


def test_folders_with_blanks_and_braces_are_filled_into_the_command(tmp_path: Path) -> None:
    data = tmp_path / "my {data}"
    command = argv("python -m benchmarks.x --data {data}/a", {"data": data, "out": tmp_path})
    assert command[1:] == ["-m", "benchmarks.x", "--data", f"{data}/a"]


@pytest.mark.parametrize("name", ["file", "folder/one.part"])
def test_an_output_that_cannot_be_written_is_an_error_in_one_line(
    figures: dict[str, Figure], tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    figures["one"] = printing("first")
    out = tmp_path / name.partition("/")[0]
    if out.name == name:
        out.write_text("", encoding="utf-8")
    else:
        (tmp_path / name).mkdir(parents=True)
    assert main(["--only", "one", "--out", str(out)]) == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith("error: cannot write to")


@pytest.mark.usefixtures("subprocesses")
def test_two_processes_cannot_use_one_folder(
    figures: dict[str, Figure], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    figures["one"] = printing("first")
    with locked(tmp_path):
        assert main(["--only", "one", "--out", str(tmp_path)]) == 2
        assert "another process uses this folder" in capfd.readouterr().err
        with pytest.raises(BadInput), locked(tmp_path):
            pass
    assert main(["--only", "one", "--out", str(tmp_path)]) == 0


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_its_child_processes_and_leaves_no_output(
    tmp_path: Path, sent: signal.Signals
) -> None:
    """The command has a child process; the signal is sent only to the parent."""
    pid_file = tmp_path / "pids"
    child = "import time; time.sleep(600)"
    command = (
        "import os, subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}]);"
        f"print(os.getpid(), child.pid, '.', file=open({str(pid_file)!r}, 'w'), flush=True);"
        "child.wait()"
    )
    parent = (
        "import sys; from benchmarks import reproduce;"
        f"reproduce.FIGURES = {{'slow': reproduce.Figure('', {running(command).command!r})}};"
        f"sys.exit(reproduce.main(['--only', 'slow', '--out', {str(tmp_path / 'out')!r}]))"
    )
    with subprocess.Popen([sys.executable, "-c", parent], cwd=ROOT) as process:
        while not (pid_file.exists() and pid_file.read_text(encoding="utf-8").endswith("\n")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(sent)
        assert process.wait(60.0) == 130
    command_id, child_id = map(int, pid_file.read_text(encoding="utf-8").split()[:2])
    assert not is_running(command_id)
    assert not is_running(child_id)
    assert not (tmp_path / "out" / "slow.txt").exists()


def test_the_list_has_every_command_and_runs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    text = capsys.readouterr().out
    assert all(f"{figure.command}\n" in f"{text}\n" for figure in FIGURES.values())
