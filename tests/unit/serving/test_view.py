"""The contract between policies and the engine, and the derived values of a view's requests."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.length_sketch import LengthSketch
from serving.slo import Slo
from serving.step_cost import Composition
from serving.view import Plan, StepModel, StepView, plan_faults
from tests.strategies import law, step_views
from tests.unit.serving.serving_examples import compound, deadline, request, step

TWO = step(request("a"), request("b"))
VALID = Plan(order=("a", "b"), run=frozenset({"a"}))


@law
@given(step_views(), st.data())
def test_any_order_with_a_running_request_is_valid(view: StepView, data: st.DataObject) -> None:
    order = data.draw(st.permutations([r.request_id for r in view.requests]))
    run = data.draw(st.sets(st.sampled_from(order), min_size=1)) if order else set()
    rest = [request_id for request_id in order if request_id not in run]
    preempt = data.draw(st.sets(st.sampled_from(rest))) if rest else set()
    drop = data.draw(st.lists(st.sampled_from(rest), unique=True)) if rest else []
    plan = Plan(
        order=tuple(order),
        run=frozenset(run),
        preempt=frozenset(preempt),
        drop=tuple((request_id, "late") for request_id in drop),
        step_tokens=data.draw(st.none() | st.integers(1, view.step_tokens)),
        chunk_tokens=data.draw(st.none() | st.integers(1, 2 * view.step_tokens)),
        steps=data.draw(st.integers(1, 100)),
    )
    assert plan_faults(view, plan) == []


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (VALID._replace(order=("a",)), "order"),
        (VALID._replace(order=("a", "b", "c")), "order"),
        (VALID._replace(order=("a", "b", "b")), "order"),
        (VALID._replace(order=("a", "a")), "order"),
        (VALID._replace(run=frozenset({"a", "c"})), "run names unknown"),
        (VALID._replace(drop=(("c", "late"),)), "drop names unknown"),
        (VALID._replace(drop=(("b", "late"), ("b", "again"))), "repeated"),
        (VALID._replace(drop=(("a", "late"),)), "cannot both run"),
        (VALID._replace(preempt=frozenset({"a"})), "cannot both run"),
        (VALID._replace(run=frozenset()), "run must not be empty"),
        (VALID._replace(run=frozenset(), drop=(("a", "late"),)), "run must not be empty"),
        (VALID._replace(step_tokens=0), "step_tokens"),
        (VALID._replace(step_tokens=101), "step_tokens"),
        (VALID._replace(chunk_tokens=0), "chunk_tokens"),
        (VALID._replace(steps=0), "at least one step"),
        (VALID._replace(least_steps=0), "at least one step"),
    ],
)
def test_each_breach_of_the_contract_is_named(broken: Plan, fault: str) -> None:
    [message] = plan_faults(TWO, broken)
    assert fault in message


def test_no_request_needs_to_run_when_all_are_dropped() -> None:
    plan = Plan(order=("a", "b"), run=frozenset(), drop=(("a", "late"), ("b", "late")))
    assert plan_faults(TWO, plan) == []
    assert plan_faults(step(), Plan(order=(), run=frozenset())) == []


def test_deadlines_are_counted_from_arrival() -> None:
    assert request("a", arrival_s=5.0, slo=deadline(3.0)).deadline_s == 8.0
    assert request("a", arrival_s=5.0, slo=deadline(3.0)).final_s == 8.0
    stage = request("a", arrival_s=5.0, slo=compound(3.0, final_s=20.0))
    assert (stage.deadline_s, stage.final_s) == (8.0, 25.0)
    assert request("a").deadline_s == math.inf


def test_without_a_sketch_max_tokens_bounds_the_remaining_output() -> None:
    assert request("a", max_tokens=10, output_tokens=4).remaining_tokens() == 6


@law
@given(step_views(), st.floats(0.01, 0.99))
def test_the_remaining_output_is_between_one_token_and_the_limit(
    view: StepView, level: float
) -> None:
    for each in view.requests:
        limit = max(each.max_tokens - each.output_tokens, 1)
        assert 1 <= each.remaining_tokens(level) <= limit


def test_a_sketch_is_conditioned_on_what_has_been_generated() -> None:
    length = LengthSketch((10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0))
    young = request("a", slo=Slo(length=length), max_tokens=1000)
    old = young._replace(output_tokens=65)
    assert young.remaining_tokens(0.9) == pytest.approx(50.0)
    assert old.remaining_tokens(0.9) == pytest.approx(5 + 10 * math.log(10 / 3) / math.log(5))


MODEL = StepModel(base_s=0.5, token_s=0.01, sequence_s=0.1, context_s=0.001, pair_s=0.0001)


def test_a_step_takes_the_sum_of_its_terms() -> None:
    seconds = MODEL.seconds(new_tokens=20, num_decodes=3, decode_context_tokens=400)
    assert seconds == pytest.approx(0.5 + 0.2 + 0.3 + 0.4)
    assert StepModel(base_s=0.5).seconds(
        new_tokens=20, num_decodes=3, decode_context_tokens=400
    ) == pytest.approx(0.5)


def test_a_prompt_costs_the_same_in_one_chunk_or_in_several() -> None:
    """Chunks of 20 and 30 tokens have 50 tokens and 50 * 50 / 2 pairs, like one chunk of 50."""
    whole_s = MODEL.prompt_s(np.array([50]))
    assert whole_s == pytest.approx([0.5 + 1250 * 0.0001])
    chunks_s = MODEL.prompt_s(np.array([20, 30]), np.array([0, 20]))
    assert chunks_s.sum() == pytest.approx(whole_s.sum())
    chunks = Composition(50, 0, 0, ((20, 0), (30, 20)))
    step_s = MODEL.seconds(
        new_tokens=50, num_decodes=0, decode_context_tokens=0, prompt_pairs=chunks.prompt_pairs
    )
    assert step_s - MODEL.base_s == pytest.approx(whole_s)
