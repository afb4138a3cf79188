"""Pattern graphs: stages, critical path, prefixes, canonical order and validation."""

import dataclasses
import pickle
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns import (
    CyclicGraph,
    InvalidEdge,
    InvalidNode,
    InvalidPrefix,
    LlmNode,
    PatternGraph,
    ToolNode,
)
from tests.unit.patterns.pattern_strategies import durations, forests, graphs, law, shuffled


def calls(num: int) -> tuple[ToolNode, ...]:
    return tuple(ToolNode(f"tool{index}", 1.0) for index in range(num))


@law
@given(graphs())
def test_a_stage_is_a_topological_generation(graph: PatternGraph) -> None:
    generations = nx.topological_generations(graph.to_networkx())
    assert [sorted(generation) for generation in generations] == list(map(list, graph.layers))


@law
@given(graphs())
def test_a_nodes_stage_is_the_length_of_the_longest_path_to_it(graph: PatternGraph) -> None:
    full = graph.to_networkx()
    for node, stage in enumerate(graph.stage_of):
        ancestors = full.subgraph({node, *nx.ancestors(full, node)})
        assert stage == nx.dag_longest_path_length(ancestors)


@law
@given(graphs())
def test_no_path_takes_longer_than_the_critical_path(graph: PatternGraph) -> None:
    weighted = nx.DiGraph()
    weighted.add_nodes_from(["end", *range(len(graph.nodes))])
    for node, call in enumerate(graph.nodes):
        for child in (*graph.children[node], "end"):
            weighted.add_edge(node, child, weight=call.seconds)
    assert graph.critical_seconds == pytest.approx(nx.dag_longest_path_length(weighted))


@law
@given(graphs())
def test_the_critical_path_is_a_chain_from_a_root_and_takes_critical_seconds(
    graph: PatternGraph,
) -> None:
    path = graph.critical_path()
    assert bool(path) == bool(graph.nodes)
    assert set(pairwise(path)) <= set(graph.edges)
    assert all(graph.stage_of[node] == 0 for node in path[:1])
    path_seconds = sum(graph.nodes[node].seconds for node in path)
    assert graph.critical_seconds == pytest.approx(path_seconds)


def test_calls_of_0_seconds_belong_to_the_critical_path() -> None:
    graph = PatternGraph((ToolNode("a", 0.0), ToolNode("b", 0.0)), ((0, 1),))
    assert graph.critical_path() == (0, 1)


@law
@given(graphs())
def test_parents_and_children_both_give_the_edges(graph: PatternGraph) -> None:
    from_parents = {(p, child) for child, parents in enumerate(graph.parents) for p in parents}
    from_children = {(parent, c) for parent, group in enumerate(graph.children) for c in group}
    assert from_parents == from_children == set(graph.edges)


@law
@given(graphs(), st.integers(0, 13))
def test_a_prefix_has_the_first_stages_and_nothing_else(graph: PatternGraph, length: int) -> None:
    prefix = graph.prefix(length)
    kept = [node for node, stage in enumerate(graph.stage_of) if stage < length]
    assert prefix.nodes == tuple(graph.nodes[node] for node in kept)
    assert prefix.stage_of == tuple(graph.stage_of[node] for node in kept)
    edges = {(kept[parent], kept[child]) for parent, child in prefix.edges}
    assert edges == {edge for edge in graph.edges if set(edge) <= set(kept)}


@law
@given(graphs(), st.integers(0, 13), st.integers(0, 13))
def test_a_prefix_of_a_prefix_is_the_shorter_prefix(graph: PatternGraph, a: int, b: int) -> None:
    assert graph.prefix(a).prefix(b) == graph.prefix(min(a, b))


def test_a_prefix_of_a_negative_number_of_stages_is_refused() -> None:
    with pytest.raises(InvalidPrefix, match="-1"):
        PatternGraph(()).prefix(-1)


@law
@given(graphs(), st.data())
def test_calls_of_different_times_have_one_canonical_order(
    graph: PatternGraph, data: st.DataObject
) -> None:
    times = data.draw(
        st.lists(durations, unique=True, min_size=len(graph.nodes), max_size=len(graph.nodes))
    )
    distinct = tuple(map(lambda node, s: dataclasses.replace(node, seconds=s), graph.nodes, times))
    first = PatternGraph(distinct, graph.edges)
    assert shuffled(data.draw, first).canonical() == first.canonical()


@law
@given(forests(), st.data())
def test_a_forest_has_one_canonical_order_even_if_its_calls_are_equal(
    forest: PatternGraph, data: st.DataObject
) -> None:
    again = shuffled(data.draw, forest)
    assert again.canonical() == forest.canonical()
    assert hash(again.canonical()) == hash(forest.canonical())


@law
@given(graphs())
def test_canonical_order_is_by_stage_then_attributes_and_is_idempotent(
    graph: PatternGraph,
) -> None:
    canonical = graph.canonical()
    keys = [
        (stage, node.kind, node.identity, node.input_tokens, node.output_tokens, node.seconds)
        for stage, node in zip(canonical.stage_of, canonical.nodes, strict=True)
    ]
    assert keys == sorted(keys)
    assert all(parent < child for parent, child in canonical.edges)
    assert canonical.canonical() == canonical


@law
@given(graphs())
def test_a_canonical_graph_is_isomorphic_to_the_original(graph: PatternGraph) -> None:
    assert nx.is_isomorphic(
        graph.to_networkx(), graph.canonical().to_networkx(), node_match=lambda a, b: a == b
    )


def test_equal_calls_are_ordered_by_their_children() -> None:
    twin, left, right = ToolNode("twin", 1.0), ToolNode("left", 1.0), ToolNode("right", 1.0)
    one = PatternGraph((twin, twin, left, right), ((0, 2), (1, 3)))
    other = PatternGraph((twin, twin, left, right), ((1, 2), (0, 3)))
    assert one != other
    assert one.canonical() == other.canonical()


