"""Online search for a parameter: its choices, and the goodput that it observes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.scheduler.parameter_tuning import EPOCH_S, TunedPolicy
from serving.policies.baselines.parameter_search import (
    FIRST_TRIES,
    TUNED_PARAMETERS,
    ParameterSearch,
)
from serving.policies.table import POLICIES, PolicySpec
from serving.slo import Slo
from tests.strategies import law
from tests.unit.serving.serving_examples import compound, deadline, latency

CUTOFFS = (0.95, 0.8, 0.9, 1.0)


def searched(
    search: ParameterSearch, means: Mapping[float, float], *, epochs: int, scatter: float, seed: int
) -> tuple[ParameterSearch, Counter[float]]:
    """The search after these epochs, and how often it used each value in the second half."""
    noise = random.Random(seed)
    used: Counter[float] = Counter()
    for epoch in range(epochs):
        used[search.value] += epoch >= epochs // 2
        search = search.observe(means[search.value] * (1.0 + scatter * noise.gauss(0.0, 1.0)))
    return search, used


@pytest.mark.parametrize("best", CUTOFFS)
@pytest.mark.parametrize("seed", range(3))
def test_the_best_value_is_used_most_of_the_time(best: float, seed: int) -> None:
    means = {value: 1000.0 if value == best else 750.0 for value in CUTOFFS}
    _, used = searched(ParameterSearch.of(CUTOFFS), means, epochs=200, scatter=0.15, seed=seed)
    assert used[best] > 0.75 * used.total()


def test_the_search_follows_a_change_of_the_best_value() -> None:
    before = dict(zip(CUTOFFS, (1000.0, 700.0, 700.0, 700.0), strict=True))
    after = dict(zip(CUTOFFS, (700.0, 700.0, 700.0, 1000.0), strict=True))
    search, used = searched(ParameterSearch.of(CUTOFFS), before, epochs=200, scatter=0.1, seed=0)
    assert used.most_common(1)[0][0] == 0.95
    _, used = searched(search, after, epochs=400, scatter=0.1, seed=1)
    assert used.most_common(1)[0][0] == 1.0


@law
@given(goodputs=st.lists(st.floats(0.0, 1e12), max_size=60))
def test_the_same_observations_lead_to_the_same_choices(goodputs: list[float]) -> None:
    left = right = ParameterSearch.of(CUTOFFS)
    for number, goodput in enumerate(goodputs):
        assert left.value in CUTOFFS
        assert sum(left.tries) == number
        left, right = left.observe(goodput), right.observe(goodput)
        assert left == right
    if len(goodputs) >= FIRST_TRIES * len(CUTOFFS):
        assert min(left.tries) >= FIRST_TRIES


def test_every_value_is_tried_again() -> None:
    means = dict(zip(CUTOFFS, (1000.0, 900.0, 900.0, 900.0), strict=True))
    _, used = searched(ParameterSearch.of(CUTOFFS), means, epochs=1000, scatter=0.2, seed=0)
    assert min(used[value] for value in CUTOFFS) > 0


def test_observe_does_not_change_the_search_itself() -> None:
    search = ParameterSearch.of(CUTOFFS)
    search.observe(5.0)
    assert search == ParameterSearch.of(CUTOFFS)


@pytest.mark.parametrize("name", TUNED_PARAMETERS)
def test_a_tuned_policy_accepts_every_candidate_and_begins_with_its_default(name: str) -> None:
    parameter, values = TUNED_PARAMETERS[name]
    for value in values:
        PolicySpec(name, {parameter: value})
    assert (POLICIES[name].__kwdefaults__ or {})[parameter] == values[0]


def tuned_policy() -> TunedPolicy:
    policy = TunedPolicy.of(PolicySpec("calm_published"))
    assert policy is not None
    return policy


def test_a_parameter_that_is_set_is_not_tuned() -> None:
    assert TunedPolicy.of(PolicySpec("calm_published", {"cutoff": 0.9})) is None
    assert TunedPolicy.of(PolicySpec("fcfs")) is None
    assert TunedPolicy.of(PolicySpec("calm_published", {"batch": 9})) is not None


def goodput_tokens(policy: TunedPolicy, now_s: float) -> float:
    """Goodput of the epoch that began at 0 and ends now, in tokens."""
    before = sum(policy.search.sums)
    assert policy.advance(now_s)
    return (sum(policy.search.sums) - before) * now_s


@pytest.mark.parametrize(
    ("slo", "end_s", "whole", "tokens"),
    [
        (deadline(5.0), 5.0, True, 130.0),
        (deadline(5.0), 5.1, True, 0.0),
        (deadline(5.0), 4.0, False, 0.0),
        (compound(1.0, final_s=9.0), 8.0, True, 130.0),
        (compound(1.0, final_s=9.0), 9.5, True, 0.0),
        (Slo(), 1.0, True, 0.0),
    ],
)
def test_the_goodput_of_a_request_that_ends_in_time_is_its_prompt_and_answer(
    slo: Slo, end_s: float, whole: bool, tokens: float
) -> None:
    policy = tuned_policy()
    assert not policy.advance(0.0)
    policy.begin("one", slo, 0.0, prompt_tokens=100)
    policy.deliver("one", 10, 1.0)
    policy.end("one", 30, end_s, whole=whole)
    policy.end("one", 30, end_s, whole=whole)
    assert goodput_tokens(policy, EPOCH_S) == pytest.approx(tokens)


def test_the_goodput_of_a_stream_is_its_tokens_that_are_in_time() -> None:
    """Its tokens are due at 2, 3, 4, 5 and 6 s."""
    policy = tuned_policy()
    policy.advance(0.0)
    policy.begin("stream", latency(2.0, 1.0), 0.0, prompt_tokens=100)
    policy.deliver("stream", 1, 2.5)  # late
    policy.deliver("stream", 2, 3.0)  # both in time
    policy.deliver("stream", 1, 6.0)  # late
    policy.end("stream", 5, 6.0, whole=False)  # the fifth comes with the end, in time
    policy.deliver("stream", 1, 6.0)
    assert goodput_tokens(policy, EPOCH_S) == pytest.approx(3.0)


def test_an_epoch_is_discarded_if_the_engine_becomes_idle() -> None:
    policy = tuned_policy()
    policy.advance(0.0)
    policy.begin("one", deadline(99.0), 0.0, prompt_tokens=100)
    policy.end("one", 1, 1.0, whole=True)
    policy.idle()
    assert not policy.advance(EPOCH_S + 1.0)
    assert policy.search == ParameterSearch.of(TUNED_PARAMETERS["calm_published"].values)


def test_the_policy_of_an_epoch_has_that_epoch_s_value() -> None:
    policy = tuned_policy()
    used = []
    for epoch in range(9):
        if epoch:
            assert policy.advance(epoch * EPOCH_S)
        else:
            policy.advance(0.0)
        used.append(policy.policy.keywords["cutoff"])  # type: ignore[attr-defined]
    assert used[:8] == [*CUTOFFS] * FIRST_TRIES
