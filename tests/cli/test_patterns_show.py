from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.render.kernels import describe_kernel
from cli.render.segments import apportioned, call_names, palette_for, segmented, summaries
from orchestrator.display.glyphs import ASCII, UNICODE
from patterns.kernel import DEFAULT_KERNEL, StageKernel
from patterns.stages import CallCount, Stage
from tests.cli.cli_samples import exit_code
from tests.cli.pattern_samples import a_pattern, fill, fill_library, research_graph, run_articles

DRAWN_80 = """\
application deep-research
3 patterns kept · 2 in the library · 4-6 stages each
last fit 3 h ago · 1 run since
kernel: runs are similar if their stages make the same calls with output tokens \
within a factor of 1.5 and input tokens within a factor of 3.3; \
tool seconds are ignored because they predict nothing

run       runs  uses    time  share of time by stage
bbbb0002     5   2.0  14.5 s  ███░░▓▓▓▓▓▓▓▓▓▓▓▓▓▓░░▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
aaaa0001     1   0.0  10.0 s  █████░░░▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
█ plan 7%   ░ search (tool) ×2 7%   ▓ read ×2-3 53%   ▒ write 33%

step   calls  median  p90  held  bound/real
plan       2      80   96   50%        1.00
write      1     500  500     –           –
output tokens; held: share of answers within their length bound (level 0.9)
"""  # noqa: RUF001

ASCII_40 = """\
run      runs   time stages
bbbb0002    5 14.5 s #.=====.=====oooooo
aaaa0001    1 10.0 s ##.========oooooooo
# plan 7%   . search (tool) x2 7%
= read x2-3 53%   o write 33%

step  calls median p90 held bound/real
plan      2     80  96  50%       1.00
write     1    500 500    -          -
"""


