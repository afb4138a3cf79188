"""The cost of unequal context lengths in a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policies.table import PolicySpec
from serving.sim.drive.driver import VirtualTime
from serving.sim.drive.unequal_lengths import UnequalLengths
from serving.slo import Slo
from serving.step_cost import STEP_COSTS, Composition
from tests.strategies import law

COST = STEP_COSTS["a100-llama3-8b"]
CONTEXTS = st.lists(st.integers(1, 10_000), min_size=1, max_size=20)


def seconds(contexts: list[int], share: float) -> float:
    composition = Composition(len(contexts), len(contexts), sum(contexts), ())
    return UnequalLengths(COST, lambda: contexts, share).seconds(composition)


@law
@given(contexts=CONTEXTS)
def test_with_share_1_a_batch_takes_as_long_as_one_of_its_longest_context(
    contexts: list[int],
) -> None:
    padded = [max(contexts)] * len(contexts)
    assert seconds(contexts, 1.0) == pytest.approx(seconds(padded, 0.0))


@law
@given(contexts=CONTEXTS, share=st.floats(0.0, 1.0))
def test_the_cost_is_between_that_of_the_step_and_that_of_a_padded_batch(
    contexts: list[int], share: float
) -> None:
    low, high = seconds(contexts, 0.0), seconds(contexts, 1.0)
    assert low - 1e-12 <= seconds(contexts, share) <= high + 1e-12


def test_a_step_without_decodes_costs_what_it_did() -> None:
    prompt = Composition.of_prompt(100)
    assert UnequalLengths(COST, list, 1.0).seconds(prompt) == COST.seconds(prompt)


@pytest.mark.usefixtures("imported_vllm")
def test_an_engine_gives_the_contexts_that_its_composition_sums_up() -> None:
    from serving.sim.drive.steady_engine import SteadyEngine
    from serving.sim.drive.virtual_engine import VirtualConfig

    engine = SteadyEngine(VirtualConfig(policy=PolicySpec("fcfs")), VirtualTime())
    for name, tokens in (("short", 20), ("long", 500)):
        engine.submit(name, prompt=[1000] * tokens, output_tokens=9, slo=Slo(), max_tokens=9)
    seen = []
    while engine.has_work:
        step = engine.plan_step()
        contexts = engine.decode_contexts()
        assert (len(contexts), sum(contexts)) == (step.num_decodes, step.decode_context_tokens)
        seen.append(sorted(contexts))
        engine.finish_step()
    assert [20, 500] in seen
