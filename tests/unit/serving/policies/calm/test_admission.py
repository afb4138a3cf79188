"""Who is admitted together: the blocks are a matter of speed, not of who is in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policies.calm.admission import (
    AHEAD_S,
    BLOCK,
    LEAST_UTILISATION,
    MOST_UTILISATION,
    Demands,
    Expected,
    admit,
    demands_of,
    utilisation_of,
)
from serving.policies.calm.program_demand import calls_of, present_programs
from serving.policies.calm.step_duration import UTILISATION, StepDuration
from serving.policies.urgency import next_token_due_s
from serving.requests import Flags, Floats, RequestState
from serving.slo import FutureWork
from serving.view import StepModel, StepView
from tests.strategies import law
from tests.unit.serving.serving_examples import (
    compound,
    deadline,
    latency,
    request,
    running,
    step,
)

NOBODY = Expected(*np.zeros((5, 0)), np.zeros((1, len(AHEAD_S))))
MODEL = StepModel(base_s=0.5, token_s=0.25, sequence_s=0.0, context_s=0.0)
STEP = StepDuration(2.0, True, 2.0, 0.75)


def due(need_s: Floats, due_s: Floats) -> Demands:
    """Programs that want all they need by one moment."""
    return Demands(due_s, need_s, np.zeros(len(need_s)), np.ones(len(need_s)))


def one_by_one(
    demands: Demands, density: Floats, expects: Expected, utilisation: float
) -> list[int]:
    """Each program for itself, the best first, until one block of them was refused as a whole."""
    order = sorted(np.flatnonzero(density > 0).tolist(), key=lambda place: -density[place])
    taken, admitted = np.zeros(len(AHEAD_S)), []
    for begin in range(0, len(order), BLOCK):
        before = len(admitted)
        for place in order[begin : begin + BLOCK]:
            [wanted] = demands.of(np.array([place]))
            [priced] = expects.above(density[[place]])
            fits = taken + wanted <= utilisation * AHEAD_S - priced
            if (fits | (wanted == 0)).all():
                taken = taken + wanted
                admitted.append(place)
        if len(admitted) == before:
            break
    return sorted(admitted)


@law
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 4 * BLOCK),
    largest_s=st.sampled_from([1, 8, 64, 1024]),
    num_expected=st.integers(0, 3),
)
def test_blocks_admit_whom_greed_admits_one_by_one(
    seed: int, count: int, largest_s: int, num_expected: int
) -> None:
    """In eighths of seconds, whose sums are exact."""
    random = np.random.default_rng(seed)
    demands = due(random.integers(1, 8 * largest_s, count) / 8, random.uniform(-5.0, 1500.0, count))
    density = random.integers(0, 20, count).astype(np.float64)
    priced = np.sort(random.integers(1, 20, num_expected))[::-1].astype(np.float64)
    by = np.cumsum(random.integers(0, 40, (num_expected + 1, len(AHEAD_S))), axis=0) / 8.0
    expects = Expected(priced, *np.ones((4, len(priced))), by)
    chosen = admit(demands, density, expects, utilisation=0.5)
    assert np.flatnonzero(chosen.programs).tolist() == one_by_one(demands, density, expects, 0.5)


def admitted(demands: Demands, *density: float, utilisation: float = 1.0) -> list[bool]:
    chosen = admit(demands, np.array(density), NOBODY, utilisation=utilisation)
    flags: list[bool] = chosen.programs.tolist()
    return flags


def test_who_does_not_fit_leaves_its_room_to_who_is_worth_less() -> None:
    demands = due(np.array([6.0, 9.0, 3.0]), np.array([10.0, 10.0, 10.0]))
    assert admitted(demands, 3.0, 2.0, 1.0) == [True, False, True]


def test_what_is_due_later_does_not_need_the_room_that_is_gone_before() -> None:
    demands = due(np.array([6.0, 6.0, 6.0]), np.array([10.0, 10.0, 100.0]))
    assert admitted(demands, 3.0, 2.0, 1.0) == [True, False, True]


def test_who_is_worth_nothing_is_not_admitted_into_an_empty_machine() -> None:
    demands = due(np.array([1.0]), np.array([100.0]))
    assert admitted(demands, 0.0) == [False]


def test_better_work_that_is_still_to_arrive_has_its_room_kept() -> None:
    demands = due(np.array([4.0, 4.0]), np.array([10.0, 10.0]))
    by = np.zeros((2, len(AHEAD_S)))
    by[1, AHEAD_S > 9.0] = 7.0
    better = Expected(np.array([2.0]), *np.ones((4, 1)), by)
    chosen = admit(demands, np.array([5.0, 1.0]), better, utilisation=1.0)
    assert chosen.programs.tolist() == [True, False]


def test_the_spare_share_is_that_of_the_scarcest_moment() -> None:
    demands = due(np.array([5.0]), np.array([10.0]))
    assert admit(demands, np.array([1.0]), NOBODY, utilisation=0.9).spare == pytest.approx(
        0.9 - 5.0 / AHEAD_S[AHEAD_S >= 10.0][0]
    )


def crowd(*, streams: Flags) -> StepView:
    slos = [latency(3.0, 0.5) if stream else deadline(30.0) for stream in streams]
    requests = (
        request(f"{number:03}", slo=slo, arrival_s=float(number)) for number, slo in enumerate(slos)
    )
    return step(*requests, now_s=5.0, token_s=0.1, model=MODEL)


def demands_in(view: StepView) -> Demands:
    """At steps of 2 s, which leave three quarters of the machine's time."""
    calls = calls_of(view.requests, view.model)
    programs = present_programs(view, calls)
    last_s = programs.ends_s - programs.isolated_latency_s(2.0)
    due_s = np.where(programs.streams, next_token_due_s(view)[programs.first], last_s)
    need_s = STEP.of(programs.need_s(view.model))
    return demands_of(view, calls, programs, need_s, due_s, STEP)


