"""Program-level attained service: levels by service, oldest call first in each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policies.baselines.plas import attained_s, plas, queue_level
from serving.slo import Slo
from serving.view import StepView
from tests.strategies import law, step_views
from tests.unit.serving.serving_examples import deadline, request, running, step


def of_program(name: str) -> Slo:
    return Slo(program=name)


def test_the_least_served_program_comes_first_regardless_of_lengths() -> None:
    view = step(
        running("served", arrival_s=0.0, output_tokens=5, max_tokens=6, program_tokens=15.0),
        request("new", arrival_s=4.0, max_tokens=4000),
        now_s=5.0,
    )
    assert plas(view).order == ("new", "served")


def test_within_a_level_the_oldest_call_comes_first() -> None:
    """With a quantum of 2 s both calls are in the same level, with 1.5 s they are not."""
    view = step(
        running("young", arrival_s=2.0, output_tokens=3, program_tokens=13.0),
        running("old", arrival_s=1.0, output_tokens=5, max_tokens=20, program_tokens=15.0),
        now_s=9.0,
    )
    assert plas(view, quantum_s=2.0).order == ("old", "young")
    assert plas(view, quantum_s=1.5).order == ("young", "old")


def test_a_new_call_inherits_the_service_of_its_program_s_ended_calls() -> None:
    """The present call's 10 tokens took 5 s, so the 20 tokens of ended calls count as 10 s."""
    present = running("present", output_tokens=5, prompt_tokens=5, program_tokens=30.0)
    present = present._replace(slo=of_program("long"), computed_tokens=9)
    follow_up = request("follow-up", arrival_s=1.0, slo=of_program("long"), program_tokens=30.0)
    other = request("other", arrival_s=2.0, slo=of_program("other"))
    view = step(present, follow_up, other, now_s=2.0)
    assert attained_s(view).tolist() == pytest.approx([15.0, 10.0, 0.0])
    assert plas(view).order == ("other", "follow-up", "present")


def test_prefill_counts_at_the_speed_of_prefill() -> None:
    """1,000 prompt tokens are 10 s of service, 20 output tokens are 20 s."""
    prefill = running("prefill", prompt_tokens=2000, computed_tokens=1000, program_tokens=1000.0)
    decode = running("decode", output_tokens=20, max_tokens=50, program_tokens=30.0)
    view = step(decode, prefill, prefill_token_s=0.01)
    assert attained_s(view).tolist() == pytest.approx([20.1, 10.0])
    assert plas(view).order == ("prefill", "decode")


def test_a_preempted_call_keeps_its_attained_service() -> None:
    kept = running("kept", output_tokens=4, computed_tokens=13, program_tokens=14.0)
    lost = request("lost", output_tokens=4, computed_tokens=0, program_tokens=14.0)
    view = step(kept, lost, prefill_token_s=0.1)
    assert attained_s(view).tolist() == pytest.approx([5.0, 5.0])


@law
@given(
    st.lists(st.floats(0, 1e6), min_size=1),
    st.floats(0.01, 1e3),
    st.integers(1, 12),
)
def test_levels_double_in_width(service_s: list[float], quantum_s: float, levels: int) -> None:
    queues = queue_level(np.array(service_s), quantum_s, levels)
    for seconds, level in zip(service_s, queues.tolist(), strict=True):
        assert 0 <= level < levels
        assert seconds >= (2.0**level - 1) * quantum_s * (1 - 1e-9)
        if level < levels - 1:
            assert seconds <= (2.0 ** (level + 1) - 1) * quantum_s * (1 + 1e-9)


def test_a_call_that_waits_long_moves_to_the_first_level_until_it_is_served() -> None:
    """It was served for 5 s and has waited for 50 s since."""
    served = running("served", output_tokens=5, max_tokens=20, program_tokens=15.0)
    new = request("new", arrival_s=54.0, unscheduled_s=54.0)
    waiting = step(served._replace(unscheduled_s=5.0), new, now_s=55.0, slots=1)
    assert plas(waiting, starvation_ratio=10.0).run == {"served"}
    assert plas(waiting, starvation_ratio=10.1).run == {"new"}
    served_again = step(served._replace(unscheduled_s=55.0), new, now_s=55.0, slots=1)
    assert plas(served_again, starvation_ratio=10.0).run == {"new"}


def test_expired_work_is_last_however_little_it_was_served() -> None:
    late = request("late", slo=deadline(1.0))
    served = running("served", output_tokens=500, max_tokens=1000, program_tokens=510.0)
    view = step(late, served, now_s=600.0, slots=1)
    assert plas(view).order == ("served", "late")


@law
@given(step_views(hostile=False))
def test_attained_service_is_finite_and_not_negative(view: StepView) -> None:
    service_s = attained_s(view)
    assert np.isfinite(service_s).all()
    assert (service_s >= 0).all()
