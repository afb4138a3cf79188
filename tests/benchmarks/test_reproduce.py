"""The commands behind the documents' figures: all are there, and what they print is kept."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from benchmarks import reproduce
from benchmarks.reproduce import FIGURES, ROOT, Figure, argv, main
from cli.main import app

_COMMAND = re.compile(r"^    ((?:python|orchestrate) .*(?:(?<=\\)\n.*)*)$", re.MULTILINE)
_OWN_PLACE = re.compile(r"--(plot|trace|json|data) \S+")


def alike(command: str) -> str:
    """A command without the places that are everybody's own."""
    return _OWN_PLACE.sub(r"--\1", " ".join(shlex.split(command.replace("\\\n", " "))))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """A table of our own."""
    table: dict[str, Figure] = {}
    monkeypatch.setattr(reproduce, "FIGURES", table)
    return table


def printing(text: str) -> Figure:
    return Figure("what it prints", f"python -c \"print('{text}')\"")


@pytest.mark.parametrize("document", ["scheduling.md", "measurements.md"])
def test_every_command_of_the_documents_is_here(document: str) -> None:
    told = _COMMAND.findall((ROOT / "docs" / document).read_text(encoding="utf-8"))
    known = {alike(figure.command) for figure in FIGURES.values()}
    assert told
    assert {alike(command) for command in told} <= known


@pytest.mark.parametrize("name", FIGURES)
def test_a_command_names_what_there_is_and_options_that_it_has(name: str) -> None:
    program, first, *rest = shlex.split(FIGURES[name].command)
    if program == "pytest":
        assert (ROOT / rest[-1]).exists()
        return
    options = {each for each in rest if each.startswith("--")}
    assert options <= (options_of_bench() if program == "orchestrate" else options_of(first, rest))


def options_of_bench() -> set[str]:
    bench = get_command(app).commands["bench"]  # type: ignore[attr-defined]
    return {option for each in bench.params for option in each.opts}


def options_of(first: str, rest: list[str]) -> set[str]:
    """Of a script, or of a module after -m: those that it adds, or one that it shares them with."""
    own = ROOT / (first if first != "-m" else f"{rest[0].replace('.', '/')}.py")
    files = [own, *(ROOT / "benchmarks" / each for each in ("comparing.py", "pattern_report.py"))]
    text = "".join(each.read_text(encoding="utf-8") for each in files)
    return set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', text))


def test_what_a_command_prints_is_kept_and_not_computed_again(
    figures: dict[str, Figure], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    figures["one"] = printing("first")
    assert main(["--only", "one", "--out", str(tmp_path / "new")]) == 0
    figures["one"] = printing("second")
    assert main(["--only", "one", "--out", str(tmp_path / "new")]) == 0
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["one.txt"]
    assert (tmp_path / "new" / "one.txt").read_text(encoding="utf-8") == "first\n"
    assert "already" in capfd.readouterr().err


def test_a_failure_is_told_keeps_what_was_printed_and_stops_nobody_else(
    figures: dict[str, Figure], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    figures["bad"] = Figure("a failure", "python -c \"print('so far'); raise SystemExit(3)\"")
    figures["good"] = printing("fine")
    assert main(["--only", "bad", "good", "--out", str(tmp_path)]) == 1
    assert (tmp_path / "bad.failed.txt").read_text(encoding="utf-8") == "so far\n"
    assert not (tmp_path / "bad.txt").exists()
    assert (tmp_path / "good.txt").exists()
    told = capfd.readouterr().err
    assert "exit code 3" in told
    assert "failed: bad" in told
    figures["bad"] = printing("mended")
    assert main(["--only", "bad", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "bad.failed.txt").exists()


def test_what_is_not_here_is_said_and_left_out(
    figures: dict[str, Figure], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    figures["data"] = printing("data")._replace(reads="traces")
    figures["rival"] = printing("rival")._replace(imports="no_such_package")
    given = ["--only", "data", "rival", "--out", str(tmp_path / "out"), "--data", str(tmp_path)]
    assert main(given) == 0
    assert list((tmp_path / "out").iterdir()) == []
    told = capfd.readouterr().err
    assert "traces is not here" in told
    assert "no_such_package is not installed" in told
    (tmp_path / "traces").mkdir()
    assert main(given) == 0
    assert (tmp_path / "out" / "data.txt").exists()


def test_folders_are_put_into_the_command_whatever_is_in_their_names(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    command = argv("python -m benchmarks.x --data {data}/a", {"data": data, "out": tmp_path})
    assert command[1:] == ["-m", "benchmarks.x", "--data", f"{data}/a"]


def test_a_folder_that_cannot_be_made_is_an_error_in_a_line(
    figures: dict[str, Figure], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    figures["one"] = printing("first")
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["--only", "one", "--out", str(tmp_path / "file")]) == 2
    assert capfd.readouterr().err.startswith("error: cannot write to")


def test_the_list_has_every_command_and_runs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    told = capsys.readouterr().out
    assert all(f"{figure.command}\n" in f"{told}\n" for figure in FIGURES.values())
