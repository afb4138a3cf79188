from __future__ import annotations

import itertools
import json
import re
import sqlite3
from typing import Any

import pytest

from cli.render.state_log import MAX_BRANCHES, state_log
from orchestrator.environment.states.past_states import PastStates
from store.records import Status
from store.state_records import EdgeKind, Revertibility
from tests.cli.cli_samples import a_run, exit_code, fill_store
from tests.cli.state_samples import (
    RUN,
    Done,
    a_state,
    acted,
    an_edge,
    exploration,
    fill_states,
    opened,
    state_id,
)

UNICODE = """\
run 3f2a9c1b77de · deep-research · completed
/home/ada/repo · 6 states, 2 checkpoints

● 82f10d2f (start) · workspace
├─┬─┬─╮
● │ │ │ d33fb48a (tests pass, @repo.1) · attempt[0]/edit · 1.2 s · +3 ~1 -0 · adopt · 1.2 s · \
! external: tell · 1 action changed nothing
│ │ │ ● dc770fff · attempt[1]/edit · 1.2 s · +0 ~100 -1,200 · back to 82f10d2f: attempt[1]/rewind
│ │ ● dbec0e68 (@repo.3) · attempt[2]/edit · 1.2 s · +3 ~1 -0 · ! not revertible
│ ● cf8875f1 (@repo.2) · attempt[1]/edit#2 · 1.2 s · +3 ~1 -0
● 3af684ac (@repo) · polish · 1.2 s · +3 ~1 -0

+new ~changed -removed files   @ where a workspace was last   ! what a rewind does not undo
"""

ASCII = """\
run 3f2a9c1b77de - deep-research - completed
/home/ada/repo - 6 states, 2 checkpoints

* 82f10d2f (start) - workspace
|-+-+-.
* | | | d33fb48a (tests pass, @repo.1) - attempt[0]/edit - 1.2 s - +3 ~1 -0 - adopt - 1.2 s - \
! external: tell - 1 action changed nothing
| | | * dc770fff - attempt[1]/edit - 1.2 s - +0 ~100 -1,200 - back to 82f10d2f: attempt[1]/rewind
| | * dbec0e68 (@repo.3) - attempt[2]/edit - 1.2 s - +3 ~1 -0 - ! not revertible
| * cf8875f1 (@repo.2) - attempt[1]/edit#2 - 1.2 s - +3 ~1 -0
* 3af684ac (@repo) - polish - 1.2 s - +3 ~1 -0

+new ~changed -removed files   @ where a workspace was last   ! what a rewind does not undo
"""

MERGED = """\
run 3f2a9c1b77de · deep-research · completed
/home/ada/repo · 4 states, 0 checkpoints

● 82f10d2f · workspace
├─╮
● │ d33fb48a · left · 1.2 s · +3 ~1 -0
│ ● dc770fff · right · 1.2 s · +3 ~1 -0
├─╯
● 3af684ac (@repo) · join/all (merge) · 1.2 s · +3 ~1 -0

+new ~changed -removed files   @ where a workspace was last
"""


def drawn(past: PastStates, **options: Any) -> list[str]:
    return [line.plain for line in state_log(past, "completed", **options)]


