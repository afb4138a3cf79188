"""StepHistory and replay: the history of a step contains only calls that had ended."""

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
times_s = st.integers(0, 20).map(float)


@st.composite
def finished_calls(draw: st.DrawFn) -> list[Sample]:
    """Calls of two steps with arbitrary overlaps."""
    return [
        Sample(
            call(draw(st.sampled_from(["plan", "write"]))),
            draw(st.integers(0, 3000)),
            began_s := draw(times_s),
            began_s + draw(times_s),
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
def test_the_features_of_a_history_describe_its_newest_answers(answers: list[int]) -> None:
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


def test_without_answers_all_features_are_0() -> None:
    assert set(StepHistory().features()) == {0.0}


def test_the_step_with_the_oldest_last_answer_is_forgotten_first() -> None:
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
    for index in range(len(samples)):
        assert [has_ended for each, has_ended in events if each == index] == [False, True]


@law
@given(finished_calls())
def test_at_the_begin_of_a_call_exactly_the_calls_that_had_ended_are_known(
    samples: list[Sample],
) -> None:
    known: set[int] = set()
    begun: list[int] = []
    for index, has_ended in replayed(samples):
        if has_ended:
            known.add(index)
            continue
        began_s = samples[index].began_s
        assert known == {earlier for earlier in begun if samples[earlier].ended_s <= began_s}
        begun.append(index)


@law
@given(finished_calls(), st.data())
def test_a_training_vector_does_not_depend_on_later_answers(
    samples: list[Sample], data: st.DataObject
) -> None:
    """The vector of a call depends only on answers that ended before it began."""
    samples = sorted(samples, key=lambda sample: sample.began_s)
    before, _, began, _ = training_set(samples)
    now_s = data.draw(times_s)
    changed = [
        Sample(sample.features, sample.output_tokens + 1000, sample.began_s, sample.ended_s)
        if sample.ended_s > now_s
        else sample
        for sample in samples
    ]
    after, _, _, _ = training_set(changed)
    assert np.array_equal(before[began <= now_s], after[began <= now_s])


def test_the_newest_calls_are_the_last_ones_that_began() -> None:
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
    "values", [(-1, 0.0, 0.0), (2**40, 0.0, 0.0), (5, math.nan, 0.0), (5, 0.0, math.inf)]
)
def test_values_that_no_call_can_have_are_refused(values: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match=r"output_tokens|times"):
        Sample(call(), *values)
