"""Hypothesis strategies for the tests of patterns, and real workflows from shared data."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from patterns import LlmNode, Node, PatternGraph, Stage, ToolNode
from patterns.nodes import MAX_SECONDS, MAX_TOKENS
from tests.places import DATA

law = settings(deadline=None)
"""For property tests: a slow machine must not make them fail."""

identities = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
token_counts = st.integers(0, 5000) | st.integers(0, MAX_TOKENS)
durations = st.floats(0, 100) | st.floats(0, MAX_SECONDS)

llm_nodes = st.builds(LlmNode, identities, token_counts, token_counts, durations)
tool_nodes = st.builds(ToolNode, identities, durations)
any_nodes = llm_nodes | tool_nodes

few_nodes = st.sampled_from(
    [LlmNode("m/plan", 9, 9, 1.0), LlmNode("m/plan", 9, 8, 1.0), ToolNode("search", 1.0)]
)
"""So few different nodes that most calls of a graph are equal to another one."""


SAMPLE = PatternGraph(
    (
        LlmNode("llama-3-8b/generate_query", 436, 99, 2.1),
        LlmNode("llama-3-8b/web_research", 177, 1024, 20.7),
        LlmNode("llama-3-8b/web_research", 169, 955, 19.3),
        ToolNode("search", 0.8),
        LlmNode("llama-3-8b/reflection", 4146, 150, 3.9),
    ),
    ((0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)),
)
"""A run of three stages; in the second, two LLM calls run in parallel with a tool."""


@st.composite
def graphs(draw: st.DrawFn, nodes: st.SearchStrategy[Any] = any_nodes) -> PatternGraph:
    """Acyclic graphs with their nodes in random order."""
    calls = draw(st.lists(nodes, max_size=12))
    pairs = [(parent, child) for child in range(len(calls)) for parent in range(child)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return shuffled(draw, PatternGraph(tuple(calls), tuple(edges)))


@st.composite
def forests(draw: st.DrawFn) -> PatternGraph:
    """Graphs of few different calls, in which no call has two parents."""
    calls = draw(st.lists(few_nodes, max_size=12))
    edges = []
    for child in range(1, len(calls)):
        parent = draw(st.none() | st.integers(0, child - 1))
        if parent is not None:
            edges.append((parent, child))
    return PatternGraph(tuple(calls), tuple(edges))


def shuffled(draw: st.DrawFn, graph: PatternGraph) -> PatternGraph:
    """The same graph, recorded in another order."""
    order = draw(st.permutations(range(len(graph.nodes))))
    new = {node: index for index, node in enumerate(order)}
    return PatternGraph(
        tuple(graph.nodes[node] for node in order),
        tuple((new[parent], new[child]) for parent, child in graph.edges),
    )


def staged_graph(stages: Sequence[Sequence[Node]]) -> PatternGraph:
    """The graph in which each stage depends on the whole previous one."""
    nodes: list[Node] = []
    edges: list[tuple[int, int]] = []
    previous = range(0)
    for stage in stages:
        members = range(len(nodes), len(nodes) + len(stage))
        edges += [(parent, child) for parent in previous for child in members]
        nodes += stage
        previous = members
    return PatternGraph(tuple(nodes), tuple(edges))


few_calls = st.one_of(
    st.builds(LlmNode, st.just("m/plan"), token_counts, token_counts, durations),
    st.builds(LlmNode, st.just("m/act"), token_counts, token_counts, durations),
    st.builds(ToolNode, st.just("search"), durations),
)
"""Calls of few identities, so that runs often begin with the same calls, but of any length."""

few_graphs = st.lists(st.lists(few_calls, min_size=1, max_size=3), min_size=1, max_size=4).map(
    staged_graph
)
"""Graphs of `few_calls`, in which each stage depends on the whole previous one."""

runs = few_graphs.map(lambda graph: graph.stages)
"""The stages of `few_graphs`."""

many_runs = st.lists(runs, min_size=1, max_size=8)


def chain(*stages: tuple[str, int, float]) -> tuple[Stage, ...]:
    """The stages of a run with one call per stage, given as (identity, output tokens, seconds)."""
    return staged_graph(
        [[LlmNode(identity, 100, tokens, seconds)] for identity, tokens, seconds in stages]
    ).stages


def shared_workflows(name: str, *, stage_name: str, calls_name: str) -> list[PatternGraph]:
    """The graphs of a file of real workflows: every stage depends on the whole previous one.

    The files have no times, so a call takes 20 to 40 ms per generated and 0.2 ms per prompt token.
    """
    path = DATA / "agentic" / name
    if not path.exists():
        pytest.skip(f"no ../shared/data/agentic/{name} beside this checkout")
    workflows = []
    for workflow in json.loads(path.read_text())["workflows"]:
        stages: list[list[LlmNode]] = []
        counter = itertools.count()
        for stage in workflow["stages"]:
            identity = f"llama-3-8b/{stage[stage_name]}"
            calls = []
            for call in stage[calls_name]:
                seconds = 0.02 * call["out"] * (1 + next(counter) * 0.618 % 1)
                seconds += 0.0002 * call["in"]
                calls.append(LlmNode(identity, call["in"], call["out"], seconds))
            stages.append(calls)
        workflows.append(staged_graph(stages))
    return workflows
