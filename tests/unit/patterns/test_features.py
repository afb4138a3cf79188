"""Patterns as arrays say what their stages say."""

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
def test_a_row_has_its_patterns_stages_and_nothing_beyond(past: list[Run]) -> None:
    table = tabulate(past)
    assert len(table) == len(past)
    for row, stages in enumerate(past):
        assert table.num_stages[row] == len(stages)
        for place, stage in enumerate(stages):
            assert (table.features[row, place] == stage_features(stage)).all()
            assert table.signatures[table.signature[row, place]] == calls_of(stage)
        assert (table.features[row, len(stages) :] == 0.0).all()
        assert (table.outlooks[row, len(stages) :] == 0.0).all()
        assert (table.signature[row, len(stages) :] == NO_STAGE).all()


@law
@given(many_runs)
def test_an_outlook_divides_the_run_into_before_now_and_later(past: list[Run]) -> None:
    table = tabulate(past)
    for row, stages in enumerate(past):
        for place, stage in enumerate(stages):
            found = Outlook(*table.outlooks[row, place].tolist())
            later = stages[place + 1 :]
            assert found.rest_s == pytest.approx(found.stage_s + found.later_s)
            assert found.stage_calls == len(stage.members)
            assert found.stage_llm_calls == num_llm_calls(stage) <= found.stage_calls
            assert found.later_llm_calls == sum(num_llm_calls(its) for its in later)
            assert found.later_input_tokens == pytest.approx(sum(i.input_tokens for i in later))
            assert found.later_output_tokens == pytest.approx(sum(i.output_tokens for i in later))
            serial = sum(i.longest_output_tokens for i in later)
            assert found.later_serial_tokens == pytest.approx(serial)
            assert 0.0 < found.stage_s <= found.rest_s
            assert (place == 0) == (found.elapsed_s == 0.0)
            assert (not later) == (found.share == 1.0) == (found.later_s == 0.0)


@law
@given(many_runs)
def test_which_stages_make_a_set_of_calls_is_the_same_for_every_signature(past: list[Run]) -> None:
    table = tabulate(past)
    for calls in [frozenset(), *table.signatures]:
        found = table.stages_with(calls)
        assert len(found) == len(table.signatures) + 1
        assert not found[NO_STAGE]
        for signature, makes in zip(table.signatures, found, strict=False):
            assert makes == (calls <= signature)


def test_lengths_and_times_are_compared_by_their_logs() -> None:
    second = SAMPLE.stages[1]
    assert ATTRIBUTES == ("output_tokens", "tool_seconds", "input_tokens")
    expected = [math.log1p(1024 + 955), math.log1p(0.8), math.log1p(177 + 169)]
    assert stage_features(second) == pytest.approx(np.array(expected))


def test_a_stage_of_no_time_still_takes_a_millisecond() -> None:
    graph = staged_graph([[ToolNode("a", 0.0)], [LlmNode("b", 1, 1, 2.0)], [ToolNode("c", 0.0)]])
    assert accumulated_seconds(graph.stages) == pytest.approx(np.array([0.001, 2.001, 2.002]))


def test_no_patterns_make_an_empty_table_that_can_grow() -> None:
    empty = tabulate([])
    assert len(empty) == 0
    assert empty.signatures == ()
    assert len(empty.extended([SAMPLE.stages])) == 1
    assert len(empty.extended([()]).extended([SAMPLE.stages, ()])) == 3
