"""Conversion to and from networkx, and the errors for graphs that cannot be converted."""

from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns import (
    CyclicGraph,
    InvalidEdge,
    LlmNode,
    MissingAttribute,
    NotDirected,
    PatternGraph,
    ToolNode,
    WrongAttribute,
    from_networkx,
)
from tests.unit.patterns.pattern_strategies import forests, graphs, law

LLM = {"kind": "llm", "identity": "m/plan", "input_tokens": 3, "output_tokens": 4, "seconds": 1.0}
TOOL = {"kind": "tool", "identity": "search", "seconds": 2.0}


def graph_of(**nodes: dict[str, Any]) -> "nx.DiGraph[str]":
    graph: nx.DiGraph[str] = nx.DiGraph()
    for label, attributes in nodes.items():
        graph.add_node(label, **attributes)
    return graph


@law
@given(forests())
def test_a_graph_in_topological_order_is_converted_to_networkx_and_back_unchanged(
    graph: PatternGraph,
) -> None:
    assert from_networkx(graph.to_networkx()) == graph


@law
@given(graphs())
def test_any_graph_is_converted_back_in_topological_order(graph: PatternGraph) -> None:
    converted = from_networkx(graph.to_networkx())
    assert converted.nodes == tuple(graph.nodes[node] for node in graph.topological_order)
    new = {node: index for index, node in enumerate(graph.topological_order)}
    assert converted.edges == tuple(sorted((new[p], new[c]) for p, c in graph.edges))


@law
@given(graphs(), st.randoms(use_true_random=False))
def test_labels_may_be_anything_hashable(graph: PatternGraph, random: Any) -> None:
    kinds = [lambda n: n, str, lambda n: (n, "call"), lambda n: frozenset({n}), float]
    relabelled = nx.relabel_nodes(
        graph.to_networkx(), {node: random.choice(kinds)(node) for node in range(len(graph.nodes))}
    )
    assert sorted(map(repr, from_networkx(relabelled).nodes)) == sorted(map(repr, graph.nodes))


def test_attributes_become_llm_and_tool_nodes() -> None:
    graph = graph_of(late=TOOL, early=LLM)
    graph.add_edge("early", "late")
    assert from_networkx(graph) == PatternGraph(
        (LlmNode("m/plan", 3, 4, 1.0), ToolNode("search", 2.0)), ((0, 1),)
    )


def test_parallel_edges_of_a_multigraph_are_one_dependency() -> None:
    graph = nx.MultiDiGraph(graph_of(a=LLM, b=TOOL))
    graph.add_edges_from([("a", "b"), ("a", "b")])
    assert from_networkx(graph).edges == ((0, 1),)


def test_an_undirected_graph_is_refused() -> None:
    with pytest.raises(NotDirected, match="got Graph"):
        from_networkx(nx.Graph())


@pytest.mark.parametrize("missing", sorted(LLM))
def test_the_error_for_a_missing_attribute_of_an_llm_call_names_its_node(missing: str) -> None:
    graph = graph_of(a={name: value for name, value in LLM.items() if name != missing})
    with pytest.raises(MissingAttribute, match=rf"node 'a' has no attribute '{missing}'"):
        from_networkx(graph)


@pytest.mark.parametrize("missing", sorted(TOOL))
def test_the_error_for_a_missing_attribute_of_a_tool_call_names_its_node(missing: str) -> None:
    graph = graph_of(a={name: value for name, value in TOOL.items() if name != missing})
    with pytest.raises(MissingAttribute, match=rf"node 'a' has no attribute '{missing}'"):
        from_networkx(graph)


@pytest.mark.parametrize(
    ("base", "wrong"),
    [
        (LLM, {"kind": "human"}),
        (LLM, {"kind": ["llm"]}),
        (LLM, {"identity": ""}),
        (LLM, {"input_tokens": -1}),
        (LLM, {"output_tokens": 1.5}),
        (LLM, {"seconds": "fast"}),
        (TOOL, {"seconds": -1.0}),
        (TOOL, {"output_tokens": 5}),
        (TOOL, {"input_tokens": "none"}),
    ],
    ids=repr,
)
def test_the_error_for_a_wrong_attribute_names_its_node_and_value(base: dict, wrong: dict) -> None:
    ((attribute, value),) = wrong.items()
    with pytest.raises(WrongAttribute) as caught:
        from_networkx(graph_of(a={**base, **wrong}))
    assert caught.value.args[:3] == ("a", attribute, value)


def test_the_error_for_a_cycle_names_the_graphs_own_labels() -> None:
    graph = graph_of(before=TOOL, plan=LLM, act=TOOL, after=TOOL)
    graph.add_edges_from([("before", "plan"), ("plan", "act"), ("act", "plan"), ("act", "after")])
    with pytest.raises(CyclicGraph) as caught:
        from_networkx(graph)
    assert set(caught.value.cycle) == {"plan", "act"}


def test_the_error_for_a_self_loop_names_the_graphs_own_label() -> None:
    graph = graph_of(plan=LLM)
    graph.add_edge("plan", "plan")
    with pytest.raises(InvalidEdge, match="'plan' -> 'plan'"):
        from_networkx(graph)
