from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.render.kernels import kernel_in_words
from cli.render.segments import apportioned, call_names, palette_for, segmented, summaries
from cli.terminal.glyphs import ASCII, UNICODE
from patterns.kernel import DEFAULT_KERNEL, StageKernel
from patterns.stages import CallCount, Stage
from tests.cli.cli_samples import exit_code
from tests.cli.pattern_samples import a_pattern, fill, fill_library, research_graph, run_articles

DRAWN_80 = """\
application deep-research
3 patterns kept · 2 in the library · 4-6 stages each
last fit 3 h ago · 1 run since
kernel: runs are alike whose stages make the same calls with output tokens \
within a factor of 1.5 and input tokens within a factor of 3.3; \
tool seconds are ignored, as they foretell nothing

run       runs  uses    time  share of time by stage
bbbb0002     5   2.0  14.5 s  ███░░▓▓▓▓▓▓▓▓▓▓▓▓▓▓░░▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
aaaa0001     1   0.0  10.0 s  █████░░░▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
█ plan 7%   ░ search (tool) ×2 7%   ▓ read ×2-3 53%   ▒ write 33%

step   calls  median  p90  held  bound/real
plan       2      80   96   50%        1.00
write      1     500  500     –           –
output tokens; held: answers within their bound at level 0.9, where they had one
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


def test_a_library_is_drawn_as_a_person_expects(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_library(store_url)
    assert exit_code("patterns", "show", "deep-research") == 0
    assert lines_of(capsys.readouterr().out) == lines_of(DRAWN_80)


def test_a_narrow_terminal_without_unicode_gets_the_same_in_ascii(
    store_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.commands.patterns.is_plain_ascii", lambda _: True)
    monkeypatch.setenv("COLUMNS", "40")
    fill_library(store_url)
    assert exit_code("patterns", "show", "deep-research") == 0
    told = capsys.readouterr().out
    assert told.isascii()
    assert "\n".join(lines_of(ASCII_40)) in "\n".join(lines_of(told))


def test_no_more_patterns_are_drawn_than_asked_for(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_library(store_url)
    assert exit_code("patterns", "show", "deep-research", "--limit", "1") == 0
    told = capsys.readouterr().out
    assert "bbbb0002" in told
    assert "aaaa0001" not in told
    assert "1 more, for 1 run: see --limit" in told


def test_a_pattern_without_a_run_is_called_by_its_number(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store_url, patterns=[a_pattern(research_graph())])
    assert exit_code("patterns", "show", "deep-research") == 0
    told = capsys.readouterr().out
    assert "\n#1 " in told
    assert "never fitted" in told
    assert "not fitted yet" in told
    assert "step " not in told


def test_what_runs_really_did_is_shown(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_articles(store_url, 12)
    assert exit_code("patterns", "show", "article") == 0
    told = capsys.readouterr().out
    assert "12 patterns kept · 12 in the library · 2 stages each" in told
    assert "█ think" in told
    assert "think     12       3    3  100%        1.00" in told


def test_an_unknown_application_is_bad_input_that_names_the_known_ones(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_library(store_url)
    fill(store_url, patterns=[a_pattern(research_graph(), application="article")])
    assert exit_code("patterns", "show", "deep") == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        "error: nothing is learned of 'deep'; there are patterns of: article, deep-research\n"
    )


def test_without_any_run_it_says_what_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("patterns", "show", "deep-research") == 2
    assert "try `orchestrate run`" in capsys.readouterr().err


def test_the_library_as_json_holds_all_patterns(
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
def test_the_picture_fits_the_terminal(
    store_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    rounds: int,
) -> None:
    ids = ["a-name-that-somebody-chose-1", "a-name-that-somebody-chose-2"]
    graph = research_graph(rounds=rounds)
    fill(store_url, runs=ids, patterns=[a_pattern(graph, run_id) for run_id in ids])
    monkeypatch.setenv("COLUMNS", str(width))
    assert exit_code("patterns", "show", "deep-research") == 0
    picture = capsys.readouterr().out.split("\n\n")[1]
    assert all(len(line) <= width for line in picture.splitlines())


@given(shares=st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=60), cells=st.integers(1, 120))
def test_a_bar_is_filled_exactly_and_no_stage_is_lost_where_there_is_room(
    shares: list[float], cells: int
) -> None:
    sizes = apportioned(shares, cells)
    assert sum(sizes) == cells
    assert min(sizes) >= (1 if len(shares) <= cells else 0)


def test_a_stage_that_follows_one_of_its_kind_begins_with_a_cut() -> None:
    stages = [stage(0, "think", 1.0), stage(1, "think", 1.0), stage(2, "tell", 2.0)]
    palette = palette_for(summaries([(stages, 1.0)]), ASCII)
    assert segmented(stages, palette, 12).plain == "###|##......"


def test_kinds_beyond_the_glyphs_share_one_and_are_those_of_least_time() -> None:
    stages = [stage(at, f"step-{at}", 1.0 + at) for at in range(10)]
    found = summaries([(stages, 1.0)])
    palette = palette_for(found, UNICODE)
    drawn = [palette.of(summary.kind)[0] for summary in found]
    assert drawn == [UNICODE.other] * 2 + list(UNICODE.kinds)


def test_the_models_name_is_left_out_where_all_calls_share_it() -> None:
    calls = [("llm", "a/b:c:plan"), ("llm", "a/b:c:write"), ("tool", "search")]
    assert list(call_names(calls[1:]).values()) == ["write", "search (tool)"]  # type: ignore[arg-type]
    mixed = [("llm", "one:plan"), ("llm", "other:plan")]
    assert list(call_names(mixed).values()) == ["one:plan", "other:plan"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kernel", "words"),
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
        (StageKernel((math.inf,) * 3), "all runs that make the same calls count alike"),
    ],
)
def test_the_kernel_is_told_in_words(kernel: StageKernel, words: str) -> None:
    assert words in kernel_in_words(kernel, is_fitted=True)
