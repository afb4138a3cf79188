"""The simulator's oracle futures equal the futures that the runtime would learn from the run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patterns.features import Outlook, tabulate
from patterns.nodes import LlmNode, Node, ToolNode
from patterns.stages import summarise
from serving.sim.programs.predictions import ORACLE_FUTURES
from serving.sim.programs.programs import Call, Program, Stage
from serving.slo import SloKind
from tests.strategies import law

CALL_S = 5.0  # any value: none of the compared numbers depends on it

tokens = st.integers(1, 10_000)
calls = st.lists(st.builds(lambda *each: Call(*each), tokens, tokens), min_size=1, max_size=4).map(
    tuple
)
stages = st.builds(Stage, calls, st.sampled_from([0.0, 0.5, 30.0]))
programs = st.lists(stages, min_size=1, max_size=5).map(
    lambda drawn: Program(
        id="p",
        application="a",
        kind=SloKind.COMPOUND,
        arrival_s=0.0,
        deadline_s=60.0,
        stages=tuple(drawn),
    )
)


def layers_of(program: Program) -> tuple[list[list[Node]], list[int]]:
    """The layers of the run as it is recorded, and the index of each stage's layer.

    Tools are layers of their own.
    """
    layers: list[list[Node]] = []
    indices = []
    for stage in program.stages:
        if stage.tool_s:
            layers.append([ToolNode("look", stage.tool_s)])
        indices.append(len(layers))
        layers.append(
            [
                LlmNode("m:ask", each.prompt_tokens, each.output_tokens, CALL_S)
                for each in stage.calls
            ]
        )
    return layers, indices


@law
@given(programs)
def test_oracle_futures_equal_the_learned_futures(program: Program) -> None:
    layers, indices = layers_of(program)
    recorded = [summarise(index, range(len(nodes)), nodes) for index, nodes in enumerate(layers)]
    outlooks = tabulate([recorded]).outlooks[0]
    for stage, index in enumerate(indices):
        learned = Outlook(*outlooks[index].tolist())
        future = ORACLE_FUTURES.future(program, stage, token_s=0.01, prefill_token_s=1e-4)
        assert future._replace(critical_s=0.0) == pytest.approx(
            (
                learned.later_llm_calls,
                learned.later_input_tokens,
                learned.later_output_tokens,
                0.0,
                learned.later_tool_s,
                learned.later_serial_tokens,
            ),
            abs=1e-6,
        )
