"""Speculation: conversion between steps with drafts and steps of one token per decode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.scheduler.speculation import Speculation
from serving.view import Plan, StepModel
from tests.unit.serving.serving_examples import step

MODEL = StepModel(base_s=0.012, token_s=7e-5, sequence_s=1e-5, context_s=8e-8, pair_s=3e-9)


def after_steps(*, drafts: int, accepted: int, decodes: int = 10, steps: int = 50) -> Speculation:
    """After steps in which each decode had this many drafts and this many were accepted."""
    speculation = Speculation()
    for _ in range(steps):
        speculation.launched(decodes, decodes * drafts)
        speculation.completed(decodes * accepted)
    return speculation


@pytest.mark.parametrize("speculation", [Speculation(), after_steps(drafts=0, accepted=0)])
def test_without_drafts_nothing_changes(speculation: Speculation) -> None:
    view = step(model=MODEL, token_s=0.02, step_tokens=2048)
    shown = speculation.view_of(view)
    assert shown.model == pytest.approx(MODEL)
    assert (shown.token_s, shown.step_tokens) == (0.02, 2048)
    plan = Plan(("a",), frozenset(["a"]), step_tokens=300, chunk_tokens=200, steps=10)
    assert speculation.plan_of(plan, num_decodes=30, step_tokens=2048) == plan


drafted = st.integers(0, 8).flatmap(
    lambda drafts: st.tuples(st.just(drafts), st.integers(0, drafts))
)


@given(
    drafted,
    st.integers(1, 200),
    st.integers(0, 100_000),
    st.integers(0, 1500),
)
def test_converted_steps_take_as_long_per_token_as_real_ones(
    drafted: tuple[int, int], decodes: int, contexts: int, prefill_tokens: int
) -> None:
    """A real step equals 1 + accepted converted ones; each has that share of its prefill."""
    drafts, accepted = drafted
    shown = after_steps(drafts=drafts, accepted=accepted).view_of(step(model=MODEL)).model
    real_s = MODEL.seconds(
        new_tokens=decodes * (1 + drafts) + prefill_tokens,
        num_decodes=decodes,
        decode_context_tokens=contexts,
    )
    converted_s = shown.seconds(
        new_tokens=decodes + prefill_tokens / (1 + accepted),
        num_decodes=decodes,
        decode_context_tokens=contexts,
    )
    assert (1 + accepted) * converted_s == pytest.approx(real_s)


@given(drafted, st.integers(1, 200), st.integers(0, 2000))
def test_a_converted_plan_has_a_budget_for_all_tokens_of_its_decodes(
    drafted: tuple[int, int], decodes: int, prefill_tokens: int
) -> None:
    drafts, accepted = drafted
    speculation = after_steps(drafts=drafts, accepted=accepted)
    chunk_tokens = max(prefill_tokens, 1)
    plan = Plan(
        (),
        frozenset(),
        step_tokens=decodes + prefill_tokens,
        chunk_tokens=chunk_tokens,
        steps=9,
    )
    converted = speculation.plan_of(plan, num_decodes=decodes, step_tokens=8192)
    expected = min(decodes * (1 + drafts) + prefill_tokens * (1 + accepted), 8192)
    assert converted.step_tokens in range(expected, expected + 2)
    expected = chunk_tokens * (1 + accepted)
    assert converted.chunk_tokens in range(expected, expected + 2)
    assert converted.steps == max(9 // (1 + accepted), 1)


def test_the_means_follow_a_change_of_the_accepted_drafts() -> None:
    speculation = after_steps(drafts=4, accepted=0, steps=5000)
    assert (speculation.kept_per_decode, speculation.computed_per_decode) == pytest.approx(
        (1.0, 5.0)
    )
    for _ in range(10_000):
        speculation.launched(10, 40)
        speculation.completed(20)
    assert (speculation.kept_per_decode, speculation.computed_per_decode) == pytest.approx(
        (3.0, 5.0), rel=1e-3
    )
