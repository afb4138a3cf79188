"""The document that is kept of a run: exact while it is small, then with rounds averaged."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns import (
    LlmNode,
    PatternGraph,
    ToolNode,
    averaged,
    decode,
    encode,
    encode_within,
    stages_in,
)
from patterns.condensing import MAX_PATTERN_BYTES
from tests.unit.patterns.pattern_strategies import SAMPLE, graphs, law


def rounds(number: int, *, seed: int = 0) -> PatternGraph:
    """A run that proposes three times and then votes, again and again, with uneven times."""
    chance = random.Random(seed)
    nodes: list[LlmNode | ToolNode] = []
    edges: list[tuple[int, int]] = []
    last: list[int] = []
    for _ in range(number):
        for name, count in (("model/propose", 3), ("model/votes", chance.randint(1, 2))):
            now = list(range(len(nodes), len(nodes) + count))
            edges += [(parent, child) for parent in last for child in now]
            nodes += [
                LlmNode(
                    name, chance.randint(80, 900), chance.randint(1, 60), chance.uniform(0.1, 3)
                )
                for _ in now
            ]
            last = now
    return PatternGraph(tuple(nodes), tuple(edges))


def test_a_short_run_is_kept_as_its_whole_graph() -> None:
    assert encode_within(SAMPLE) == encode(SAMPLE)
    assert stages_in(encode_within(SAMPLE)) == decode(encode(SAMPLE)).stages


@pytest.mark.parametrize("number", [5, 10, 20, 60, 200])
@pytest.mark.parametrize("seed", range(3))
def test_a_search_of_many_rounds_takes_at_most_200_bytes_and_keeps_its_shape_and_sums(
    number: int, seed: int
) -> None:
    graph = rounds(number, seed=seed)
    document = encode_within(graph)
    assert len(document) <= MAX_PATTERN_BYTES == 200
    assert number < 10 or len(encode(graph)) > 200
    kept, exact = stages_in(document), graph.stages
    assert [[c.identity for c in s.calls] for s in kept] == [
        [c.identity for c in s.calls] for s in exact
    ]
    for total in ("seconds", "input_tokens", "output_tokens"):
        sums = [sum(getattr(stage, total) for stage in stages) for stages in (kept, exact)]
        assert sums[0] == pytest.approx(sums[1], rel=0.03)


def test_a_run_that_changes_half_way_keeps_the_change() -> None:
    """Blocks are consecutive: the first rounds are not averaged with the last ones."""
    quick, slow = (LlmNode("model/votes", 300, 1, seconds) for seconds in (0.1, 2.0))
    nodes = (*([quick] * 40), *([slow] * 40))
    graph = PatternGraph(nodes, tuple((at, at + 1) for at in range(79)))
    kept = stages_in(encode_within(graph, 60))
    assert kept[0].seconds == pytest.approx(0.1, rel=0.01)
    assert kept[-1].seconds == pytest.approx(2.0, rel=0.01)


@law
@given(graph=graphs(), limit=st.integers(0, 300))
def test_any_run_has_a_readable_document_with_all_its_stages(
    graph: PatternGraph, limit: int
) -> None:
    kept = stages_in(encode_within(graph, limit))
    assert len(kept) == len(graph.stages)
    for stage, exact in zip(kept, graph.stages, strict=True):
        assert {(c.identity, c.kind) for c in stage.calls} == {
            (c.identity, c.kind) for c in exact.calls
        }


@law
@given(graph=graphs(), num_blocks=st.integers(1, 20))
def test_as_many_blocks_as_stages_change_nothing(graph: PatternGraph, num_blocks: int) -> None:
    stages = graph.canonical().stages
    same = averaged(stages, max(num_blocks, len(stages)))
    assert [(s.calls, s.input_tokens, s.output_tokens) for s in same] == [
        (s.calls, s.input_tokens, s.output_tokens) for s in stages
    ]
    assert [s.seconds for s in same] == [s.seconds for s in stages]
