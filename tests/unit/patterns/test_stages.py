"""Stages: summaries of layers, their bounds on the critical path, and validation."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns import (
    CallCount,
    InvalidEdge,
    InvalidStage,
    LlmNode,
    PatternGraph,
    Stage,
    ToolNode,
    next_stage,
    stage_depths,
)
from tests.unit.patterns.pattern_strategies import any_nodes, graphs, law

MIXED = Stage(
    index=0,
    members=(0, 1, 2),
    calls=(CallCount("m/plan", "llm", 2), CallCount("search", "tool", 1)),
    input_tokens=30,
    output_tokens=5,
    longest_output_tokens=3,
    seconds=2.0,
    tool_seconds=1.5,
)


def test_a_stage_sums_tokens_and_takes_as_long_as_its_slowest_call() -> None:
    nodes = (LlmNode("m/plan", 10, 2, 2.0), LlmNode("m/plan", 20, 3, 0.5), ToolNode("search", 1.5))
    assert PatternGraph(nodes).stages == (MIXED,)


@law
@given(graphs())
def test_the_longest_answer_of_a_stage_is_the_maximum_of_its_members(graph: PatternGraph) -> None:
    for stage in graph.stages:
        answers = [graph.nodes[member].output_tokens for member in stage.members]
        assert stage.longest_output_tokens == max(answers)


def test_tool_calls_do_not_count_as_llm_calls() -> None:
    (tools,) = PatternGraph((ToolNode("search", 1.0), ToolNode("fetch", 4.0))).stages
    assert (MIXED.num_llm_calls, tools.num_llm_calls) == (2, 0)


def test_the_tool_time_of_a_stage_is_that_of_its_slowest_tool() -> None:
    (stage,) = PatternGraph((ToolNode("search", 1.0), ToolNode("fetch", 4.0))).stages
    assert (stage.seconds, stage.tool_seconds) == (4.0, 4.0)


def test_a_model_step_and_a_tool_with_the_same_name_are_counted_separately() -> None:
    (stage,) = PatternGraph((ToolNode("x", 1.0), LlmNode("x", 1, 1, 1.0))).stages
    assert stage.calls == (("x", "llm", 1), ("x", "tool", 1))


@law
@given(graphs())
def test_each_call_and_its_tokens_are_in_exactly_one_stage(graph: PatternGraph) -> None:
    members = sorted(member for stage in graph.stages for member in stage.members)
    assert members == list(range(len(graph.nodes)))
    assert [stage.index for stage in graph.stages] == list(range(len(graph.stages)))
    for field in ("input_tokens", "output_tokens"):
        stage_tokens = sum(getattr(stage, field) for stage in graph.stages)
        assert stage_tokens == sum(getattr(node, field) for node in graph.nodes)


@law
@given(graphs())
def test_the_sum_of_the_stages_is_at_least_the_critical_path(graph: PatternGraph) -> None:
    stage_seconds = sum(stage.seconds for stage in graph.stages)
    assert stage_seconds >= graph.critical_seconds * (1 - 1e-12)


@law
@given(st.lists(st.lists(any_nodes, min_size=1, max_size=4), max_size=4))
def test_the_sum_of_stages_that_depend_on_each_other_is_the_critical_path(stages: list) -> None:
    nodes, edges, previous = [], [], range(0)
    for stage in stages:
        members = range(len(nodes), len(nodes) + len(stage))
        edges += [(parent, child) for parent in previous for child in members]
        nodes += stage
        previous = members
    graph = PatternGraph(tuple(nodes), tuple(edges))
    stage_seconds = sum(stage.seconds for stage in graph.stages)
    assert stage_seconds == pytest.approx(graph.critical_seconds)


@law
@given(graphs())
def test_a_live_run_and_its_finished_graph_have_the_same_stages(graph: PatternGraph) -> None:
    new = {node: index for index, node in enumerate(graph.topological_order)}
    parents_in_order = [{new[p] for p in graph.parents[node]} for node in graph.topological_order]
    depths = stage_depths(parents_in_order)
    assert depths == tuple(graph.stage_of[node] for node in graph.topological_order)


def test_a_call_without_parents_is_in_stage_0() -> None:
    assert next_stage([]) == 0
    assert next_stage([0, 4, 2]) == 5


@pytest.mark.parametrize("parents", [[[0]], [[], [2], []], [[], [-1]]])
def test_a_parent_listed_after_its_child_is_refused(parents: list[list[int]]) -> None:
    with pytest.raises(InvalidEdge, match="before the child"):
        stage_depths(parents)


@pytest.mark.parametrize(
    "change",
    [
        {"index": -1},
        {"members": ()},
        {"members": (0, 1, 1)},
        {"members": (0, 2, 1)},
        {"members": (-1, 0, 1)},
        {"members": (0, 1)},
        {"calls": MIXED.calls[::-1]},
        {"calls": (CallCount("m/plan", "llm", 3), CallCount("search", "tool", 0))},
        {"calls": (CallCount("", "llm", 2), CallCount("search", "tool", 1))},
        {"input_tokens": -1},
        {"output_tokens": 2**63},
        {"output_tokens": 2},
        {"longest_output_tokens": -1},
        {"seconds": float("nan")},
        {"seconds": 1.0},
        {"tool_seconds": -1.0},
        {"calls": (CallCount("search", "tool", 3),)},
        {"calls": (CallCount("search", "tool", 3),), "input_tokens": 0, "output_tokens": 0},
        {"calls": (CallCount("m/plan", "llm", 3),)},
    ],
    ids=repr,
)
def test_a_stage_with_contradicting_fields_is_refused(change: dict) -> None:
    with pytest.raises(InvalidStage):
        dataclasses.replace(MIXED, **change)