def coming(need_s: list[float], waits_s: float, at_work: float, counts: float = 1.0) -> Expected:
    """What is expected, each worth less a second than the one before."""
    waits, counted = np.full((2, len(need_s)), ([waits_s], [counts]))
    by = np.zeros((len(need_s) + 1, 1))
    value = -np.arange(len(need_s))
    return Expected(value, np.array(need_s), counted, waits / (1 - at_work), waits, by)


@pytest.mark.parametrize(
    ("need_s", "deviation"),
    [
        ([0.01] * 64, 1 / 8),
        ([1e299] * 64, 1 / 8),
        ([0.01] * 36, 1 / 6),
        ([0.01] * 9_900 + [20.0], 0.1682),
    ],
)
def test_the_more_alike_and_the_more_programs_the_more_time_is_given_away(
    need_s: list[float], deviation: float
) -> None:
    """They arrived in as long a time as each of them can wait."""
    share = utilisation_of(coming(need_s, 1e301, at_work=0.8), 1e301)
    assert share == pytest.approx(1 - 0.8 * deviation, abs=1e-4)


@pytest.mark.parametrize(("arrivals_s", "waits_s"), [(60.0, 30.0), (5.0, 10.0)])
def test_the_longer_they_can_wait_the_more_time_is_given_away(
    arrivals_s: float, waits_s: float
) -> None:
    """In a quarter of the time twice as much more comes, or less, than the mean."""
    share = utilisation_of(coming([0.01] * 36, waits_s, at_work=0.8), arrivals_s)
    assert share == pytest.approx(1 - 0.8 / 6 * (arrivals_s / waits_s) ** 0.5)


@pytest.mark.parametrize("at_work", [0.3, 0.6])
def test_the_shorter_they_are_at_work_the_more_time_is_given_away(at_work: float) -> None:
    """Who has not begun is displaced at no loss."""
    share = utilisation_of(coming([0.01] * 16, 60.0, at_work=at_work), 60.0)
    assert share == pytest.approx(1 - at_work / 4)


@pytest.mark.parametrize(
    ("need_s", "waits_s", "share"),
    [
        ([], 1.0, UTILISATION),
        ([3.0], 60.0, LEAST_UTILISATION),
        ([0.01] * 10_000, 60.0, MOST_UTILISATION),
        ([0.01] * 10_000, 0.0, LEAST_UTILISATION),
        ([0.01] * 100 + [50.0], 60.0, LEAST_UTILISATION),
    ],
)
def test_how_much_time_is_given_away_has_its_limits(
    need_s: list[float], waits_s: float, share: float
) -> None:
    assert utilisation_of(coming(need_s, waits_s, at_work=0.8), 60.0) == share


def test_needs_that_are_told_of_for_longer_even_out_no_more_than_they_do() -> None:
    """Eight of which each counts an eighth are as uneven as the one in eight that they tell of."""
    told = coming([0.01] * 64, 20.0, at_work=0.8, counts=0.125)
    assert utilisation_of(told, 60.0) == pytest.approx(
        utilisation_of(coming([0.08] * 8, 20.0, at_work=0.8), 60.0)
    )


@pytest.mark.parametrize("arrivals_s", [1.0, 1.1])
def test_what_has_no_room_beside_better_work_leaves_none_free(arrivals_s: float) -> None:
    """100 small ones take 1 s together, and the last and worst would need 1,000."""
    expects = coming([0.01] * 100 + [1000.0], arrivals_s, at_work=0.8)
    served = [0.01] * 100 + ([arrivals_s - 1.0] if arrivals_s > 1.0 else [])
    deviation = np.linalg.norm(served) / arrivals_s
    assert utilisation_of(expects, arrivals_s) == pytest.approx(1 - 0.8 * deviation)


