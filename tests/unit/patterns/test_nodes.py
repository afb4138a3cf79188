"""Nodes: values are converted to plain types, and invalid ones are refused."""

import math

import numpy as np
import pytest
from hypothesis import given

from patterns import InvalidNode, LlmNode, ToolNode
from patterns.nodes import MAX_SECONDS, MAX_TOKENS
from tests.unit.patterns.pattern_strategies import law, llm_nodes

WRONG_TOKENS = [-1, MAX_TOKENS + 1, 1.5, 2.0, math.nan, "7", None, True]
WRONG_SECONDS = [-0.001, math.nan, math.inf, -math.inf, MAX_SECONDS * 2, 10**400, "1", None, False]


@pytest.mark.parametrize("wrong", WRONG_TOKENS, ids=repr)
@pytest.mark.parametrize("field", ["input_tokens", "output_tokens"])
def test_a_token_count_that_is_not_a_whole_number_in_range_is_refused(
    field: str, wrong: object
) -> None:
    counts = {"input_tokens": 1, "output_tokens": 1, field: wrong}
    with pytest.raises(InvalidNode, match=rf"'m/plan': {field} is .* whole number"):
        LlmNode("m/plan", **counts, seconds=1.0)


@pytest.mark.parametrize("wrong", WRONG_SECONDS, ids=lambda value: repr(value)[:20])
def test_a_time_that_is_not_a_number_in_range_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidNode, match=r"seconds is .* number of seconds"):
        LlmNode("m/plan", 1, 1, wrong)
    with pytest.raises(InvalidNode, match=r"seconds is .* number of seconds"):
        ToolNode("search", wrong)


@pytest.mark.parametrize("wrong", ["", "\ud800", b"plan", None, 3], ids=repr)
def test_an_identity_that_is_not_a_valid_text_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidNode, match="identity"):
        ToolNode(wrong, 1.0)
    with pytest.raises(InvalidNode, match="identity"):
        LlmNode(wrong, 1, 1, 1.0)


def test_numpy_numbers_are_converted_to_python_numbers() -> None:
    node = LlmNode("m/plan", np.int64(3), np.uint8(4), np.float32(0.5))
    assert node == LlmNode("m/plan", 3, 4, 0.5)
    assert [type(node.input_tokens), type(node.output_tokens), type(node.seconds)] == [
        int,
        int,
        float,
    ]


def test_negative_zero_seconds_become_zero() -> None:
    assert repr(ToolNode("search", -0.0)) == repr(ToolNode("search", 0.0))


def test_a_tool_has_no_tokens() -> None:
    assert (ToolNode("search", 1.0).input_tokens, ToolNode("search", 1.0).output_tokens) == (0, 0)


@law
@given(llm_nodes)
def test_an_llm_node_and_a_tool_node_with_the_same_identity_are_not_equal(node: LlmNode) -> None:
    assert node != ToolNode(node.identity, node.seconds)
