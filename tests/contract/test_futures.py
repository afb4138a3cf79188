"""The simulation foretells of a program's rest what the runtime would learn from having seen it."""

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

CALL_S = 5.0  # whatever a call took: nothing that is compared here depends on it

tokens = st.integers(1, 10_000)
calls = st.lists(
    st.builds(Call, tokens, tokens, st.just(0), st.just(0)), min_size=1, max_size=4
).map(tuple)
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
    """The run as it is recorded: tools are layers of their own. And which layer each stage is."""
    layers: list[list[Node]] = []
    places = []
    for stage in program.stages:
        if stage.tool_s:
            layers.append([ToolNode("look", stage.tool_s)])
        places.append(len(layers))
        layers.append(
            [
                LlmNode("m:ask", each.prompt_tokens, each.output_tokens, CALL_S)
                for each in stage.calls
            ]
        )
    return layers, places


@law
@given(programs)
def test_what_is_told_of_the_rest_is_what_would_be_recorded(program: Program) -> None:
    layers, places = layers_of(program)
    recorded = [summarise(at, range(len(nodes)), nodes) for at, nodes in enumerate(layers)]
    outlooks = tabulate([recorded]).outlooks[0]
    for stage, place in enumerate(places):
        learned = Outlook(*outlooks[place].tolist())
        told = ORACLE_FUTURES.future(program, stage, token_s=0.01, prefill_token_s=1e-4)
        assert told._replace(critical_s=0.0) == pytest.approx(
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
