from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cli.reading.history import History
from cli.render.deadline_plan import explanation, plan_document
from cli.render.describe import sources_in_words
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
  learned from 5 of 12 past patterns that began like it: \
bbbb0002 40%, bbbb0003 20%, #4 20%, +2
stage 1 search (tool) ×2
  planned     ━━━━━━━━━━━━━│                                                   ┃
  real        █▏           │                                                   ┃
  20% ± 3% of the time by its end: due at 15.0 s; ended at 4.4 s, 10.6 s early
  learned from 2 of 12 past patterns that began like it: bbbb0002 40%, aaaa0001 10%
stage 2 read ×2
  planned      ━━━━━━━━━━━━━│                                                  ┃
  real         █████████████│▓▓▓▓▓                                             ┃
  25% ± 3% of the time by its end: due at 15.5 s; ended at 20.5 s, 5.0 s late
  learned from 1 of 12 past patterns that began like it: #4 20%
stage 3 write
  planned                         ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┃
  real                            ░░░░░░░░░░░░░░░░░░░░░░░░                     ┃
  due at 60.0 s; did not end
  an even share of what was left: no past run is known to begin like this one
█ at work   ▓ past its sub-deadline   ░ did not end   │ sub-deadline
┃ deadline 60.0 s

call     stage  bound  tokens            bound from
#0 plan      0    130     120  held      forest
#3 read      2    100     120  exceeded  step's last answers
#4 read      2      –     120            nothing known
1 of 2 bounds held; 90% should
"""  # noqa: RUF001


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_a_plan_is_explained_as_a_person_expects(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_explained_run(store_url)
    assert exit_code("patterns", "explain", "3f2a") == 0
    assert lines_of(capsys.readouterr().out) == lines_of(EXPLAINED_80)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_pictures_and_tables_fit_the_terminal(
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
    told = capsys.readouterr().out
    assert told.isascii() or not ascii_only
    drawn = [line for line in told.splitlines() if line.startswith(("  planned", "  real", "#"))]
    assert len(drawn) == 8 + 3
    assert all(len(line) <= width for line in drawn)


def test_a_run_without_a_deadline_has_shares_and_no_sub_deadlines(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_explained_run(store_url, deadline_s=None)
    assert exit_code("patterns", "explain") == 0
    told = capsys.readouterr().out
    assert "12% ± 3% of the time by its end; ended at 4.2 s\n" in told
    assert "\n  no past run is known to begin like this one\n" in told
    assert not any(word in told for word in ("due", "planned", "early", "late"))


def test_the_plan_as_json(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_run_that_really_learned_is_explained(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, last = run_articles(store_url, 3)
    assert exit_code("patterns", "explain") == 0
    told = capsys.readouterr().out
    assert f"run {last} · article · completed" in told
    assert told.count("learned from 2 of 2 past patterns that began like it") == 2
    assert "100% ± 0% of the time by its end: due at 60.0 s" in told
    assert "no answer's length was foretold" in told


def test_a_run_from_before_plans_were_recorded_says_so(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run()], research_calls())
    assert exit_code("patterns", "explain") == 0
    told = capsys.readouterr().out
    assert "nothing is recorded of its plan: it ran before plans were recorded" in told
    assert "bound" not in told


def test_a_run_without_calls_says_so(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill_store(store_url, [a_run()])
    assert exit_code("patterns", "explain") == 0
    assert "it made no calls" in capsys.readouterr().out


def test_an_unknown_run_is_bad_input(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("patterns", "explain") == 2
    assert exit_code("patterns", "explain", "3f2a") == 2
    fill_store(store_url, [a_run("aaaa00010000"), a_run("aaaa00020000")])
    assert exit_code("patterns", "explain", "nothing") == 2
    assert exit_code("patterns", "explain", "aaaa") == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "no run 'nothing' in this store" in told.err
    assert "aaaa00010000" in told.err


def test_a_sub_deadline_that_was_put_off_to_an_earlier_stages_is_told_so() -> None:
    match = [MatchRecord(1, "aaaa00010000", 1.0)]
    stages = [
        planned(0, 0.0, 10.0, source="learned", share=0.2, matches=match, num_candidates=1),
        planned(1, 1.0, 10.0, source="learned", share=0.3, matches=match, num_candidates=1),
    ]
    calls = [a_call(0, 0, "plan"), a_call(1, 1, "read", started_s=1.0, finished_s=12.0)]
    history = History(a_run(), "completed", calls=calls, stages=stages)
    told = [line.plain for line in explanation(history, width=80)]
    assert "  20% of the time by its end: due at 10.0 s; ended at 1.0 s, 9.0 s early" in told
    assert (
        "  30% of the time by its end: due at 10.0 s, not before stage 0; "
        "ended at 12.0 s, 2.0 s late"
    ) in told


def test_matches_that_are_not_kept_by_name_are_counted() -> None:
    matches = [MatchRecord(number, None, 1 / 40) for number in range(16)]
    learned = {"source": "learned", "share": 0.2, "num_candidates": 500}
    stages = [planned(0, 0.0, 10.0, num_matches=40, matches=matches, **learned)]
    history = History(a_run(), "completed", calls=[a_call(0, 0, "plan")], stages=stages)
    [told] = [line.plain for line in explanation(history, width=80) if "learned from" in line.plain]
    assert told.strip().startswith("learned from 40 of 500 past patterns that began like it: ")
    assert told.endswith(", +37")
    assert plan_document(history)["stages"][0]["num_matches"] == 40


def test_a_stage_that_began_past_its_deadline_can_still_be_drawn() -> None:
    calls = [a_call(0, 0, "plan", started_s=70.0, finished_s=71.0)]
    stages = [planned(0, 70.0, 60.0)]
    history = History(a_run(elapsed_s=71.0), "completed", calls=calls, stages=stages)
    told = [line.plain for line in explanation(history, width=60)]
    assert "  due at 60.0 s; ended at 71.0 s, 11.0 s late" in told
    assert all(len(line) <= 60 for line in told if line.startswith(("  planned", "  real")))


def test_a_stage_without_a_recorded_call_did_not_end() -> None:
    history = History(a_run(), "failed", calls=research_calls()[:1], stages=learned_stages()[:2])
    told = [line.plain for line in explanation(history, width=80)]
    assert "stage 1" in told
    assert "  20% ± 3% of the time by its end: due at 15.0 s; did not end" in told


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


def test_show_points_to_the_explanation_once_something_was_learned(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = shown_sources(store_url, capsys, dict.fromkeys(range(4), "learned"))
    assert told == f"learned from past runs · why: orchestrate patterns explain {RUN}"


def test_show_says_in_how_many_stages_something_was_learned(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = {0: "learned", 1: "learned", 2: "learned", 3: "fallback"}
    told = shown_sources(store_url, capsys, sources)
    assert told.startswith("learned from past runs in 3 of 4 stages, even shares in 1 of 4 stages")


def test_show_does_not_point_to_an_explanation_where_nothing_was_learned(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = shown_sources(store_url, capsys, dict.fromkeys(range(4), "fallback"))
    assert told == "even shares, as no past run is known to begin like this one"


def test_a_source_that_has_no_words_is_called_by_its_name() -> None:
    assert sources_in_words(["oracle"]) == "oracle"


def test_show_as_json_holds_the_plan_and_features_in_hexadecimal(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_articles(store_url, 2)
    assert exit_code("show", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [stage["source"] for stage in document["stages"]] == ["learned", "learned"]
    assert all(bytes.fromhex(call["features"]) for call in document["calls"])
