"""The arrays of patterns have the values of their stages."""

import math

import numpy as np
import pytest
from hypothesis import given

from patterns import LlmNode, Outlook, Stage, ToolNode, tabulate
from patterns.features import ATTRIBUTES, NO_STAGE, accumulated_seconds, calls_of, stage_features
from tests.unit.patterns.pattern_strategies import SAMPLE, law, many_runs, staged_graph

Run = tuple[Stage, ...]


def num_llm_calls(stage: Stage) -> int:
    return sum(call.num_calls for call in stage.calls if call.kind == "llm")


@law
@given(many_runs)
def test_a_row_has_its_patterns_stages_and_is_padded_after_them(past: list[Run]) -> None:
    table = tabulate(past)
    assert len(table) == len(past)
    for row, stages in enumerate(past):
        assert table.num_stages[row] == len(stages)
        for index, stage in enumerate(stages):
            assert (table.features[row, index] == stage_features(stage)).all()
            assert table.signatures[table.signature[row, index]] == calls_of(stage)
        assert (table.features[row, len(stages) :] == 0.0).all()
        assert (table.outlooks[row, len(stages) :] == 0.0).all()
        assert (table.signature[row, len(stages) :] == NO_STAGE).all()


@law
@given(many_runs)
def test_an_outlook_has_the_sums_before_and_after_its_stage(past: list[Run]) -> None:
    table = tabulate(past)
    for row, stages in enumerate(past):
        for index, stage in enumerate(stages):
            outlook = Outlook(*table.outlooks[row, index].tolist())
            later = stages[index + 1 :]
            assert outlook.rest_s == pytest.approx(outlook.stage_s + outlook.later_s)
            assert outlook.stage_calls == len(stage.members)
            assert outlook.stage_llm_calls == num_llm_calls(stage) <= outlook.stage_calls
            assert outlook.later_llm_calls == sum(num_llm_calls(each) for each in later)
            input_tokens = sum(each.input_tokens for each in later)
            assert outlook.later_input_tokens == pytest.approx(input_tokens)
            output_tokens = sum(each.output_tokens for each in later)
            assert outlook.later_output_tokens == pytest.approx(output_tokens)
            serial_tokens = sum(each.longest_output_tokens for each in later)
            assert outlook.later_serial_tokens == pytest.approx(serial_tokens)
            assert 0.0 < outlook.stage_s <= outlook.rest_s
            assert (index == 0) == (outlook.elapsed_s == 0.0)
            assert (not later) == (outlook.share == 1.0) == (outlook.later_s == 0.0)


@law
@given(many_runs)
def test_stages_with_calls_are_those_whose_signature_contains_them(past: list[Run]) -> None:
    table = tabulate(past)
    for calls in [frozenset(), *table.signatures]:
        has_calls = table.stages_with(calls)
        assert len(has_calls) == len(table.signatures) + 1
        assert not has_calls[NO_STAGE]
        for signature, has in zip(table.signatures, has_calls, strict=False):
            assert has == (calls <= signature)


def test_features_are_logs_of_lengths_and_times() -> None:
    second = SAMPLE.stages[1]
    assert ATTRIBUTES == ("output_tokens", "tool_seconds", "input_tokens")
    expected = [math.log1p(1024 + 955), math.log1p(0.8), math.log1p(177 + 169)]
    assert stage_features(second) == pytest.approx(np.array(expected))


def test_a_stage_of_0_seconds_counts_as_a_millisecond() -> None:
    graph = staged_graph([[ToolNode("a", 0.0)], [LlmNode("b", 1, 1, 2.0)], [ToolNode("c", 0.0)]])
    assert accumulated_seconds(graph.stages) == pytest.approx(np.array([0.001, 2.001, 2.002]))


def test_an_empty_table_can_be_extended() -> None:
    empty = tabulate([])
    assert len(empty) == 0
    assert empty.signatures == ()
    assert len(empty.extended([SAMPLE.stages])) == 1
    assert len(empty.extended([()]).extended([SAMPLE.stages, ()])) == 3
