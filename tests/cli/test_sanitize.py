"""Recorded text can neither control the terminal nor imitate lines of the commands' output."""

from __future__ import annotations

import json
import unicodedata
from io import StringIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from cli.terminal.sanitize import PrintableConsole
from store.printable_text import one_line, printable
from store.records import CallKind, Status, StepKind, StepRecord
from tests.cli.cli_samples import a_call, a_run, exit_code, fill_store
from tests.cli.state_samples import acted, add_steps, opened

CLEAR, TITLE, C1 = "\x1b[2J", "\x1b]0;owned\x07", "\x9b31m"
MARKS = "a\u2028b\u2029c\u200e\u200f\u061c\u202a\u202e\u202fd\u2066\u2069e"
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
FORGED = f"plan{CLEAR}{C1}\n  41.200 s  run 3f2a completed in time\r\x08\x7f"


def controls_in(text: str) -> set[str]:
    """The control characters, line separators and direction marks of a text, except layout."""
    return {
        each
        for each in text
        if each not in "\n\t"
        and (
            unicodedata.category(each) in ("Cc", "Zl", "Zp")
            or unicodedata.bidirectional(each) in DIRECTIONS
            or each in "\u200e\u200f\u061c"
        )
    }


@pytest.fixture
def hostile(store_url: str) -> str:
    run = a_run(
        flow=FORGED,
        model=f"demo{TITLE}",
        engine=f"engine{CLEAR}",
        status=Status.FAILED,
        error_type="Boom",
        error_message=f"why{CLEAR}\nnot",
    )
    calls = [
        a_call(0, 0, FORGED),
        a_call(1, 1, FORGED, kind=CallKind.TOOL, status=Status.FAILED, error_type=FORGED),
    ]
    steps = [
        StepRecord(run.id, FORGED, FORGED, 0.0),
        StepRecord(run.id, "input", f"really?{CLEAR}\n{FORGED}", 0.0, kind=StepKind.INPUT),
    ]
    fill_store(store_url, [run], calls, steps)
    path = f"{FORGED}/edit"
    edited = acted(path, "one", "two", checkpoint=FORGED, note=FORGED, changed=[FORGED])
    add_steps(store_url, [("open", FORGED, opened("one", FORGED)), (path, FORGED, edited)])
    return run.id


@pytest.mark.parametrize(
    "command",
    [
        ["ps"],
        ["ps", "--json"],
        ["show", "--calls"],
        ["show", "--json"],
        ["logs"],
        ["logs", "--json"],
        ["watch", "--once"],
        ["watch", "3f2a", "--once"],
        ["checkpoints"],
        ["checkpoints", "--json"],
        ["checkpoints", "--dot"],
        ["patterns", "explain", "3f2a"],
        ["patterns", "show", FORGED],
        ["show", FORGED],
    ],
    ids=lambda command: " ".join(command[:1] + command[2:]),
)
@pytest.mark.parametrize("columns", ["60", "200"])
def test_no_control_character_of_a_record_reaches_the_terminal(
    hostile: str,
    command: list[str],
    columns: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    exit_code(*command)
    captured = capsys.readouterr()
    assert captured.out + captured.err
    assert not controls_in(captured.out + captured.err)


@pytest.mark.parametrize("command", ["ps", "logs", "show", "watch", "checkpoints"])
def test_a_name_with_line_breaks_forges_no_line_of_output(
    hostile: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code(*([command, "--once"] if command == "watch" else [command]))
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.startswith("  41.200 s  run 3f2a completed")]


def test_json_keeps_the_control_characters_of_a_name(
    hostile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code("ps", "--json")
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["flow"] == FORGED


@given(text=st.text())
@example(text=MARKS)
def test_printable_text_keeps_all_but_control_characters(text: str) -> None:
    cleaned = printable(text)
    assert not controls_in(cleaned)
    assert cleaned == "".join(each for each in text if not controls_in(each))
    assert len(one_line(text).splitlines()) <= 1


@given(text=st.text(max_size=50))
def test_a_console_prints_no_control_characters_of_what_it_renders(text: str) -> None:
    for is_terminal in (True, False):
        file = StringIO()
        console = PrintableConsole(
            file=file, force_terminal=is_terminal, width=40, color_system=None, _environ={}
        )
        table = Table(title=text)
        table.add_row(Text(text), Text(text))
        for renderable in (Text(text), table, Markdown(text)):
            console.print(renderable)
        assert not controls_in(file.getvalue())


def test_a_console_keeps_its_own_colours_and_cursor_controls() -> None:
    file = StringIO()
    console = PrintableConsole(file=file, force_terminal=True, color_system="standard", _environ={})
    console.print(Text("red", style="red"))
    console.show_cursor(False)
    assert file.getvalue() == "\x1b[31mred\x1b[0m\n\x1b[?25l"
