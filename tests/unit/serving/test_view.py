"""The contract between policies and the engine, and what a view says of a request."""

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
SOUND = Plan(order=("a", "b"), run=frozenset({"a"}))


@law
@given(step_views(), st.data())
def test_any_order_with_somebody_running_is_sound(view: StepView, data: st.DataObject) -> None:
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
        (SOUND._replace(order=("a",)), "order"),
        (SOUND._replace(order=("a", "b", "c")), "order"),
        (SOUND._replace(order=("a", "b", "b")), "order"),
        (SOUND._replace(order=("a", "a")), "order"),
        (SOUND._replace(run=frozenset({"a", "c"})), "run names unknown"),
        (SOUND._replace(drop=(("c", "late"),)), "drop names unknown"),
        (SOUND._replace(drop=(("b", "late"), ("b", "again"))), "repeated"),
        (SOUND._replace(drop=(("a", "late"),)), "cannot both run"),
        (SOUND._replace(preempt=frozenset({"a"})), "cannot both run"),
        (SOUND._replace(run=frozenset()), "somebody must run"),
        (SOUND._replace(run=frozenset(), drop=(("a", "late"),)), "somebody must run"),
        (SOUND._replace(step_tokens=0), "step_tokens"),
        (SOUND._replace(step_tokens=101), "step_tokens"),
        (SOUND._replace(chunk_tokens=0), "chunk_tokens"),
        (SOUND._replace(steps=0), "at least one step"),
        (SOUND._replace(least_steps=0), "at least one step"),
    ],
)
def test_each_breach_of_the_contract_is_named(broken: Plan, fault: str) -> None:
    [found] = plan_faults(TWO, broken)
    assert fault in found


def test_nobody_needs_to_run_when_everybody_is_dropped() -> None:
    plan = Plan(order=("a", "b"), run=frozenset(), drop=(("a", "late"), ("b", "late")))
    assert plan_faults(TWO, plan) == []
    assert plan_faults(step(), Plan(order=(), run=frozenset())) == []


def test_deadlines_are_counted_from_arrival() -> None:
    assert request("a", arrival_s=5.0, slo=deadline(3.0)).deadline_s == 8.0
    assert request("a", arrival_s=5.0, slo=deadline(3.0)).final_s == 8.0
    stage = request("a", arrival_s=5.0, slo=compound(3.0, final_s=20.0))
    assert (stage.deadline_s, stage.final_s) == (8.0, 25.0)
    assert request("a").deadline_s == math.inf


def test_without_a_sketch_what_max_tokens_leaves_bounds_the_rest() -> None:
    assert request("a", max_tokens=10, output_tokens=4).remaining_tokens() == 6


@law
@given(step_views(), st.floats(0.01, 0.99))
def test_what_is_still_to_come_is_between_one_token_and_the_limit(
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


def test_a_step_costs_what_it_is_made_of() -> None:
    seconds = MODEL.seconds(new_tokens=20, num_decodes=3, decode_context_tokens=400)
    assert seconds == pytest.approx(0.5 + 0.2 + 0.3 + 0.4)
    assert StepModel(base_s=0.5).seconds(
        new_tokens=20, num_decodes=3, decode_context_tokens=400
    ) == pytest.approx(0.5)


def test_a_prompt_costs_the_same_in_one_chunk_or_in_several() -> None:
    """20 tokens, then 30, are 50 tokens and 50 * 50 / 2 pairs of one of them with one before it."""
    read_s = MODEL.prompt_s(np.array([50]))
    assert read_s == pytest.approx([0.5 + 1250 * 0.0001])
    in_two = MODEL.prompt_s(np.array([20, 30]), np.array([0, 20]))
    assert in_two.sum() == pytest.approx(read_s.sum())
    chunks = Composition(50, 0, 0, ((20, 0), (30, 20)))
    in_a_step = MODEL.seconds(
        new_tokens=50, num_decodes=0, decode_context_tokens=0, prompt_pairs=chunks.prompt_pairs
    )
    assert in_a_step - MODEL.base_s == pytest.approx(read_s)
