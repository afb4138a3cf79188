"""Encoding and decoding: structure is exact, amounts are rounded as documented, sizes are small."""

import dataclasses
import os
import random
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns import (
    CorruptPattern,
    InvalidStage,
    LlmNode,
    PatternGraph,
    PatternTooLarge,
    ToolNode,
    codec,
    decode,
    decode_stages,
    encode,
    encode_stages,
)
from patterns.wire import Reader, Writer, quantise, restore
from tests.unit.patterns.pattern_strategies import SAMPLE, graphs, law, shared_workflows


def are_close_tokens(decoded: int, true: int) -> bool:
    return decoded == true if true < 64 else abs(decoded - true) <= true / 64


def are_close_seconds(decoded: float, true: float) -> bool:
    return abs(decoded - true) <= 2**-20 + true / 128


@law
@given(graphs())
def test_a_decoded_graph_has_the_same_structure_and_nearly_the_same_numbers(
    graph: PatternGraph,
) -> None:
    decoded = decode(encode(graph))
    assert decoded.edges == graph.edges
    assert len(decoded.nodes) == len(graph.nodes)
    for node, true in zip(decoded.nodes, graph.nodes, strict=True):
        assert (node.kind, node.identity) == (true.kind, true.identity)
        assert are_close_tokens(node.input_tokens, true.input_tokens)
        assert are_close_tokens(node.output_tokens, true.output_tokens)
        assert are_close_seconds(node.seconds, true.seconds)


@law
@given(graphs())
def test_decoded_stages_have_the_same_calls_and_nearly_the_same_numbers(
    graph: PatternGraph,
) -> None:
    stages = graph.canonical().stages
    decoded = decode_stages(encode_stages(graph.stages))
    assert len(decoded) == len(stages)
    for stage, true in zip(decoded, stages, strict=True):
        assert (stage.index, stage.members, stage.calls) == (true.index, true.members, true.calls)
        assert are_close_tokens(stage.input_tokens, true.input_tokens)
        assert are_close_tokens(stage.output_tokens, true.output_tokens)
        assert are_close_tokens(stage.longest_output_tokens, true.longest_output_tokens)
        assert are_close_seconds(stage.seconds, true.seconds)
        assert are_close_seconds(stage.tool_seconds, true.tool_seconds)


@law
@given(graphs())
def test_encoding_a_decoded_pattern_gives_the_same_document(graph: PatternGraph) -> None:
    document, stage_document = encode(graph), encode_stages(graph.stages)
    assert encode(decode(document)) == document
    assert encode_stages(decode_stages(stage_document)) == stage_document


@law
@given(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(1, 12))
def test_rounding_preserves_order_and_has_the_documented_error(
    left: int, right: int, bits: int
) -> None:
    small, large = sorted((left, right))
    assert quantise(small, bits) <= quantise(large, bits)
    assert restore(quantise(small, bits), bits) <= restore(quantise(large, bits), bits)
    assert abs(restore(quantise(small, bits), bits) - small) <= small / 2 ** (bits + 1)


@law
@given(st.integers(0, 2**16), st.integers(1, 12))
def test_every_code_represents_a_different_number(code: int, bits: int) -> None:
    try:
        value = restore(code, bits)
    except CorruptPattern:
        return
    assert quantise(value, bits) == code


@law
@given(st.lists(st.integers(-(2**61), 2**61)), st.lists(st.text(st.characters(codec="utf-8"))))
def test_numbers_and_texts_are_read_as_they_were_written(
    numbers: list[int], texts: list[str]
) -> None:
    writer = Writer()
    writer.texts(texts)
    for number in numbers:
        writer.signed(number)
        writer.number(abs(number))
    reader = Reader(bytes(writer.body))
    assert reader.texts() == texts
    assert [(reader.signed(), reader.number()) for _ in numbers] == [(n, abs(n)) for n in numbers]
    reader.end()


@pytest.mark.parametrize(
    ("name", "stage_name", "calls_name"),
    [
        ("jitserve_deepresearch_sample.json", "state", "requests"),
        ("tot_game24_dag.json", "kind", "calls"),
    ],
)
def test_the_stages_of_every_shared_workflow_take_at_most_200_bytes(
    name: str, stage_name: str, calls_name: str
) -> None:
    for graph in shared_workflows(name, stage_name=stage_name, calls_name=calls_name):
        document = encode_stages(graph.stages)
        assert len(document) <= 200
        decoded = decode_stages(document)
        assert [stage.calls for stage in decoded] == [stage.calls for stage in graph.stages]
        assert decode(encode(graph)).edges == graph.edges


def test_32_calls_that_depend_on_32_others_take_far_fewer_bytes_than_edges() -> None:
    call = LlmNode("llama-3-8b/value", 365, 39, 0.9)
    edges = tuple((parent, child) for parent in range(32) for child in range(32, 64))
    assert len(encode(PatternGraph((call,) * 64, edges))) < 100


@pytest.mark.usefixtures("subprocesses")
def test_documents_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    program = """
from patterns import LlmNode, PatternGraph, ToolNode, encode, encode_stages
nodes = [make for i in range(9) for make in (LlmNode(f"m/{i}", i, i, i), ToolNode(f"t{i}", i))]
graph = PatternGraph(tuple(nodes), tuple((i, j) for j in range(18) for i in range(0, j, 3)))
print(encode(graph).hex(), encode_stages(graph.stages).hex(), graph.canonical())
"""
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_a_graph_beyond_the_limits_is_refused_when_it_is_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(PatternTooLarge, match="bytes of identities"):
        encode(PatternGraph((ToolNode("x" * (5 << 20), 1.0),)))
    monkeypatch.setattr(codec, "MAX_CALLS", 4)
    with pytest.raises(PatternTooLarge, match="nodes: 5 found"):
        encode(SAMPLE)
    with pytest.raises(PatternTooLarge, match="calls: 5 found"):
        encode_stages(SAMPLE.stages)
    monkeypatch.setattr(codec, "MAX_CALLS", 5)
    monkeypatch.setattr(codec, "MAX_EDGES", 5)
    with pytest.raises(PatternTooLarge, match="edges: 6 found"):
        encode(SAMPLE)


def test_stages_without_the_first_one_are_refused() -> None:
    with pytest.raises(InvalidStage, match="index"):
        encode_stages(SAMPLE.stages[1:])


def test_deep_and_wide_graphs_of_thousands_of_calls_are_decoded_exactly() -> None:
    rng = random.Random(0)
    nodes = tuple(LlmNode("m/step", rng.randrange(60), 9, 1.0) for _ in range(10_000))
    chain = PatternGraph(nodes[:5000], tuple(pairwise(range(5000))))
    assert decode(encode(chain)) == chain
    wide = tuple((rng.randrange(child), child) for child in range(1, 10_000) for _ in range(2))
    assert decode(encode(PatternGraph(nodes, wide))) == PatternGraph(nodes, wide)


def test_long_identities_are_decoded_exactly() -> None:
    node = dataclasses.replace(SAMPLE.nodes[0], identity="модель/" + "schritt-ß-" * 500)
    (decoded,) = decode(encode(PatternGraph((node,)))).nodes
    assert decoded.identity == node.identity
