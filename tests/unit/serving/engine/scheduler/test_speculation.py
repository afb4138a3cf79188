"""Steps with drafts, as policies see them: steps that bring each answer a token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.scheduler.speculation import Speculation
from serving.view import Plan, StepModel
from tests.unit.serving.serving_examples import step

MODEL = StepModel(base_s=0.012, token_s=7e-5, sequence_s=1e-5, context_s=8e-8, pair_s=3e-9)


def seen(*, drafts: int, accepted: int, decodes: int = 10, steps: int = 50) -> Speculation:
    """After steps in which each decode drafted and kept so many tokens."""
    speculation = Speculation()
    for _ in range(steps):
        speculation.launched(decodes, decodes * drafts)
        speculation.completed(decodes * accepted)
    return speculation


@pytest.mark.parametrize("speculation", [Speculation(), seen(drafts=0, accepted=0)])
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
def test_what_is_shown_takes_as_long_for_each_token_as_a_real_step(
    drafted: tuple[int, int], decodes: int, contexts: int, read: int
) -> None:
    """One real step is as many shown ones as tokens that a decode brings; each reads its part."""
    drafts, accepted = drafted
    shown = seen(drafts=drafts, accepted=accepted).view_of(step(model=MODEL)).model
    real_s = MODEL.seconds(
        new_tokens=decodes * (1 + drafts) + read,
        num_decodes=decodes,
        decode_context_tokens=contexts,
    )
    part_s = shown.seconds(
        new_tokens=decodes + read / (1 + accepted),
        num_decodes=decodes,
        decode_context_tokens=contexts,
    )
    assert (1 + accepted) * part_s == pytest.approx(real_s)


@given(drafted, st.integers(1, 200), st.integers(0, 2000))
def test_a_plan_s_budget_has_room_for_all_that_its_decodes_compute(
    drafted: tuple[int, int], decodes: int, read: int
) -> None:
    drafts, accepted = drafted
    speculation = seen(drafts=drafts, accepted=accepted)
    plan = Plan((), frozenset(), step_tokens=decodes + read, chunk_tokens=max(read, 1), steps=9)
    meant = speculation.plan_of(plan, num_decodes=decodes, step_tokens=8192)
    wanted = decodes * (1 + drafts) + read * (1 + accepted)
    assert meant.step_tokens in range(min(wanted, 8192), min(wanted, 8192) + 2)
    assert meant.chunk_tokens in range(
        max(read, 1) * (1 + accepted), max(read, 1) * (1 + accepted) + 2
    )
    assert meant.steps == max(9 // (1 + accepted), 1)


def per_decode(speculation: Speculation) -> tuple[float, float]:
    return speculation.kept_per_decode, speculation.computed_per_decode


def test_what_drafts_bring_is_followed() -> None:
    speculation = seen(drafts=4, accepted=0, steps=5000)
    assert (speculation.kept_per_decode, speculation.computed_per_decode) == pytest.approx(
        (1.0, 5.0)
    )
    for _ in range(10_000):
        speculation.launched(10, 40)
        speculation.completed(20)
    assert (speculation.kept_per_decode, speculation.computed_per_decode) == pytest.approx(
        (3.0, 5.0), rel=1e-3
    )