def stage(index: int, name: str, seconds: float) -> Stage:
    return Stage(index, (0,), (CallCount(f"demo:{name}", "llm", 1),), 10, 10, 10, seconds, 0.0)


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_a_library_is_drawn_as_in_this_example(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_library(store_url)
    assert exit_code("patterns", "show", "deep-research") == 0
    assert lines_of(capsys.readouterr().out) == lines_of(DRAWN_80)


def test_a_run_that_was_cut_off_is_shown_with_a_lower_bound_of_its_time(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store_url, patterns=[a_pattern(research_graph(), is_cut_off=True)])
    assert exit_code("patterns", "show", "deep-research") == 0
    lines = lines_of(capsys.readouterr().out)
    assert "1 pattern kept · 1 in the library · 4 stages each · 1 cut off by deadlines" in lines
    assert any("> 10.0 s" in line for line in lines)
    assert "> its deadline cut the run off" in lines
    assert exit_code("patterns", "show", "deep-research", "--json") == 0
    [pattern] = json.loads(capsys.readouterr().out)["patterns"]
    assert pattern["cut_off"] is True
    assert exit_code("patterns", "list", "--json") == 0
    [application] = json.loads(capsys.readouterr().out)["applications"]
    assert application["patterns_cut_off"] == 1


def test_a_narrow_terminal_without_unicode_gets_ascii_only(
    store_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.commands.patterns.is_plain_ascii", lambda _: True)
    monkeypatch.setenv("COLUMNS", "40")
    fill_library(store_url)
    assert exit_code("patterns", "show", "deep-research") == 0
    output = capsys.readouterr().out
    assert output.isascii()
    assert "\n".join(lines_of(ASCII_40)) in "\n".join(lines_of(output))


def test_at_most_limit_patterns_are_drawn(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_library(store_url)
    assert exit_code("patterns", "show", "deep-research", "--limit", "1") == 0
    output = capsys.readouterr().out
    assert "bbbb0002" in output
    assert "aaaa0001" not in output
    assert "1 more, for 1 run: increase --limit to see them" in output


def test_a_pattern_without_a_known_run_is_shown_by_its_number(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store_url, patterns=[a_pattern(research_graph())])
    assert exit_code("patterns", "show", "deep-research") == 0
    output = capsys.readouterr().out
    assert "\n#1 " in output
    assert "never fitted" in output
    assert "not fitted yet" in output
    assert "step " not in output


def test_a_library_of_executed_runs_is_shown(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_articles(store_url, 12)
    assert exit_code("patterns", "show", "article") == 0
    output = capsys.readouterr().out
    assert "12 patterns kept · 12 in the library · 2 stages each" in output
    assert "█ think" in output
    assert "think     12       3    3  100%        1.00" in output


def test_an_unknown_application_is_bad_input_that_names_the_known_ones(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_library(store_url)
    fill(store_url, patterns=[a_pattern(research_graph(), application="article")])
    assert exit_code("patterns", "show", "deep") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "error: no patterns of 'deep'; applications with patterns: article, deep-research\n"
    )


@pytest.mark.usefixtures("new_default_store")
def test_without_runs_the_message_suggests_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("patterns", "show", "deep-research") == 2
    assert "try `orchestrate run`" in capsys.readouterr().err


def test_json_holds_all_patterns_despite_the_limit(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_library(store_url)
    assert exit_code("patterns", "show", "deep-research", "--json", "--limit", "1") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["patterns_kept"], document["patterns_in_library"]) == (3, 2)
    assert document["kernel"] == {"output_tokens": 0.4, "tool_seconds": None, "input_tokens": 1.2}
    assert [pattern["runs"] for pattern in document["patterns"]] == [5.0, 1.0]
    first = document["patterns"][0]
    assert first["run_id"] == "bbbb00020000"
    assert len(first["stages"]) == 6
    assert first["stages"][1]["calls"] == [{"identity": "search", "kind": "tool", "num_calls": 2}]
    assert sum(stage["share"] for stage in first["stages"]) == pytest.approx(1.0)
    assert [step["identity"] for step in document["steps"]] == ["demo:plan", "demo:write"]
    assert document["steps"][0]["coverage"] == 0.5


@pytest.mark.parametrize("width", [40, 59, 80, 200])
@pytest.mark.parametrize("rounds", [1, 12])
def test_the_bars_fit_the_terminal(
    store_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    rounds: int,
) -> None:
    ids = ["a-run-id-chosen-by-the-user-1", "a-run-id-chosen-by-the-user-2"]
    graph = research_graph(rounds=rounds)
    fill(store_url, runs=ids, patterns=[a_pattern(graph, run_id) for run_id in ids])
    monkeypatch.setenv("COLUMNS", str(width))
    assert exit_code("patterns", "show", "deep-research") == 0
    drawn = capsys.readouterr().out.split("\n\n")[1]
    assert all(len(line) <= width for line in drawn.splitlines())


@given(shares=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=60), cells=st.integers(1, 120))
def test_a_bar_is_filled_exactly_and_every_stage_gets_a_cell_if_there_are_enough(
    shares: list[float], cells: int
) -> None:
    sizes = apportioned(shares, cells)
    assert sum(sizes) == cells
    assert min(sizes) >= (1 if len(shares) <= cells else 0)


def test_a_cut_separates_a_stage_from_a_preceding_one_of_its_kind() -> None:
    stages = [stage(0, "think", 1.0), stage(1, "think", 1.0), stage(2, "tell", 2.0)]
    palette = palette_for(summaries([(stages, 1.0)]), ASCII)
    assert segmented(stages, palette, 12).plain == "###|##......"


def test_the_kinds_with_the_least_time_share_a_glyph_if_there_are_too_many() -> None:
    stages = [stage(at, f"step-{at}", 1.0 + at) for at in range(10)]
    kinds = summaries([(stages, 1.0)])
    palette = palette_for(kinds, UNICODE)
    drawn = [palette.of(summary.kind)[0] for summary in kinds]
    assert drawn == [UNICODE.other] * 2 + list(UNICODE.kinds)


def test_the_models_name_is_left_out_if_all_calls_share_it() -> None:
    calls = [("llm", "a/b:c:plan"), ("llm", "a/b:c:write"), ("tool", "search")]
    assert list(call_names(calls[1:]).values()) == ["write", "search (tool)"]  # type: ignore[arg-type]
    mixed = [("llm", "one:plan"), ("llm", "other:plan")]
    assert list(call_names(mixed).values()) == ["one:plan", "other:plan"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (
            DEFAULT_KERNEL,
            "output tokens, tool seconds and input tokens within a factor of 2.7",
        ),
        (
            StageKernel((0.7, 0.01, math.inf)),
            "with tool seconds within 10 ms and output tokens within a factor of 2.0; "
            "input tokens are ignored",
        ),
        (StageKernel((0.5, 0.5, 9.0)), "tool seconds within 649 ms plus 65%"),
        (StageKernel((0.5, 0.5, 9.0)), "input tokens within a factor of 1,000 or more"),
        (StageKernel((0.04, 0.5, 0.5)), "output tokens within 4%,"),
        (StageKernel((0.004, 0.5, 0.5)), "output tokens under 1% apart,"),
        (StageKernel((0.5, 0.0004, 0.5)), "tool seconds under 1 ms apart and"),
        (StageKernel((0.5, 0.0012, 0.5)), "tool seconds within 1 ms and"),
        (StageKernel((math.inf,) * 3), "all runs that make the same calls are equally similar"),
    ],
)
def test_a_kernel_is_described_by_its_tolerances(kernel: StageKernel, text: str) -> None:
    assert text in describe_kernel(kernel, is_fitted=True)
