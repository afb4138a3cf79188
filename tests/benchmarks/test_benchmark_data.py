"""A benchmark with invalid data files ends with an error in one line, before it measures."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import lengths, pattern_report
from benchmarks.step_time import FORMULA

WORKFLOWS = "jitserve_deepresearch_sample.json"
TRACE = "AzureLLMInferenceTrace_conv.csv"
HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:15:46.6805900,374,44\n"

BAD_WORKFLOWS = {
    "no JSON": ("{", "it is not JSON"),
    "no UTF-8": (b"\xff\xfe{}", "it is not JSON"),
    "a list": ("[1,2,3]", "it must be a JSON object, not [1, 2, 3]"),
    "no workflows": ("{}", "it has no 'workflows'"),
    "none of them": ('{"workflows": []}', "it has no workflows"),
    "numbers": ('{"workflows": [1]}', "workflows[0] must be an object, not 1"),
    "a missing key": ('{"workflows": [{"stages": [{}]}]}', "workflows[0].stages[0] has no 'state'"),
    "no calls": ('{"workflows": [{"stages": []}]}', "workflows[0] has no calls"),
    "a wrong type": (
        '{"workflows": [{"stages": [{"state": "a", "requests": [{"in": "9", "out": 1}]}]}]}',
        "workflows[0].stages[0].requests[0].in must be a whole number, not '9'",
    ),
    "no character": (
        '{"workflows": [{"stages": [{"state": "\\ud800", "requests": []}]}]}',
        "workflows[0].stages[0].state must be a non-empty text",
    ),
    "a negative number": (
        '{"workflows": [{"stages": [{"state": "a", "requests": [{"in": 9, "out": -1}]}]}]}',
        "requests[0].out must be a whole number from 0 to 1,000,000, not -1",
    ),
}

BAD_TRACES = {
    "empty": ("", "line 1: no column is named TIMESTAMP"),
    "a head only": (HEAD, "it has 0 training"),
    "too few": (HEAD + 9 * ROW, "it has 6 training"),
    "garbage": (f"{HEAD}{ROW}garbage\n", "line 3: it must have 3 columns"),
    "too many columns": (f"{HEAD}{ROW.strip()},5\n", "line 2: it must have 3 columns"),
    "no number": (f"{HEAD}{ROW.replace('44', 'many')}", "line 2: GeneratedTokens must be a whole"),
    "no time": (f"{HEAD}{ROW.replace('2023', 'then')}", "line 2: TIMESTAMP is not a time"),
    "no UTF-8": (HEAD.encode() + b"\xff\xff\n", "codec can't decode"),
}


ErrorOf = Callable[..., str]


@pytest.fixture
def error_of(capsys: pytest.CaptureFixture[str]) -> ErrorOf:
    """Runs a benchmark; returns the error line with which it ends."""

    def run(main: Callable[[list[str]], int], *arguments: str | Path) -> str:
        assert main([*map(str, arguments)]) == 2
        output, errors = capsys.readouterr()
        assert not output
        return errors.splitlines()[-1].removeprefix("error: ")

    return run


def patterns(arguments: list[str]) -> int:
    return pattern_report.main("", arguments)


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with the fitted step cost, which the workflows' times need."""
    write(tmp_path / "perf" / "a100_llama3_8b_fit.json", json.dumps({"formula": FORMULA}))
    return tmp_path


@pytest.mark.parametrize(("content", "reason"), BAD_WORKFLOWS.values(), ids=BAD_WORKFLOWS)
def test_the_error_of_invalid_workflows_names_the_file_and_the_place(
    data: Path, error_of: ErrorOf, content: str | bytes, reason: str
) -> None:
    file = write(data / "agentic" / WORKFLOWS, content)
    for line in (
        error_of(lengths.main, "--data", data, "--only", "deep_research"),
        error_of(patterns, "--data", data / "agentic", "--only", "errors"),
        error_of(patterns, "--data", data / "agentic", "--only", "speed"),
    ):
        assert line.startswith(f"{file}: ")
        assert reason in line


@pytest.mark.parametrize(("content", "reason"), BAD_TRACES.values(), ids=BAD_TRACES)
def test_the_error_of_an_invalid_trace_names_the_file_and_the_line(
    tmp_path: Path, error_of: ErrorOf, content: str | bytes, reason: str
) -> None:
    file = write(tmp_path / "traces" / TRACE, content)
    line = error_of(lengths.main, "--data", tmp_path, "--only", "azure")
    assert line.startswith(f"{file}: ")
    assert reason in line


def test_workflows_that_all_begin_differently_are_an_error(data: Path, error_of: ErrorOf) -> None:
    folder = data / "agentic"
    calls = [{"in": 9, "out": 1}]
    for name, kind, key in (
        (WORKFLOWS, "state", "requests"),
        ("tot_game24_dag.json", "kind", "calls"),
    ):
        runs = [{"stages": [{kind: state, key: calls}]} for state in "ab"]
        write(folder / name, json.dumps({"workflows": runs}))
    line = error_of(patterns, "--data", folder, "--only", "errors")
    assert line.startswith(f"{folder / WORKFLOWS}: no workflow in it begins")
