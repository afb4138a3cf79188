"""`orchestrate run FILE.py:FLOW`: a signature as options, and what was typed as arguments."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from agents.pipeline import ENTRY_POINT_GROUP
from cli.errors import BadInput
from cli.work.flow_arguments import FlowParameter, Shape, parameters_of
from cli.work.pipelines import pipeline_of_flow
from serving.references import load_reference
from tests.cli.cli_samples import exit_code, recorded_runs

FLOWS = '''
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from orchestrator import flow


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Plan(BaseModel):
    title: str
    sizes: list[int]


@flow(deadline="9s")
async def everything(
    text: str,
    number: Annotated[int, Field(ge=1, le=5, description="How many.")] = 2,
    share: float = 0.5,
    loud: bool = False,
    names: list[str] = [],
    plan: Plan | None = None,
    when: date | None = None,
    where: Path = Path("here"),
    colour: Colour = Colour.RED,
    word: Literal["yes", "no"] = "yes",
    model: str = "own",
    table: dict[str, int] = {},
) -> dict[str, object]:
    """Return what it was given.

    A second paragraph.

    Args:
        text: some words,
            over two lines.
        plan (optional): what to do.
    """
    return {
        "text": text, "number": number, "share": share, "loud": loud, "names": names,
        "title": plan and plan.title, "when": str(when), "where": str(where),
        "colour": colour.value, "word": word, "model": model, "table": table,
    }


@flow
async def positional(first: str, /, second: str) -> str:
    return first + second


@flow
async def starred(*words: str) -> str:
    return " ".join(words)


@flow
async def failing(text: str) -> str:
    raise ValueError("never again")


@flow
async def plain(topic, times=2):
    """Write [about] a topic.

    Args:
        topic: a [/b] thing.
    """
    return topic * times


@flow
async def lists(sizes: list[int] | None = None, help: str = "x", tags: list[str] = ["a"]) -> str:
    return f"{sizes} {help}"


@flow
async def colliding(x: str, x_: str) -> str:
    return x + x_


@flow
async def field(x: int = Field(default=3)) -> int:
    return x


def no_flow() -> None: ...
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "flows_of_mine.py"
    path.write_text(FLOWS)
    monkeypatch.setenv("COLUMNS", "160")
    return path


@pytest.fixture
def run(file: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """The exit code of a command on an engine without a model."""
    from orchestrator import testing, wiring

    monkeypatch.setattr(wiring, "engine_of", lambda settings: testing.ScriptedEngine(lambda _: ""))
    return lambda flow, *arguments: exit_code("run", f"{file}:{flow}", *arguments)


def parameters(file: Path, flow: str = "everything") -> dict[str, FlowParameter]:
    flow_parameters = parameters_of(load_reference(f"{file}:{flow}"), taken={"model"})
    return {each.name: each for each in flow_parameters}


def test_a_parameters_type_determines_its_option(file: Path) -> None:
    by_name = parameters(file)
    shapes = {name: each.shape for name, each in by_name.items()}
    assert shapes == dict.fromkeys(by_name, Shape.TEXT) | {
        "loud": Shape.FLAG,
        "names": Shape.REPEATED,
        "plan": Shape.JSON,
        "table": Shape.JSON,
    }
    assert {each.option for each in by_name.values() if each.name == "model"} == {"arg-model"}
    metavars = ("number", "share", "when", "where", "colour", "word", "plan")
    shown = [by_name[name].metavar for name in metavars]
    assert shown == ["N", "X", "TEXT", "PATH", "red|blue", "yes|no", "JSON|@FILE"]


def test_help_shows_types_limits_defaults_and_descriptions(
    run,
    capsys: pytest.CaptureFixture[str],  # type: ignore[no-untyped-def]
) -> None:
    assert run("everything", "--help") == 0
    output = " ".join(capsys.readouterr().out.split())
    for part in (
        "Return what it was given.",
        "Some words, over two lines.",
        "How many. From 1 to 5.",
        "[default: 2]",
        "What to do.",
        "--loud",
        "--no-loud",
        "--arg-model",
        "Default: 9.0 s.",
        "--record-text",
        "--out",
    ):
        assert part in output
    assert "A second paragraph" not in output


def test_what_was_typed_reaches_the_flow_with_its_types(
    run,
    file: Path,
    store_url: str,
    capsys: pytest.CaptureFixture[str],  # type: ignore[no-untyped-def]
) -> None:
    (file.parent / "plan.json").write_text('{"title": "T", "sizes": [1, 2]}')
    code = run(
        "everything",
        *("--text", "3", "--number", "4", "--loud", "--names", "a", "--names", "b"),
        *("--plan", f"@{file.parent / 'plan.json'}", "--when", "2026-01-02", "--colour", "blue"),
        *("--arg-model", "mine", "--table", '{"x": 1}', "--json"),
    )
    captured = capsys.readouterr()
    assert code == 0, captured.err
    document = json.loads(captured.out)
    assert document["result"] == {
        "text": "3",
        "number": 4,
        "share": 0.5,
        "loud": True,
        "names": ["a", "b"],
        "title": "T",
        "when": "2026-01-02",
        "where": "here",
        "colour": "blue",
        "word": "yes",
        "model": "mine",
        "table": {"x": 1},
    }
    assert (document["deadline_s"], document["in_time"]) == (9.0, True)
    (recorded,) = recorded_runs(store_url)
    assert (recorded.id, recorded.entry) == (document["run"], f"{file}:everything")


def test_a_text_result_is_printed_unchanged_and_saved(
    run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],  # type: ignore[no-untyped-def]
) -> None:
    assert run("positional", "--first", "a", "--second", "b", "--out", str(tmp_path / "out")) == 0
    assert capsys.readouterr().out == "ab\n"
    assert (tmp_path / "out" / "result.md").read_text() == "ab"
    assert json.loads((tmp_path / "out" / "result.json").read_text())["result"] == "ab"


@pytest.mark.parametrize(
    ("flow", "arguments", "code", "message"),
    [
        ("everything", [], 2, "--text"),
        ("everything", ["--text", "x", "--number", "6"], 2, "less than or equal to 5"),
        ("everything", ["--text", "x", "--number", "x"], 2, "--number x: "),
        ("everything", ["--text", "x", "--colour", "green"], 2, "'red' or 'blue'"),
        ("everything", ["--text", "x", "--plan", "{"], 2, "--plan {: Invalid JSON"),
        ("everything", ["--text", "x", "--plan", '{"title": 3}'], 2, "title: "),
        ("everything", ["--text", "x", "--plan", "@/nowhere"], 2, "@/nowhere cannot be read"),
        ("everything", ["--text", "x", "--when", "soon"], 2, "--when soon: "),
        ("everything", ["--text", "x", "--nothing", "1"], 2, "--nothing"),
        ("everything", ["--text", "x", "--deadline", "soon"], 2, "60s"),
        ("colliding", ["--x", "x"], 2, "x and x_ would both be --x: rename one"),
        ("field", [], 2, "write x: Annotated[TYPE, Field(...)] = DEFAULT"),
        ("starred", ["--words", "x"], 2, "give each argument a name"),
        ("failing", ["--text", "x"], 1, "never again"),
        ("no_flow", [], 2, "it is not a flow; flows in its module: everything, positional"),
        ("missing", [], 2, "there is no 'missing' in it"),
    ],
)
def test_an_error_has_its_exit_code_and_says_what_is_wrong(
    run,  # type: ignore[no-untyped-def]
    capsys: pytest.CaptureFixture[str],
    flow: str,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    assert run(flow, *arguments) == code
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deep-reserch", "there is deep-research"),
        ("/nowhere/file.py:flow", "there is no such file"),
        ("no_module_of_this_name:flow", "No module named"),
    ],
)
def test_the_error_for_an_unknown_name_says_what_is_missing(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("run", name) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_parameter_without_annotation_has_the_type_of_its_default_or_is_a_text(
    run,  # type: ignore[no-untyped-def]
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("plain", "--topic", "ab", "--times", "3") == 0
    assert capsys.readouterr().out == "ababab\n"


def test_an_optional_list_is_repeated_and_help_is_no_name_of_a_parameter(
    run,  # type: ignore[no-untyped-def]
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("lists", "--sizes", "1", "--sizes", "2", "--arg-help", "y") == 0
    assert capsys.readouterr().out == "[1, 2] y\n"


def test_the_help_shows_a_docstring_as_it_is_and_the_defaults_of_lists(
    run,  # type: ignore[no-untyped-def]
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("plain", "--help") == 0
    output = capsys.readouterr().out
    assert "Write [about] a topic." in output
    assert "A [/b] thing." in output
    assert run("lists", "--help") == 0
    assert "[default: (a)]" in capsys.readouterr().out


def test_a_file_without_a_flow_s_name_lists_its_flows(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("run", str(file)) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert f"{file}:everything, {file}:positional" in message


def test_what_a_module_prints_at_import_is_no_part_of_the_output(
    run,  # type: ignore[no-untyped-def]
    file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file.write_text(f"print('hello')\n{FLOWS}")
    assert run("plain", "--topic", "ab", "--json") == 0
    assert json.loads(capsys.readouterr().out)["result"] == "abab"


def test_a_mistyped_name_lists_the_flows(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("run", f"{file}:evrything") == 2
    assert "it defines Colour, Plan, everything, positional" in capsys.readouterr().err


class InstalledPipelines:
    """Stands for the entry points of installed packages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[EntryPoint] = list(entry_points(group=ENTRY_POINT_GROUP))
        monkeypatch.setattr("cli.work.pipelines.entry_points", lambda group: self.entries)

    def add(self, name: str, value: str) -> None:
        self.entries.append(EntryPoint(name, value, ENTRY_POINT_GROUP))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> InstalledPipelines:
    return InstalledPipelines(monkeypatch)


