"""The commands behind the documents' figures: all are there, and what they print is kept."""

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
_OWN_PLACE = re.compile(r"--(plot|trace|json|data) \S+")
_ADDED = re.compile(r'add_argument\(\s*"(--[a-z-]+)"')


def alike(command: str) -> str:
    """A command without the places that are everybody's own."""
    return _OWN_PLACE.sub(r"--\1", " ".join(shlex.split(command.replace("\\\n", " "))))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """A table of our own."""
    table: dict[str, Figure] = {}
    monkeypatch.setattr(reproduce, "FIGURES", table)
    return table


def running(code: str) -> Figure:
    return Figure("what it prints", f"python -c {shlex.quote(code)}")


def printing(text: str) -> Figure:
    return running(f"print('{text}')")


@pytest.mark.parametrize("document", ["scheduling.md", "comparisons.md"])
def test_every_command_of_the_documents_is_here(document: str) -> None:
    told = _COMMAND.findall((ROOT / "docs" / document).read_text(encoding="utf-8"))
    known = {alike(figure.command) for figure in FIGURES.values()}
    assert told
    assert {alike(command) for command in told} <= known


@pytest.mark.parametrize("name", FIGURES)
def test_a_command_asks_for_what_there_is(name: str) -> None:
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
        assert rest[0] in WORKLOADS or rest[0] == "--trace"


def options_of_bench() -> set[str]:
    bench = get_command(app).commands["bench"]  # type: ignore[attr-defined]
    return {option for each in bench.params for option in each.opts}


def options_of(first: str, rest: list[str]) -> set[str]:
    """Of a script, or of a module after -m, and of what it has them from."""
    own = ROOT / (first if first != "-m" else f"{rest[0].replace('.', '/')}.py")
    text = own.read_text(encoding="utf-8")
    for shared, sign in (("comparing", "options(__doc__"), ("pattern_report", "pattern_report")):
        if sign in text:
            text += (ROOT / "benchmarks" / f"{shared}.py").read_text(encoding="utf-8")
    return set(_ADDED.findall(text))


def test_what_a_command_prints_is_kept_and_not_computed_again(
    figures: dict[str, Figure], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ["--only", "one", "--out", str(tmp_path / "new")]
    figures["one"] = running("import time; print(time.monotonic())")
    assert main(given) == 0
    kept = tmp_path / "new" / "one.txt"
    first = kept.read_text(encoding="utf-8")
    assert main(given) == 0
    assert kept.read_text(encoding="utf-8") == first
    assert "already" in capfd.readouterr().err
    assert {each.name for each in kept.parent.iterdir()} == {"one.txt", ".lock"}


def test_another_command_or_other_code_is_computed_anew(
    figures: dict[str, Figure], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--only", "one", "--out", str(tmp_path)]
    versions = set()
    for text, version in (("first", "a"), ("second", "a"), ("second", "b")):
        figures["one"] = printing(text)
        monkeypatch.setattr(reproduce, "project_version", lambda version=version: version)
        assert main(given) == 0
        head, _, printed = (tmp_path / "one.txt").read_text(encoding="utf-8").partition("\n\n")
        assert printed == f"{text}\n"
        assert text in head
        versions.add(head.splitlines()[-1])
    assert versions == {"# code a", "# code b"}


def test_a_failure_is_told_keeps_what_was_printed_and_stops_nobody_else(
    figures: dict[str, Figure], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    figures["bad"] = running("print('so far'); raise SystemExit(3)")
    figures["good"] = printing("fine")
    assert main(["--only", "bad", "good", "--out", str(tmp_path)]) == 1
    assert (tmp_path / "bad.failed.txt").read_text(encoding="utf-8").endswith("\n\nso far\n")
    assert not (tmp_path / "bad.txt").exists()
    assert (tmp_path / "good.txt").exists()
    told = capfd.readouterr().err
    assert "exit code 3" in told
    assert "failed: bad" in told
    figures["bad"] = printing("mended")
    assert main(["--only", "bad", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "bad.failed.txt").exists()


def test_what_is_not_here_is_left_out_and_the_end_says_so(
    figures: dict[str, Figure], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    figures["data"] = printing("data")._replace(reads=("traces",))
    figures["rival"] = printing("rival")._replace(imports=("no_such_package.part",))
    figures["last"] = printing("last")
    given = ["--only", *figures, "--out", str(tmp_path / "out"), "--data", str(tmp_path)]
    assert main(given) == 0
    assert not (tmp_path / "out" / "data.txt").exists()
    told = capfd.readouterr().err.splitlines()
    assert "traces is not here" in told[-2]
    assert "no_such_package.part is not installed" in told[-1]
    (tmp_path / "traces").mkdir()
    assert main(given) == 0
    assert (tmp_path / "out" / "data.txt").exists()


def test_folders_are_put_into_the_command_whatever_is_in_their_names(tmp_path: Path) -> None:
    data = tmp_path / "my {data}"
    command = argv("python -m benchmarks.x --data {data}/a", {"data": data, "out": tmp_path})
    assert command[1:] == ["-m", "benchmarks.x", "--data", f"{data}/a"]


@pytest.mark.parametrize("name", ["file", "folder/one.part"])
def test_a_place_that_cannot_be_written_is_an_error_in_a_line(
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


def test_two_do_not_work_in_one_folder(
    figures: dict[str, Figure], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    figures["one"] = printing("first")
    with locked(tmp_path):
        assert main(["--only", "one", "--out", str(tmp_path)]) == 2
        assert "another one is at work" in capfd.readouterr().err
        with pytest.raises(BadInput), locked(tmp_path):
            pass
    assert main(["--only", "one", "--out", str(tmp_path)]) == 0


def runs(pid: int) -> bool:
    """Whether a process is there and not only waits for somebody to take note of its end."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_who_is_stopped_stops_all_that_was_started_and_keeps_nothing_half_done(
    tmp_path: Path, sent: signal.Signals
) -> None:
    """A command that has started another, and a signal to the first process alone."""
    note = tmp_path / "pids"
    sleeping = "import time; time.sleep(600)"
    starting = (
        "import os, subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {sleeping!r}]);"
        f"print(os.getpid(), child.pid, '.', file=open({str(note)!r}, 'w'), flush=True);"
        "child.wait()"
    )
    ours = (
        "import sys; from benchmarks import reproduce;"
        f"reproduce.FIGURES = {{'slow': reproduce.Figure('', {running(starting).command!r})}};"
        f"sys.exit(reproduce.main(['--only', 'slow', '--out', {str(tmp_path / 'out')!r}]))"
    )
    with subprocess.Popen([sys.executable, "-c", ours], cwd=ROOT) as process:
        while not (note.exists() and note.read_text(encoding="utf-8").endswith("\n")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(sent)
        assert process.wait(60.0) == 130
    command, its_own = map(int, note.read_text(encoding="utf-8").split()[:2])
    assert not runs(command)
    assert not runs(its_own)
    assert not (tmp_path / "out" / "slow.txt").exists()


def test_the_list_has_every_command_and_runs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    told = capsys.readouterr().out
    assert all(f"{figure.command}\n" in f"{told}\n" for figure in FIGURES.values())