def test_a_stream_wants_its_prompt_first_and_then_its_tokens_as_they_fall_due() -> None:
    """The first is due in 3 s; 9 tokens are unread, 10 are to come, 0.25 s each."""
    demands = demands_in(crowd(streams=np.array([False] * 5 + [True])))
    [wanted] = demands.of(np.array([5]))
    shares_by = wanted / (demands.first_s + demands.rest_s)[5]
    by_token = dict(zip(AHEAD_S.tolist(), shares_by.tolist(), strict=True))
    shares = [share for ahead_s, share in by_token.items() if ahead_s < 3.0]
    assert shares == [0.0] * len(shares)
    at_s = min(ahead_s for ahead_s in by_token if ahead_s >= 3.0)
    due_tokens = (at_s - 3.0) / 0.5 + 1.0
    assert by_token[at_s] == pytest.approx((9 * 0.25 + due_tokens * 0.25) / (19 * 0.25))
    assert by_token[AHEAD_S[-1]] == pytest.approx(1.0)
    assert (np.diff(wanted) >= 0).all()


def test_a_deadline_wants_its_tokens_evenly_once_it_can_no_longer_pause() -> None:
    """25 s are left, its 9 unread tokens and 10 steps take 22.25 s of them."""
    demands = demands_in(crowd(streams=np.array([False])))
    [wanted] = demands.of(np.array([0]))
    need_s = 19 * 0.25 / 0.75
    shares = np.clip((AHEAD_S - 2.75) / 22.25, 0.0, 1.0)
    assert wanted == pytest.approx(need_s * shares)


def test_what_each_wants_does_not_depend_on_who_is_asked_along() -> None:
    demands = demands_in(crowd(streams=np.arange(40) % 3 == 0))
    places = np.random.default_rng(0).permutation(40)
    alone = [demands.of(np.array([place]))[0].tolist() for place in places]
    assert demands.of(places).tolist() == alone


def test_calls_of_a_stage_that_are_still_to_arrive_are_needed_too() -> None:
    """One of three calls, with the others to come, asks for as much as all three."""
    rows = [request(name, slo=compound(60.0, program="p"), max_tokens=100) for name in "abc"]
    model = MODEL._replace(pair_s=0.125)
    whole = step(*rows, model=model)
    first = step(rows[0]._replace(stage_missing=2), model=model)
    asked = [present_programs(view, calls_of(view.requests, view.model)) for view in (whole, first)]
    for name in ("prompts_s", "decode", "contexts", "serial", "tokens"):
        assert getattr(asked[0], name) == pytest.approx(getattr(asked[1], name)), name


def test_a_long_prompt_needs_more_than_its_tokens_do() -> None:
    """What is read already stands before what is not, and is not read again."""
    pairs = MODEL._replace(pair_s=0.5)
    fresh = request("a", prompt_tokens=11, max_tokens=1)
    begun = fresh._replace(state=RequestState.RUNNING, computed_tokens=6)
    for row, unread, before in ((fresh, 10, 0), (begun, 4, 6)):
        views = [step(row, model=model) for model in (MODEL, pairs)]
        plain, priced = [
            present_programs(view, calls_of(view.requests, view.model)).need_s(view.model)
            for view in views
        ]
        assert priced - plain == pytest.approx(0.5 * unread * (before + unread / 2))


def test_who_waits_need_not_read_what_the_prefix_cache_holds() -> None:
    """Until it is read: then it is known what was found."""
    model = StepModel(base_s=0.5, token_s=0.25)
    waits = request("waits", prompt_tokens=100, cached_tokens=64)
    reads = running("reads", prompt_tokens=100, cached_tokens=64, computed_tokens=32)
    found = calls_of(step(waits, reads).requests, model)
    assert found.unread.tolist() == [35, 67]
    assert found.prompt_s.tolist() == [0.25 * 35, 0.25 * 67]


def test_what_later_calls_will_find_in_the_prefix_cache_costs_nothing() -> None:
    """It earns what it would earn all the same."""
    model = StepModel(base_s=0.5, token_s=0.25)
    slo = compound(90.0, final_s=200.0, program="p", future=FutureWork(2.0, 400.0, 0.0, 1.0, 0.0))
    rows = [request("a", slo=slo, prompt_tokens=1, prefix_hit_rate=share) for share in (0.0, 0.75)]
    views = [step(row, model=model) for row in rows]
    plain, cached = (present_programs(view, calls_of(view.requests, model)) for view in views)
    assert (plain.prompts_s[0], cached.prompts_s[0]) == (100.0, 25.0)
    assert plain.tokens == cached.tokens
