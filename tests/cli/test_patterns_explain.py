from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cli.reading.history import History
from cli.render.deadline_plan import explanation, plan_document
from cli.render.describe import describe_sources
from store.records import MatchRecord, Status
from tests.cli.cli_samples import a_call, a_run, exit_code, fill_store, research_calls
from tests.cli.pattern_samples import (
    RUN,
    fill_explained_run,
    learned_stages,
    planned,
    run_articles,
)

EXPLAINED_80 = """\
run 3f2a9c1b77de · deep-research · completed
took 41.2 s of 60.0 s: deadline met, 18.8 s to spare

          0          10 s        20 s        30 s       40 s        50 s
          ┬──────────┬───────────┬───────────┬──────────┬───────────┬──────────┃
stage 0 plan
  planned ━━━━━━━━│                                                            ┃
  real    ████▉   │                                                            ┃
  12% ± 3% of the time by its end: due at 7.5 s; ended at 4.2 s, 3.3 s early
  learned from 5 of 12 past patterns with a similar beginning: \
bbbb0002 40%, bbbb0003 20%, #4 20%, +2
stage 1 search (tool) ×2
  planned     ━━━━━━━━━━━━━│                                                   ┃
  real        █▏           │                                                   ┃
  20% ± 3% of the time by its end: due at 15.0 s; ended at 4.4 s, 10.6 s early
  learned from 2 of 12 past patterns with a similar beginning: bbbb0002 40%, aaaa0001 10%
stage 2 read ×2
  planned      ━━━━━━━━━━━━━│                                                  ┃
  real         █████████████│▓▓▓▓▓                                             ┃
  25% ± 3% of the time by its end: due at 15.5 s; ended at 20.5 s, 5.0 s late
  learned from 1 of 12 past patterns with a similar beginning: #4 20%
stage 3 write
  planned                         ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┃
  real                            ░░░░░░░░░░░░░░░░░░░░░░░░                     ┃
  due at 60.0 s; did not end
  an even share of the time left: no similar past run is known
█ running   ▓ past its sub-deadline   ░ did not end   │ sub-deadline
┃ deadline 60.0 s

call     stage  bound  tokens            bound from
#0 plan      0    130     120  held      forest
#3 read      2    100     120  exceeded  recent answers
#4 read      2      –     120            nothing known
1 of 2 length bounds held; expected: 90%
"""  # noqa: RUF001


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_a_plan_is_explained_as_in_this_example(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_explained_run(store_url)
    assert exit_code("patterns", "explain", "3f2a") == 0
    assert lines_of(capsys.readouterr().out) == lines_of(EXPLAINED_80)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_bars_and_tables_fit_the_terminal(
    store_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    ascii_only: bool,
) -> None:
    monkeypatch.setattr("cli.commands.patterns.is_plain_ascii", lambda _: ascii_only)
    monkeypatch.setenv("COLUMNS", str(width))
    fill_explained_run(store_url)
    assert exit_code("patterns", "explain") == 0
    output = capsys.readouterr().out
    assert output.isascii() or not ascii_only
    drawn = [line for line in output.splitlines() if line.startswith(("  planned", "  real", "#"))]
    assert len(drawn) == 8 + 3
    assert all(len(line) <= width for line in drawn)


def test_a_run_without_a_deadline_has_shares_but_no_sub_deadlines(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_explained_run(store_url, deadline_s=None)
    assert exit_code("patterns", "explain") == 0
    output = capsys.readouterr().out
    assert "12% ± 3% of the time by its end; ended at 4.2 s\n" in output
    assert "\n  no similar past run is known\n" in output
    assert not any(word in output for word in ("due", "planned", "early", "late"))


def test_json_holds_the_plan_of_each_stage(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_explained_run(store_url)
    assert exit_code("patterns", "explain", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["run"]["id"] == RUN
    first, *_, last = document["stages"]
    assert (first["share"], first["spread"], first["num_candidates"]) == (0.12, 0.03, 12)
    assert first["sub_deadline_s"] == 7.5
    assert first["slack_s"] == pytest.approx(3.3)
    assert first["matches"][1] == {"pattern_id": 2, "run_id": "bbbb00020000", "weight": 0.4}
    assert first["calls"] == [{"node": 0, "kind": "llm", "identity": "demo:plan"}]
    assert (last["source"], last["ended_s"], last["slack_s"]) == ("fallback", None, None)
    assert [call["held"] for call in document["llm_calls"]] == [True, False, None]


def test_a_run_with_learned_sub_deadlines_is_explained(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, last = run_articles(store_url, 3)
    assert exit_code("patterns", "explain") == 0
    output = capsys.readouterr().out
    assert f"run {last} · article · completed" in output
    assert output.count("learned from 2 of 2 past patterns with a similar beginning") == 2
    assert "100% ± 0% of the time by its end: due at 60.0 s" in output
    assert "no length bounds: nothing was known about these steps" in output


def test_a_run_older_than_the_recording_of_plans_is_reported_as_such(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run()], research_calls())
    assert exit_code("patterns", "explain") == 0
    output = capsys.readouterr().out
    assert "no plan is recorded: the run is older than the recording of plans" in output
    assert "bound" not in output


def test_a_run_without_calls_has_no_plan(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run()])
    assert exit_code("patterns", "explain") == 0
    assert "the run made no calls" in capsys.readouterr().out


def test_an_unknown_run_is_bad_input(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("patterns", "explain") == 2
    assert exit_code("patterns", "explain", "3f2a") == 2
    fill_store(store_url, [a_run("aaaa00010000"), a_run("aaaa00020000")])
    assert exit_code("patterns", "explain", "nothing") == 2
    assert exit_code("patterns", "explain", "aaaa") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no run 'nothing' in this store" in captured.err
    assert "aaaa00010000" in captured.err


def test_a_sub_deadline_equal_to_that_of_the_previous_stage_is_marked() -> None:
    match = [MatchRecord(1, "aaaa00010000", 1.0)]
    stages = [
        planned(0, 0.0, 10.0, source="learned", share=0.2, matches=match, num_candidates=1),
        planned(1, 1.0, 10.0, source="learned", share=0.3, matches=match, num_candidates=1),
    ]
    calls = [a_call(0, 0, "plan"), a_call(1, 1, "read", started_s=1.0, finished_s=12.0)]
    history = History(a_run(), "completed", calls=calls, stages=stages)
    output = [line.plain for line in explanation(history, width=80)]
    assert "  20% of the time by its end: due at 10.0 s; ended at 1.0 s, 9.0 s early" in output
    assert (
        "  30% of the time by its end: due at 10.0 s, the same as stage 0; "
        "ended at 12.0 s, 2.0 s late"
    ) in output


def test_matches_that_are_not_listed_are_counted() -> None:
    matches = [MatchRecord(number, None, 1 / 40) for number in range(16)]
    learned = {"source": "learned", "share": 0.2, "num_candidates": 500}
    stages = [planned(0, 0.0, 10.0, num_matches=40, matches=matches, **learned)]
    history = History(a_run(), "completed", calls=[a_call(0, 0, "plan")], stages=stages)
    [output] = [
        line.plain for line in explanation(history, width=80) if "learned from" in line.plain
    ]
    assert output.strip().startswith(
        "learned from 40 of 500 past patterns with a similar beginning: "
    )
    assert output.endswith(", +37")
    assert plan_document(history)["stages"][0]["num_matches"] == 40


def test_a_stage_that_began_past_its_sub_deadline_is_drawn() -> None:
    calls = [a_call(0, 0, "plan", started_s=70.0, finished_s=71.0)]
    stages = [planned(0, 70.0, 60.0)]
    history = History(a_run(elapsed_s=71.0), "completed", calls=calls, stages=stages)
    output = [line.plain for line in explanation(history, width=60)]
    assert "  due at 60.0 s; ended at 71.0 s, 11.0 s late" in output
    assert all(len(line) <= 60 for line in output if line.startswith(("  planned", "  real")))


def test_a_stage_without_recorded_calls_did_not_end() -> None:
    history = History(a_run(), "failed", calls=research_calls()[:1], stages=learned_stages()[:2])
    output = [line.plain for line in explanation(history, width=80)]
    assert "stage 1" in output
    assert "  20% ± 3% of the time by its end: due at 15.0 s; did not end" in output


def shown_sources(
    store_url: str, capsys: pytest.CaptureFixture[str], sources: dict[int, str]
) -> str:
    calls = [replace(call, deadline_source=sources[call.stage]) for call in research_calls()]
    fill_store(store_url, [a_run(status=Status.COMPLETED)], calls)
    assert exit_code("show") == 0
    [line] = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("sub-deadlines")
    ]
    return line.removeprefix("sub-deadlines: ")


def test_show_points_to_patterns_explain_if_sub_deadlines_were_learned(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = shown_sources(store_url, capsys, dict.fromkeys(range(4), "learned"))
    assert output == f"learned from past runs · why: orchestrate patterns explain {RUN}"


def test_show_says_in_how_many_stages_the_sub_deadline_was_learned(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = {0: "learned", 1: "learned", 2: "learned", 3: "fallback"}
    output = shown_sources(store_url, capsys, sources)
    assert output.startswith(
        "learned from past runs in 3 of 4 stages, even shares in 1 of 4 stages"
    )


def test_show_does_not_point_to_patterns_explain_if_nothing_was_learned(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = shown_sources(store_url, capsys, dict.fromkeys(range(4), "fallback"))
    assert output == "even shares of the time, because no similar past run is known"


def test_an_unknown_source_is_shown_by_its_name() -> None:
    assert describe_sources(["oracle"]) == "oracle"


def test_show_as_json_holds_the_plan_and_the_features_in_hexadecimal(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_articles(store_url, 2)
    assert exit_code("show", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [stage["source"] for stage in document["stages"]] == ["learned", "learned"]
    assert all(bytes.fromhex(call["features"]) for call in document["calls"])