@pytest.mark.parametrize("code", ["raise KeyError", "import sys; sys.exit(4)"])
def test_a_pipeline_that_cannot_be_imported_does_not_stop_the_others(
    installed: InstalledPipelines,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: str,
) -> None:
    (tmp_path / "a_broken_package.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    installed.add("broken", "a_broken_package:PIPELINE")
    assert exit_code("run", "--help") == 0
    captured = capsys.readouterr()
    assert "deep-research" in captured.out
    assert "pipeline broken (a_broken_package:PIPELINE) cannot be imported" in captured.err
    assert pipeline_of_flow("deep-research") is not None
    assert exit_code("run", "broken") == 2


def test_a_name_of_two_pipelines_is_an_error(
    installed: InstalledPipelines, capsys: pytest.CaptureFixture[str]
) -> None:
    installed.add("deep-research", "another_package:PIPELINE")
    assert exit_code("run", "deep-research", "why?", "--corpus", "docs") == 2
    assert "pipeline deep-research is installed twice" in capsys.readouterr().err


def test_a_type_that_pydantic_does_not_know_is_bad_input(file: Path) -> None:
    parameter = FlowParameter("thing", "thing", object(), None, "")
    with pytest.raises(BadInput, match="a type that pydantic cannot read"):
        parameter.read("x")
