"""The state graph of a run, and what a rewind in it would not undo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.environment.states.past_states import load_state_graph
from orchestrator.environment.states.state_graph import effects_after, state_graph
from store.errors import RunNotFound, StateNotFound
from store.records import Status, StepRecord
from store.session import open_store
from store.state_records import EdgeKind, Revertibility, StateEdgeRecord
from tests.unit.store.state_samples import (
    a_checkpoint,
    a_state,
    act,
    an_action,
    an_edge,
    state_id,
)
from tests.unit.store.store_samples import a_run

EXTERNAL: dict[str, Any] = {"attribute": Revertibility.EXTERNAL}
REWIND: dict[str, Any] = {"kind": EdgeKind.REWIND}


def edges_of(*pairs: str, **of_pair: dict[str, Any]) -> list[StateEdgeRecord]:
    """An edge for each pair of letters; its step is called so too, with `_` before a repeated one.

    Args:
        of_pair: fields of an edge, by its step.
    """
    return [an_edge(*pair.strip("_"), path=pair, **of_pair.get(pair, {})) for pair in pairs]


def ended(path: str, at_s: float, **changes: Any) -> StepRecord:
    return an_action("a", path, status=Status.COMPLETED, finished_s=at_s, **changes)


def paths_after(edges: list[StateEdgeRecord], state: str, **options: Any) -> list[str]:
    """The steps of the effects after a state; letters stand for states."""
    if "present" in options:
        options["present"] = state_id(options["present"])
    steps = options.pop("steps", ())
    graph = state_graph(edges, [], [], steps)
    return [edge.path for edge in effects_after(graph, state_id(state), **options)]


def test_equal_states_are_one_node_and_each_action_is_an_edge() -> None:
    edges = edges_of("ab", "_ab", "bb", "bc", "ca")
    graph = state_graph(edges, [], [])
    assert list(graph) == [state_id(letter) for letter in "abc"]
    assert graph.number_of_edges() == 5
    between = graph.get_edge_data(state_id("a"), state_id("b"))
    assert [data["path"] for data in between.values()] == ["ab", "_ab"]
    assert [data["record"] for data in between.values()] == edges[:2]


def test_a_node_has_its_files_its_checkpoints_and_the_workspaces_that_were_last_there() -> None:
    steps = [
        ended("open", 1.0, state_before=None, state_after=state_id("a")),
        ended("ab", 2.0, state_after=state_id("b")),
        ended("fork", 2.5, state_after=state_id("b"), workspace="ws.1", state_before=state_id("b")),
        an_action("c", "running", started_s=3.0),
    ]
    checkpoints = [
        a_checkpoint("b", name=name, path=str(number))
        for number, name in enumerate(["good", "better", "good"])
    ]
    graph = state_graph(edges_of("ab"), checkpoints, [a_state("b", files="f" * 64)], steps)
    assert graph.nodes[state_id("b")] == {
        "files": "f" * 64,
        "num_changed": 3,
        "checkpoints": ("good", "better"),
        "workspaces": ("ws.1",),
    }
    assert graph.nodes[state_id("a")]["files"] is None
    assert graph.nodes[state_id("c")]["workspaces"] == ("ws",)


def test_an_edge_has_the_workspace_and_the_time_of_its_step_if_that_is_given() -> None:
    graph = state_graph(edges_of("ab", "bc"), [], [], [ended("ab", 2.0)])
    found = {
        data["path"]: (data["workspace"], data["at_s"]) for _, _, data in graph.edges(data=True)
    }
    assert found == {"ab": ("ws", 2.0), "bc": (None, None)}


def test_steps_that_end_at_the_same_time_are_ordered_by_their_outcomes() -> None:
    steps = [
        ended("second", 1.0, outcome_number=1, state_after=state_id("c")),
        ended("first", 1.0, outcome_number=0, state_after=state_id("b")),
    ]
    assert state_graph([], [], [], steps).nodes[state_id("c")]["workspaces"] == ("ws",)


def test_a_run_without_a_workspace_has_an_empty_graph() -> None:
    graph = state_graph([], [], [], [StepRecord("run-1", "plan", "plan", 0.0)])
    assert list(graph) == []


def test_effects_between_a_state_and_the_present_one_are_not_undone() -> None:
    edges = edges_of(
        "ab", "bc", "cd", "de", ab=EXTERNAL, cd={"attribute": Revertibility.NOT_REVERTIBLE},
        de=EXTERNAL,
    )  # fmt: skip
    assert paths_after(edges, "b", present="d") == ["cd"]
    assert paths_after(edges, "a", present="e") == ["ab", "cd", "de"]
    assert paths_after(edges, "b") == ["cd", "de"]
    assert paths_after(edges, "e") == []


def test_effects_in_another_branch_do_not_hinder_a_rewind() -> None:
    edges = edges_of("ab", "ac", "bd", "ce", bd=EXTERNAL)
    assert paths_after(edges, "a", present="e") == []
    assert paths_after(edges, "a", present="d") == ["bd"]


def test_effects_of_a_branch_that_was_merged_or_adopted_count() -> None:
    merge: dict[str, Any] = {"kind": EdgeKind.MERGE}
    edges = edges_of("ab", "ac", "bd", "cd", "de", ac=EXTERNAL, bd=merge, cd=merge)
    assert paths_after(edges, "a", present="e") == ["ac"]
    assert paths_after(edges, "b", present="e") == []


def test_an_effect_that_a_rewind_has_left_behind_is_not_named_again() -> None:
    edges = edges_of("ab", "bc", "ca", "ad", bc=EXTERNAL, ca=REWIND)
    assert paths_after(edges, "a", present="c") == ["bc"]
    assert paths_after(edges, "a", present="d") == []


def test_an_action_that_comes_back_to_a_state_undoes_no_effect() -> None:
    edges = edges_of("ab", "ba", ab=EXTERNAL)
    assert paths_after(edges, "a", present="a") == ["ab"]


def test_the_time_says_whether_an_effect_without_a_change_of_files_came_after() -> None:
    edges = edges_of("aa", "_aa", aa=EXTERNAL, _aa=EXTERNAL)
    assert paths_after(edges, "a", present="a") == ["aa", "_aa"]
    steps = [ended("aa", 1.0), ended("_aa", 2.0)]
    assert paths_after(edges, "a", since_s=1.0, steps=steps) == ["_aa"]
    assert paths_after(edges, "a", since_s=9.0, steps=steps) == []
    assert paths_after(edges, "a", since_s=9.0, steps=steps[1:]) == ["aa"]  # its time is unknown


@pytest.mark.parametrize("options", [{}, {"present": "z"}])
def test_an_unknown_state_is_named(options: dict[str, str]) -> None:
    edges = edges_of("ab")
    with pytest.raises(StateNotFound, match="zzz"):
        paths_after(edges, "a" if options else "z", **options)


async def test_the_graph_of_a_recorded_run_is_loaded(tmp_path: Path) -> None:
    async with await open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        async with store.transaction() as tx:
            await tx.runs.add(a_run())
            await tx.runs.add(a_run("other"))
            await tx.states.add(a_state("a"))
            await act(tx, "a", "b")
        graph = await load_state_graph(store, "run")
        assert list(graph) == [state_id("a"), state_id("b")]
        assert graph.nodes[state_id("b")]["checkpoints"] == ("start",)
        assert graph.nodes[state_id("b")]["workspaces"] == ("ws",)
        assert list(await load_state_graph(store, "other")) == []
        with pytest.raises(RunNotFound):
            await load_state_graph(store, "unknown")
