"""StepTracker: the online fit of a step's duration, and its counters."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.observers.step_tracker import (
    FIRST_SOLVE_STEPS,
    MAX_SAMPLES,
    PRIOR,
    SloCounts,
    StepTracker,
    StepTrackerState,
)
from serving.slo import SloKind
from serving.step_cost import STEP_COSTS, Composition, fit
from serving.view import StepModel
from tests.strategies import law

TRUTH = StepModel(base_s=0.004, token_s=2e-5, sequence_s=8e-5, context_s=4e-8, pair_s=1e-8)
NOTHING = Composition(0, 0, 0, ())


def random_step(rng: random.Random) -> Composition:
    decodes = rng.randint(1, 200)
    prompt = rng.randint(1, 900) if rng.random() < 0.3 else 0
    chunks = ((prompt, rng.randint(0, 4000)),) if prompt else ()
    return Composition(decodes + prompt, decodes, decodes * rng.randint(50, 900), chunks)


def seconds_of(model: StepModel, step: Composition) -> float:
    return model.seconds(
        new_tokens=step.new_tokens,
        num_decodes=step.num_decodes,
        decode_context_tokens=step.decode_context_tokens,
        prompt_pairs=step.prompt_pairs,
    )


def run(
    tracker: StepTracker,
    steps: list[Composition],
    seconds: Callable[[Composition], float],
    start_s: float = 0.0,
) -> float:
    """Run steps of these durations, reading the model in each; returns the end of the last one."""
    now_s = start_s
    for step in steps:
        tracker.begin(now_s, step)
        assert min(tracker.model) >= 0
        now_s += seconds(step)
    tracker.begin(now_s, NOTHING)
    return now_s


def worst_error(model: StepModel, truth: StepModel, rng: random.Random) -> float:
    steps = [random_step(rng) for _ in range(100)]
    return max(abs(seconds_of(model, step) / seconds_of(truth, step) - 1) for step in steps)


def test_the_fit_finds_the_duration_of_steps_despite_noise() -> None:
    rng = random.Random(1)
    tracker = StepTracker()
    steps = [random_step(rng) for _ in range(1000)]
    run(tracker, steps, lambda step: seconds_of(TRUTH, step) * rng.lognormvariate(0, 0.1))
    assert worst_error(tracker.model, TRUTH, rng) < 0.06


def test_a_few_steps_show_a_machine_ten_times_faster_than_the_prior() -> None:
    rng = random.Random(2)
    fast = StepModel(*(part / 10 for part in TRUTH))
    tracker = StepTracker()
    run(tracker, [random_step(rng) for _ in range(40)], lambda step: seconds_of(fast, step))
    assert worst_error(tracker.model, fast, rng) < 0.1


def test_before_the_first_step_the_model_is_the_prior() -> None:
    tracker = StepTracker()
    assert tracker.model == PRIOR
    assert tracker.token_s > 0
    assert tracker.prefill_token_s > 0
    assert tracker.samples() == ()


@pytest.mark.parametrize("hiccup", [10.0, 1000.0])
def test_delayed_steps_hardly_change_the_model(hiccup: float) -> None:
    rng = random.Random(3)
    tracker = StepTracker()
    steps = [random_step(rng) for _ in range(2000)]

    def seconds(step: Composition) -> float:
        slow = hiccup if rng.random() < 0.02 else 1.0
        return seconds_of(TRUTH, step) * rng.lognormvariate(0, 0.05) * slow

    run(tracker, steps, seconds)
    assert worst_error(tracker.model, TRUTH, rng) < 0.12


def test_the_attention_of_prompt_chunks_is_not_attributed_to_their_tokens() -> None:
    """Else tokens, also those of decodes, would seem dearer, and contexts cheaper."""
    rng = random.Random(8)
    steps = []
    for index in range(2000):
        decodes = rng.randint(100, 160)
        prompt = rng.randint(50, 400) * (index % 2)
        chunks = ((prompt, rng.randint(0, 6000)),) if prompt else ()
        context = decodes * rng.randint(300, 700)
        steps.append(Composition(decodes + prompt, decodes, context, chunks))
    tracker = StepTracker()
    run(tracker, steps, cost_of)
    fitted, truth = tracker.model, STEP_COSTS["a100-llama3-8b"]
    assert fitted.pair_s == pytest.approx(truth.chunk_pair_s, rel=0.1)
    assert fitted.context_s == pytest.approx(truth.decode_context_s, rel=0.1)
    assert fitted.token_s + fitted.sequence_s == pytest.approx(truth.large_token_s, rel=0.1)


def test_rare_prefills_are_fitted_although_all_other_steps_fit_exactly() -> None:
    cost = STEP_COSTS["a100-llama3-8b"]
    rng = random.Random(4)
    steps = []
    for index in range(600):
        prompt = 1500 if index % 20 == 0 else 0
        chunks = ((prompt, 0),) if prompt else ()
        steps.append(Composition(100 + prompt, 100, rng.randint(50_000, 90_000), chunks))
    tracker = StepTracker()
    run(tracker, steps, lambda step: cost_of(step))
    assert seconds_of(tracker.model, steps[0]) == pytest.approx(cost_of(steps[0]), rel=0.05)
    assert seconds_of(tracker.model, steps[1]) == pytest.approx(cost_of(steps[1]), rel=0.05)
    assert cost.seconds(steps[0]) == cost_of(steps[0])


def cost_of(step: Composition) -> float:
    return STEP_COSTS["a100-llama3-8b"].seconds(step)


def test_the_model_follows_a_machine_that_becomes_slower_for_good() -> None:
    rng = random.Random(5)
    tracker = StepTracker()
    now_s = run(
        tracker, [random_step(rng) for _ in range(1000)], lambda step: seconds_of(TRUTH, step)
    )
    slow = StepModel(*(3 * part for part in TRUTH))
    steps = [random_step(rng) for _ in range(3000)]
    run(tracker, steps, lambda step: seconds_of(slow, step), now_s)
    assert worst_error(tracker.model, slow, rng) < 0.2


@law
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2048), st.integers(0, 256), st.integers(0, 10**6), st.floats(0, 1e3)
        ),
        max_size=200,
    )
)
def test_no_measurements_make_a_coefficient_negative_or_infinite(
    measured: list[tuple[int, int, int, float]],
) -> None:
    tracker = StepTracker()
    now_s = 0.0
    for prompt, decodes, context, seconds in measured:
        tracker.begin(now_s, Composition(prompt + decodes, decodes, context, ()))
        assert np.isfinite(tracker.model).all()
        assert min(tracker.model) >= 0
        assert tracker.token_s >= 0
        now_s += seconds


def test_idle_time_and_empty_steps_are_not_measured() -> None:
    tracker = StepTracker()
    one = Composition(1, 1, 100, ())
    tracker.begin(0.0, one)
    tracker.idle()
    tracker.begin(500.0, one)
    tracker.begin(500.5, NOTHING)
    tracker.begin(900.0, one)
    tracker.begin(900.25, one)
    assert [sample.seconds for sample in tracker.samples()] == [0.5, 0.25]
    assert tracker.snapshot().steps == 2


def test_the_decode_step_has_the_mean_batch() -> None:
    tracker = StepTracker()
    mean = Composition(50, 50, 20_000, ())
    fewer, more = Composition(40, 40, 10_000, ()), Composition(60, 60, 30_000, ())
    prompt = Composition(512, 0, 0, ((512, 0),))  # not a decode step
    run(tracker, [fewer, prompt, more] * 500, lambda step: seconds_of(TRUTH, step))
    assert tracker.token_s == pytest.approx(seconds_of(TRUTH, mean), rel=0.02)


def test_the_mean_step_covers_decode_steps_and_prefill_steps() -> None:
    tracker = StepTracker()
    assert tracker.mean_step_s == tracker.token_s  # nothing is measured yet
    decodes, prompt = Composition(50, 50, 20_000, ()), Composition(512, 0, 0, ((512, 0),))
    run(tracker, [decodes, prompt] * 500, lambda step: seconds_of(TRUTH, step))
    both_s = seconds_of(TRUTH, decodes) + seconds_of(TRUTH, prompt)
    assert tracker.mean_step_s == pytest.approx(both_s / 2, rel=0.01)


def test_the_model_does_not_follow_a_machine_that_is_slow_for_some_seconds() -> None:
    rng = random.Random(8)
    tracker = StepTracker()
    decodes = Composition(50, 50, 20_000, ())
    for slower in (1.0, 2.0) * 10:
        steps = [random_step(rng) for _ in range(500)]
        run(tracker, steps, lambda step, slower=slower: slower * seconds_of(TRUTH, step))
    expected_s = 1.5 * seconds_of(TRUTH, decodes)
    model_s = tracker.model.seconds(new_tokens=50, num_decodes=50, decode_context_tokens=20_000)
    assert model_s == pytest.approx(expected_s, rel=0.05)


def test_a_prompt_token_costs_what_one_more_token_of_the_mean_chunk_adds() -> None:
    rng = random.Random(6)
    tracker = StepTracker()
    steps = [random_step(rng) for _ in range(1000)]
    run(tracker, steps, lambda step: seconds_of(TRUTH, step))
    prefills = [step for step in steps if step.prefill_chunks]
    tokens = sum(step.new_tokens - step.num_decodes for step in prefills)
    before = sum(step.prompt_pairs for step in prefills) / tokens
    expected_s = TRUTH.token_s + before * TRUTH.pair_s
    assert expected_s > 1.5 * TRUTH.token_s
    assert tracker.prefill_token_s == pytest.approx(expected_s, rel=0.1)
    assert tracker.stall_s(10, 16) == pytest.approx(160 * expected_s, rel=0.1)


def test_the_samples_are_the_latest_steps_and_can_be_fitted() -> None:
    rng = random.Random(7)
    tracker = StepTracker()
    steps = [random_step(rng) for _ in range(MAX_SAMPLES + 50)]
    run(tracker, steps, lambda step: seconds_of(TRUTH, step))
    samples = tracker.samples()
    assert len(samples) == MAX_SAMPLES
    for sample, step in zip(samples, steps[50:], strict=True):
        assert sample.seconds == pytest.approx(seconds_of(TRUTH, step), rel=1e-6)
        assert sample.composition == step
    cost = fit(samples)
    assert cost.small_token_s == pytest.approx(TRUTH.token_s, rel=1e-3)
    assert cost.decode_context_s == pytest.approx(TRUTH.context_s, rel=1e-3)


def test_the_model_is_not_fitted_at_every_step() -> None:
    rng = random.Random(8)
    tracker = StepTracker()
    models = []
    now_s = 0.0
    for _ in range(1000):
        step = random_step(rng)
        tracker.begin(now_s, step)
        models.append(tracker.model)
        now_s += seconds_of(TRUTH, step)
    assert models[FIRST_SOLVE_STEPS] != PRIOR
    assert len(set(models)) < 30


def test_met_and_missed_slos_are_counted_by_kind() -> None:
    tracker = StepTracker()
    for kind, in_time in (
        (SloKind.LATENCY, True),
        (SloKind.LATENCY, True),
        (SloKind.LATENCY, False),
        (SloKind.COMPOUND, False),
    ):
        tracker.ended(kind, in_time)
    before = tracker.snapshot()
    assert before.slo_counts == {
        SloKind.LATENCY: SloCounts(2, 1),
        SloKind.COMPOUND: SloCounts(0, 1),
    }
    tracker.ended(SloKind.COMPOUND, True)
    assert before.slo_counts[SloKind.COMPOUND] == SloCounts(0, 1), "a snapshot does not change"


def test_lost_blocks_are_counted_with_their_predicted_stall() -> None:
    tracker = StepTracker()
    tracker.lost(3, 16)
    tracker.lost(2, 16)
    snapshot = tracker.snapshot()
    assert snapshot.lost_blocks == 5
    assert snapshot.stall_s == pytest.approx(tracker.stall_s(5, 16))
    assert snapshot.stall_s > 0


@law
@given(seed=st.integers(0, 1000), num_steps=st.integers(0, 300))
def test_a_restored_tracker_has_the_model_and_means_of_the_former_one(
    seed: int, num_steps: int
) -> None:
    rng = random.Random(seed)
    before, after = StepTracker(), StepTracker()
    steps = [random_step(rng) for _ in range(num_steps)]
    run(before, steps, lambda step: seconds_of(TRUTH, step) * rng.lognormvariate(0, 0.2))
    state = msgspec.msgpack.encode(before.state())
    after.restore(msgspec.msgpack.decode(state, type=StepTrackerState))
    assert after.model == before.model
    assert after.token_s == before.token_s
    assert after.decode_token_s(8) == before.decode_token_s(8)
    assert after.mean_step_s == before.mean_step_s
    assert after.prefill_token_s == before.prefill_token_s
    assert after.snapshot() == StepTracker().snapshot(), "counters are those of one engine"


def test_slow_first_steps_hardly_change_a_restored_model() -> None:
    """As those of an engine that has just been loaded are; a new model would follow them."""
    rng = random.Random(5)
    before = StepTracker()
    run(before, [random_step(rng) for _ in range(500)], lambda step: seconds_of(TRUTH, step))
    slow = [random_step(rng) for _ in range(FIRST_SOLVE_STEPS)]
    restored, new = StepTracker(), StepTracker()
    restored.restore(before.state())
    for tracker in (restored, new):
        run(tracker, slow, lambda step: 5 * seconds_of(TRUTH, step))
    assert worst_error(restored.model, TRUTH, rng) < 0.2
    assert worst_error(new.model, TRUTH, rng) > 1


def test_a_restored_model_follows_another_speed() -> None:
    rng = random.Random(6)
    before, after = StepTracker(), StepTracker()
    run(before, [random_step(rng) for _ in range(500)], lambda step: seconds_of(TRUTH, step))
    after.restore(before.state())
    half = StepModel(*(part / 2 for part in TRUTH))
    run(after, [random_step(rng) for _ in range(12_000)], lambda step: seconds_of(half, step))
    assert worst_error(after.model, half, rng) < 0.05