def test_equal_calls_are_ordered_by_the_other_parents_of_their_children() -> None:
    twin, join = ToolNode("twin", 1.0), ToolNode("join", 1.0)
    nodes = (twin, twin, ToolNode("x", 1.0), ToolNode("y", 1.0), join, join)
    one = PatternGraph(nodes, ((0, 4), (2, 4), (1, 5), (3, 5)))
    other = PatternGraph(nodes, ((1, 4), (2, 4), (0, 5), (3, 5)))
    assert one.canonical() == other.canonical()


def test_graphs_with_different_edges_stay_different_in_canonical_order() -> None:
    assert PatternGraph(calls(2), ((0, 1),)).canonical() != PatternGraph(calls(2)).canonical()


def test_edges_are_stored_sorted_and_without_duplicates() -> None:
    graph = PatternGraph(calls(3), ((1, 2), (0, 2), (1, 2)))
    assert graph.edges == ((0, 2), (1, 2))
    assert graph == PatternGraph(calls(3), ((0, 2), (1, 2)))


@pytest.mark.parametrize(
    ("edge", "message"),
    [
        ((0, 3), "0 to 2"),
        ((-1, 0), "0 to 2"),
        ((1, 1), "itself"),
        ((0.0, 1), "pair"),
        ((0, 1, 2), "pair"),
        (7, "pair"),
        ("ab", "pair"),
    ],
    ids=repr,
)
def test_an_invalid_edge_is_refused(edge: object, message: str) -> None:
    with pytest.raises(InvalidEdge, match=message):
        PatternGraph(calls(3), (edge,))


def test_a_node_that_is_not_a_call_is_refused() -> None:
    with pytest.raises(InvalidNode, match="LlmNode or ToolNode"):
        PatternGraph(("plan",))


@law
@given(graphs(), st.data())
def test_the_error_for_a_cycle_names_the_nodes_of_a_cycle(
    graph: PatternGraph, data: st.DataObject
) -> None:
    closure = nx.transitive_closure_dag(graph.to_networkx())
    if not closure.edges:
        return
    ancestor, descendant = data.draw(st.sampled_from(sorted(closure.edges)))
    edges = {*graph.edges, (descendant, ancestor)}
    with pytest.raises(CyclicGraph) as caught:
        PatternGraph(graph.nodes, tuple(edges))
    cycle = caught.value.cycle
    assert len(set(cycle)) == len(cycle) >= 2
    assert set(pairwise((*cycle, cycle[0]))) <= edges


def test_the_error_for_a_cycle_shows_the_whole_cycle() -> None:
    with pytest.raises(CyclicGraph, match=r"(0 -> 1 -> 2 -> 0|1 -> 2 -> 0 -> 1|2 -> 0 -> 1 -> 2)$"):
        PatternGraph(calls(3), ((0, 1), (1, 2), (2, 0)))


def test_a_graph_without_calls_has_no_stages() -> None:
    empty = PatternGraph(())
    assert (empty.stages, empty.critical_path(), empty.critical_seconds) == ((), (), 0.0)
    assert empty.canonical() == empty.prefix(3) == empty


def test_a_chain_of_5000_calls_does_not_exhaust_the_stack() -> None:
    edges = tuple(pairwise(range(5000)))
    chain = PatternGraph((ToolNode("step", 1.0),) * 5000, edges)
    assert len(chain.stages) == len(chain.critical_path()) == 5000
    assert chain.canonical() == chain
    assert chain.prefix(4999).critical_seconds == 4999
    with pytest.raises(CyclicGraph, match="more"):
        PatternGraph(chain.nodes, (*edges, (4999, 0)))


def test_long_chains_that_differ_only_in_their_last_calls_have_a_canonical_order() -> None:
    step, length = ToolNode("step", 1.0), 2000
    nodes = (step,) * (2 * length) + (ToolNode("left", 1.0), ToolNode("right", 1.0))
    chains = (*pairwise(range(length)), *pairwise(range(length, 2 * length)))
    one = PatternGraph(nodes, (*chains, (length - 1, 2 * length), (2 * length - 1, 2 * length + 1)))
    other = PatternGraph(
        nodes, (*chains, (2 * length - 1, 2 * length), (length - 1, 2 * length + 1))
    )
    assert one.canonical() == other.canonical()


def test_a_graph_of_10000_calls_can_be_built_and_summarised() -> None:
    fan = tuple((0, child) for child in range(1, 10_000))
    graph = PatternGraph((LlmNode("m/plan", 10, 10, 1.0),) * 10_000, fan)
    assert [len(stage.members) for stage in graph.stages] == [1, 9999]
    assert graph.stages[1].input_tokens == 99_990
    assert graph.canonical().critical_seconds == 2.0


@law
@given(graphs())
def test_a_pickled_graph_is_equal_and_has_the_same_hash(graph: PatternGraph) -> None:
    copy = pickle.loads(pickle.dumps(graph))
    assert (copy, hash(copy), copy.stages) == (graph, hash(graph), graph.stages)


def test_each_call_of_a_layer_depends_on_all_of_the_layer_before_it() -> None:
    first, second, third, last = (LlmNode(f"m:{name}", 1, 1, 1.0) for name in "abcd")
    graph = PatternGraph.of_layers([[], [first], [second, third], [], [last]])
    assert graph.nodes == (first, second, third, last)
    assert graph.edges == ((0, 1), (0, 2), (1, 3), (2, 3))
    assert graph.stage_of == (0, 1, 1, 2)
    assert PatternGraph.of_layers([]) == PatternGraph(())