def test_the_states_of_a_run_are_drawn_as_in_this_example(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_states(store_url, exploration())
    assert exit_code("checkpoints", "3f2a") == 0
    assert capsys.readouterr().out == UNICODE


def test_an_output_without_unicode_gets_ascii(
    store_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_states(store_url, exploration())
    monkeypatch.setattr("cli.commands.checkpoints.is_plain_ascii", lambda console: True)
    assert exit_code("checkpoints") == 0
    assert capsys.readouterr().out == ASCII


def test_a_merge_joins_the_branches_of_its_parents(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    merge = acted("join/all", "one", "end", kind=EdgeKind.MERGE)
    other = an_edge("join/all", "two", "end", number=1, kind=EdgeKind.MERGE)
    merge.edges.append(other)  # type: ignore[attr-defined]
    done: list[Done] = [
        ("workspace", "repo", opened("start")),
        ("left", "repo", acted("left", "start", "one")),
        ("right", "repo", acted("right", "start", "two")),
        ("join/all", "repo", merge),
    ]
    fill_states(store_url, done)
    assert exit_code("checkpoints") == 0
    assert capsys.readouterr().out == MERGED


def test_json_has_all_states_edges_and_checkpoints(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_states(store_url, exploration())
    assert exit_code("checkpoints", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["run"], document["flow"], document["status"]) == (
        RUN,
        "deep-research",
        "completed",
    )
    assert len(document["states"]) == 6
    assert document["states"][0] == {
        "id": state_id("start"),
        "base": "/home/ada/repo",
        "base_identity": "base",
        "files": "files of start",
        "manifest": "manifest",
        "shell": "",
        "num_entries": 3,
        "num_bytes": 1000,
        "created_at": "2026-03-01T12:00:00+00:00",
        "checkpoints": ["start"],
        "workspaces": [],
    }
    assert [edge["path"] for edge in document["edges"]] == [done[0] for done in exploration()[1:]]
    assert document["edges"][-1] == {
        "path": "polish",
        "number": 0,
        "kind": "action",
        "before": state_id("one"),
        "after": state_id("end"),
        "attribute": "revertible",
        "seconds": 1.2,
        "changed": [],
        "num_changed": 4,
        "num_added": 3,
        "num_removed": 0,
        "num_bytes": 0,
        "reads": None,
        "note": None,
        "workspace": "repo",
        "at_s": 11.5,
    }
    assert document["checkpoints"] == [
        {
            "path": path,
            "name": name,
            "workspace": "repo",
            "state": state_id(state),
            "at_s": 1.0,
        }
        for path, name, state in (("adopt", "tests pass", "one"), ("checkpoint", "start", "start"))
    ]


def test_a_state_that_is_lost_is_listed_with_its_id_alone(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_states(store_url, exploration())
    with sqlite3.connect(store_url.removeprefix("sqlite:///")) as connection:
        connection.execute("DELETE FROM states WHERE id = ?", (state_id("two"),))
    connection.close()
    assert exit_code("checkpoints") == 0
    assert "dc770fff" in capsys.readouterr().out
    assert exit_code("checkpoints", "--json") == 0
    states = json.loads(capsys.readouterr().out)["states"]
    [lost] = [state for state in states if state["id"] == state_id("two")]
    assert lost.keys() == states[0].keys()
    assert lost["files"] is None


def test_graphviz_gets_a_node_for_each_state_and_an_edge_for_each_action(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_states(store_url, exploration())
    assert exit_code("checkpoints", "--dot") == 0
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert (first, last) == (f'digraph "{RUN}" {{', "}")
    start, one = state_id("start"), state_id("one")
    assert f'  "{start}" [label="82f10d2f\\nstart"];' in lines
    assert f'  "{one}" -> "{one}" [label="tell\\n300 ms", color=red];' in lines
    assert sum(" -> " in line for line in lines) == len(exploration()) - 1
    [rewind] = [line for line in lines if "rewind" in line]
    assert rewind.endswith('[label="attempt[1]/rewind\\nrewind\\n2 ms", style=dashed, '
                           "constraint=false];")  # fmt: skip


def test_names_are_escaped_for_graphviz(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = 'a"];\n} \\'
    done: list[Done] = [
        ("workspace", "repo", opened("one")),
        (hostile, "repo", acted(hostile, "one", "two", hostile)),
    ]
    fill_states(store_url, done)
    assert exit_code("checkpoints", "--dot") == 0
    output = capsys.readouterr().out
    assert output.count(r"a\"]; } \\") == 2  # the label of the node, and that of the edge
    unquoted = re.sub(r'"(?:[^"\\]|\\.)*"', "", output)
    assert (unquoted.count("{"), unquoted.count("}")) == (1, 1)


@pytest.mark.parametrize("form", [[], ["--json"], ["--dot"]])
def test_a_run_without_a_workspace_says_so(
    store_url: str, form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run(RUN)])
    assert exit_code("checkpoints", *form) == 0
    captured = capsys.readouterr()
    assert "no workspace" in captured.err if form else captured.out
    if form == ["--json"]:
        document = json.loads(captured.out)
        assert (document["states"], document["edges"], document["checkpoints"]) == ([], [], [])


def test_two_forms_of_output_are_refused(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_store(store_url, [a_run(RUN)])
    assert exit_code("checkpoints", "--json", "--dot") == 2
    assert "one of them" in capsys.readouterr().err


def test_an_unknown_run_is_bad_input(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill_store(store_url, [a_run(RUN)])
    assert exit_code("checkpoints", "zzz") == 2
    assert "no run 'zzz'" in capsys.readouterr().err


def star(num_children: int) -> PastStates:
    """A state with so many children."""
    names = [str(number) for number in range(num_children)]
    edges = [an_edge(name, "start", name) for name in names]
    states = [a_state(name) for name in ["start", *names]]
    return PastStates(a_run(RUN), states, edges)


def test_more_branches_than_fit_side_by_side_are_listed_with_the_state_before() -> None:
    widest = drawn(star(MAX_BRANCHES))
    assert widest[4].startswith("├─┬─")
    listed = drawn(star(MAX_BRANCHES + 1))
    assert len(listed) == 3 + 1 + MAX_BRANCHES + 1 + 2
    assert all(" · after 82f10d2f · " in line for line in listed[4:-2])
    assert "too many branches" in listed[-1]


def test_a_long_run_is_drawn_in_one_column() -> None:
    names = [str(number) for number in range(3_000)]
    edges = [an_edge(f"to {b}", a, b) for a, b in itertools.pairwise(names)]
    lines = drawn(PastStates(a_run(RUN), [a_state(name) for name in names], edges))
    assert all(line.startswith("● ") for line in lines[3:-2])
    assert len(lines) == 3 + 3_000 + 2


def test_a_run_that_goes_on_shows_where_its_workspaces_are(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    running = a_run(RUN, status=Status.RUNNING, finished_at=None, elapsed_s=None, process_id=2**30)
    fill_states(store_url, exploration()[:4], running)
    assert exit_code("checkpoints") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("orphaned")
    assert lines[3].startswith("● 82f10d2f (start, @repo)")


def test_a_line_is_as_wide_as_the_terminal_at_most(
    store_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that is wrapped would tear the branches apart."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    fill_states(store_url, exploration())
    assert exit_code("checkpoints") == 0
    lines = [re.sub("\x1b\\[[0-9;]*m", "", line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == len(UNICODE.splitlines())
    assert max(map(len, lines)) == 60


def test_an_effect_that_leads_back_to_an_earlier_state_is_marked() -> None:
    edges = [
        an_edge("edit", "one", "two"),
        an_edge("reset", "two", "one", attribute=Revertibility.EXTERNAL),
    ]
    lines = drawn(PastStates(a_run(RUN), [a_state("one"), a_state("two")], edges))
    assert lines[4] == (
        "● dc770fff · edit · 1.2 s · +3 ~1 -0 · back to d33fb48a: reset · ! external"
    )
    assert lines[-1].endswith("! what a rewind does not undo")


def test_effects_without_a_change_of_files_are_marked_at_their_state() -> None:
    external = {"attribute": Revertibility.EXTERNAL}
    edges = [
        an_edge("send", "one", "one", **external),
        an_edge("apply", "one", "one", number=1, kind=EdgeKind.APPLY, **external),
        an_edge("look", "one", "one", number=2),
    ]
    lines = drawn(PastStates(a_run(RUN), [a_state("one")], edges))
    assert lines[3] == (
        "● d33fb48a · ! external: send · ! external: apply · 1 action changed nothing"
    )
    assert lines[-1] == "! what a rewind does not undo"
