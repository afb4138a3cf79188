"""StepHistory and replay: what is known of a step, and never anything from the future."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.analyzer.history import HISTORY_LENGTHS, MAX_STEPS, StepHistories, StepHistory
from serving.analyzer.samples import Sample, replayed, training_set
from tests.strategies import law
from tests.unit.serving.analyzer.length_examples import call

lengths = st.lists(st.integers(0, 5000), min_size=1, max_size=3 * HISTORY_LENGTHS)
moments = st.integers(0, 20).map(float)


@st.composite
def finished_calls(draw: st.DrawFn) -> list[Sample]:
    """Calls of two steps that overlap in every way."""
    return [
        Sample(
            call(draw(st.sampled_from(["plan", "write"]))),
            draw(st.integers(0, 3000)),
            began_s := draw(moments),
            began_s + draw(moments),
        )
        for _ in range(draw(st.integers(0, 12)))
    ]


def history_of(answers: list[int]) -> StepHistory:
    history = StepHistory()
    for tokens in answers:
        history.add(tokens)
    return history


@law
@given(lengths)
def test_a_history_describes_the_newest_answers(answers: list[int]) -> None:
    history = history_of(answers)
    window = sorted(answers[-HISTORY_LENGTHS:])
    last = len(window) - 1
    expected = (
        len(answers),
        answers[-1],
        sum(window) / len(window),
        window[last // 2],
        window[math.ceil(0.9 * last)],
    )
    assert history.ordered == window
    assert np.allclose(np.expm1(history.features()), expected)


def test_without_answers_there_is_nothing_to_say() -> None:
    assert set(StepHistory().features()) == {0.0}


def test_the_step_that_ended_longest_ago_is_forgotten_first() -> None:
    histories = StepHistories()
    for step in range(MAX_STEPS):
        histories.add(f"model:{step}", 7)
    histories.add("model:0", 8)
    histories.add("model:new", 9)
    assert len(histories) == MAX_STEPS
    assert histories.of("model:0").count == 2
    assert histories.of("model:1").count == 0


@law
@given(finished_calls())
def test_every_call_begins_once_and_then_ends_once(samples: list[Sample]) -> None:
    events = list(replayed(samples))
    for place in range(len(samples)):
        assert [has_ended for at, has_ended in events if at == place] == [False, True]


@law
@given(finished_calls())
def test_a_call_knows_exactly_the_calls_that_had_ended(samples: list[Sample]) -> None:
    known: set[int] = set()
    begun: list[int] = []
    for place, has_ended in replayed(samples):
        if has_ended:
            known.add(place)
            continue
        began_s = samples[place].began_s
        assert known == {earlier for earlier in begun if samples[earlier].ended_s <= began_s}
        begun.append(place)


@law
@given(finished_calls(), st.data())
def test_the_future_changes_nothing_in_the_past(samples: list[Sample], data: st.DataObject) -> None:
    """What a call is trained with depends on no answer that came after it began."""
    samples = sorted(samples, key=lambda sample: sample.began_s)
    before, _, began, _ = training_set(samples)
    now_s = data.draw(moments)
    changed = [
        Sample(sample.features, sample.output_tokens + 1000, sample.began_s, sample.ended_s)
        if sample.ended_s > now_s
        else sample
        for sample in samples
    ]
    after, _, _, _ = training_set(changed)
    assert np.array_equal(before[began <= now_s], after[began <= now_s])


def test_the_newest_calls_are_the_last_to_begin() -> None:
    samples = [Sample(call(), tokens, float(-tokens)) for tokens in (10, 20, 30)]
    calls = training_set(samples)
    assert calls.output_tokens.tolist() == [30, 20, 10]
    assert [column.tolist()[0] for column in calls.newest(2)[1:3]] == [20, -20.0]
    assert len(calls.newest(5).vectors) == 3


def test_without_times_calls_ran_one_after_another() -> None:
    samples = [Sample(call(), tokens) for tokens in (10, 20, 30)]
    assert list(replayed(samples)) == [
        (0, False),
        (0, True),
        (1, False),
        (1, True),
        (2, False),
        (2, True),
    ]


@pytest.mark.parametrize(
    "given", [(-1, 0.0, 0.0), (2**40, 0.0, 0.0), (5, math.nan, 0.0), (5, 0.0, math.inf)]
)
def test_what_no_call_can_have_been_is_refused(given: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match=r"output_tokens|times"):
        Sample(call(), *given)
