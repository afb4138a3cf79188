"""calm_published equals algorithm 4.1 of the thesis, except for expired work."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from serving.errors import InvalidEngineConfig
from serving.length_sketch import LengthSketch
from serving.policies.baselines.calm_published import calm_published
from serving.policies.preemption_gate import MIN_GAIN
from serving.requests import Requests, RequestState, RequestView
from serving.slo import OnLate, Slo, SloKind
from serving.view import Plan, StepView
from tests.strategies import law
from tests.unit.serving.serving_examples import (
    compound,
    deadline,
    latency,
    request,
    running,
    step,
)

DELTA, FRAME, CUTOFF = 1.0, 50, 0.95


# A second, naive implementation of algorithm 4.1: every window, plain sums, no shared code.


def naive_priorities(view: StepView) -> dict[str, float]:
    """Equation 4.1 with the starvation constant; t_gen is that of a stage's slowest call."""
    priorities = {}
    for each in view.requests:
        tokens = each.remaining_tokens(0.9)
        t_gen = tokens * view.token_s
        if each.slo.kind is SloKind.COMPOUND:
            t_gen = max(
                other.remaining_tokens(0.9) * view.token_s
                for other in view.requests
                if same_stage(other, each)
            )
        goodput = tokens
        if each.slo.kind in (SloKind.DEADLINE, SloKind.COMPOUND):
            whole = each.prompt_tokens + each.output_tokens + tokens
            goodput = whole if view.now_s + t_gen <= each.final_s else 0.0
        frames_waited = max(view.now_s - each.unscheduled_s, 0.0) / (FRAME * view.token_s)
        priorities[each.request_id] = (goodput * each.slo.weight + DELTA * frames_waited) / t_gen
    return priorities


def same_stage(left: RequestView, right: RequestView) -> bool:
    """Whether both have the same user, program and stage; a stream is its own program."""
    if left.request_id == right.request_id:
        return True
    keys = {(each.slo.user, each.slo.program, each.slo.stage) for each in (left, right)}
    is_stream = SloKind.LATENCY in (left.slo.kind, right.slo.kind)
    return len(keys) == 1 and bool(left.slo.program) and not is_stream


def naive_groups(view: StepView, size: int) -> list[tuple[float, set[str]]]:
    """Lines 11 to 16: the score and ids of every window over the candidates."""
    priority = naive_priorities(view)
    ids = {each.request_id: each for each in view.requests}
    if len(ids) <= size:
        return [(sum(priority.values()), set(ids))]
    cut = CUTOFF * sorted(priority.values(), reverse=True)[size - 1]
    candidates = [ids[request_id] for request_id in ids if priority[request_id] >= cut]
    candidates.sort(key=lambda each: (each.prompt_tokens, each.request_id))
    windows = [candidates[i : i + size] for i in range(len(candidates) - size + 1)]
    return [
        (sum(priority[each.request_id] for each in window), {each.request_id for each in window})
        for window in windows
    ]


@st.composite
def small_views(draw: st.DrawFn, state: RequestState = RequestState.WAITING) -> StepView:
    """Up to eight requests with deadlines that have not passed."""
    now_s = draw(st.integers(0, 64)) / 2
    lengths = st.integers(1, 30).map(lambda tokens: LengthSketch((float(tokens),) * 7))
    requests = []
    for index in range(draw(st.integers(1, 8))):
        arrival_s = draw(st.integers(0, int(now_s)))
        ahead_s = float(now_s - arrival_s + draw(st.integers(1, 40)))
        common: dict[str, Any] = {
            "weight": draw(st.sampled_from([0.5, 1.0, 2.0])),
            "length": draw(st.none() | lengths),
            "program": draw(st.sampled_from(["", "one"])),
            "stage": draw(st.integers(0, 1)),
        }
        slo = draw(
            st.sampled_from(
                [
                    Slo(**common),
                    deadline(ahead_s, **common),
                    compound(ahead_s / 2, final_s=ahead_s, **common),
                    latency(1e6, 1e6, waiting_s=1e6, **common),
                ]
            )
        )
        requests.append(
            request(
                str(index),
                slo=slo,
                arrival_s=float(arrival_s),
                prompt_tokens=draw(st.sampled_from([8, 8, 16, 100, 2000])),
                max_tokens=draw(st.integers(1, 40)),
                unscheduled_s=float(arrival_s),
                state=state,
            )
        )
    return step(*requests, now_s=now_s, slots=draw(st.integers(1, 4)), token_s=0.25)


@law
@given(small_views())
def test_the_group_is_the_window_of_algorithm_4_1(view: StepView) -> None:
    groups = naive_groups(view, view.slots)
    best = max(score for score, _ in groups)
    rounding = 1e-9 * (1 + best)
    chosen = [group for score, group in groups if score >= best - rounding]
    assert calm_published(view).run in chosen


@law
@given(small_views())
def test_the_group_and_the_others_are_each_ordered_by_priority(view: StepView) -> None:
    plan = calm_published(view)
    priority = naive_priorities(view)
    for part in (plan.run, set(plan.order) - plan.run):
        values = [priority[request_id] for request_id in plan.order if request_id in part]
        assert values == pytest.approx(sorted(values, reverse=True))
    assert set(plan.order[: len(plan.run)]) == plan.run


@law
@given(small_views(RequestState.RUNNING), st.data())
def test_running_requests_are_preempted_exactly_if_it_pays(
    view: StepView, data: st.DataObject
) -> None:
    """Section 4.2: the gain is above 10%, and above the cost of recomputing evicted requests."""
    flags = data.draw(st.lists(st.booleans(), min_size=8, max_size=8))
    requests = tuple(
        each._replace(state=RequestState.WAITING)
        if flag
        else each._replace(computed_tokens=each.prompt_tokens)
        for each, flag in zip(view.requests, flags, strict=False)
    )
    prefill_token_s = data.draw(st.sampled_from([0.0, 1e-4]))
    view = view._replace(requests=Requests.of(requests), prefill_token_s=prefill_token_s)
    groups = sorted(naive_groups(view, view.slots), key=lambda group: -group[0])
    assume(len(groups) == 1 or groups[0][0] > groups[1][0] * (1 + 1e-9))
    _, window = groups[0]

    priority = naive_priorities(view)
    best_first = sorted(
        requests, key=lambda r: (-priority[r.request_id], r.arrival_s, r.request_id)
    )
    batch = [r for r in best_first if r.state is not RequestState.WAITING][: view.slots]
    evicted = [r for r in batch if r.request_id not in window]
    fill = [r for r in best_first if r.request_id in window and r not in batch]
    stay = {r.request_id for r in [*batch, *fill][: len(window)]}
    value = sum(priority[request_id] for request_id in stay)
    gain = sum(priority[request_id] for request_id in window) - value
    stall_s = sum(r.computed_tokens for r in evicted) * view.prefill_token_s
    cost = stall_s / view.token_s * len(window)
    margin = min(abs(gain - MIN_GAIN * value), abs(gain * FRAME * view.token_s - cost))
    assume(not evicted or margin > 1e-9 * (1 + value))
    pays = gain > MIN_GAIN * value and gain * FRAME * view.token_s > cost

    plan = calm_published(view)
    assert plan.run == (window if pays or not evicted else stay)
    assert plan.preempt == {
        r.request_id
        for r in requests
        if r.state is RequestState.RUNNING and r.request_id not in plan.run
    }


def plan_of_two(first: RequestView, second: RequestView, **changes: Any) -> Plan:
    """The plan for two requests and, by default, one slot."""
    return calm_published(step(first, second, **{"slots": 1} | changes))


def test_a_request_that_cannot_be_in_time_has_no_goodput() -> None:
    """Ten tokens take 10 s."""
    hopeless = request("hopeless", slo=deadline(9.9), prompt_tokens=1000)
    modest = request("modest", slo=deadline(10.0), prompt_tokens=1)
    assert plan_of_two(hopeless, modest).run == {"modest"}
    assert plan_of_two(hopeless._replace(slo=deadline(10.0)), modest).run == {"hopeless"}


def test_a_compound_request_is_feasible_by_its_final_deadline() -> None:
    behind = request("behind", slo=compound(2.0, final_s=20.0), prompt_tokens=1000)
    assert plan_of_two(behind, request("other", slo=deadline(50.0))).run == {"behind"}


def test_a_call_is_ranked_by_the_generation_time_of_its_stage_s_slowest_call() -> None:
    stage = compound(90.0, program="run", stage=1)
    short = request("short", slo=stage, max_tokens=1)
    long = request("long", slo=stage, max_tokens=50)
    single = request("single", slo=deadline(90.0), max_tokens=5)
    plan = calm_published(step(short, long, single, slots=1))
    assert plan.run == {"single"}
    other_run = long._replace(slo=compound(90.0, program="other", stage=1))
    assert calm_published(step(short, other_run, single, slots=1)).run == {"short"}


def test_a_lower_cutoff_gives_batches_of_more_similar_length() -> None:
    """Request b has a higher priority than c; p = 0.95 chooses c for its similar length."""
    view = step(
        request("a", prompt_tokens=10, slo=Slo(weight=2.0)),
        request("b", prompt_tokens=3000, slo=Slo(weight=1.9)),
        request("c", prompt_tokens=11, slo=Slo(weight=1.85)),
        request("d", prompt_tokens=12, slo=Slo(weight=1.0)),
    )
    assert calm_published(view, cutoff=1.0).run == {"a", "b"}
    assert calm_published(view, cutoff=0.95).run == {"a", "c"}


def test_waiting_raises_the_priority_of_a_request() -> None:
    patient = request("patient", unscheduled_s=0.0)
    rich = request("rich", slo=Slo(weight=1.2), unscheduled_s=200.0, arrival_s=200.0)
    assert plan_of_two(patient, rich, now_s=200.0, token_s=1.0).run == {"patient"}
    assert plan_of_two(patient, rich, now_s=200.0, token_s=100.0).run == {"rich"}


def test_a_running_request_stays_unless_the_gain_exceeds_a_tenth() -> None:
    incumbent = running("incumbent")
    for weight, winner in ((1.05, "incumbent"), (1.5, "challenger")):
        challenger = request("challenger", slo=Slo(weight=weight))
        assert plan_of_two(incumbent, challenger).run == {winner}


def test_a_running_request_stays_if_its_recomputation_costs_more_than_the_gain() -> None:
    incumbent = running("incumbent", computed_tokens=1000)
    challenger = request("challenger", slo=Slo(weight=1.5))
    assert plan_of_two(incumbent, challenger, prefill_token_s=0.0).run == {"challenger"}
    assert plan_of_two(incumbent, challenger, prefill_token_s=1.0).run == {"incumbent"}


def test_expired_work_gets_only_the_slots_that_feasible_work_leaves() -> None:
    """With the starvation constant alone it would outrank a feasible request of low weight."""
    late = request("late", slo=deadline(1.0), max_tokens=1)
    modest = request("modest", slo=Slo(weight=0.01), arrival_s=9000.0, unscheduled_s=9000.0)
    assert plan_of_two(late, modest, now_s=9000.0).run == {"modest"}
    assert plan_of_two(late, modest, now_s=9000.0).order == ("modest", "late")
    assert plan_of_two(late, modest, now_s=9000.0, slots=2).run == {"modest", "late"}


def test_expired_work_that_runs_is_preempted_for_feasible_work() -> None:
    late = running("late", slo=deadline(1.0, on_late=OnLate.CONTINUE), computed_tokens=5000)
    modest = request("modest", slo=Slo(weight=0.01))
    plan = plan_of_two(late, modest, now_s=60.0, prefill_token_s=1.0)
    assert (plan.run, plan.preempt) == ({"modest"}, {"late"})


def stage_of_two() -> tuple[RequestView, ...]:
    """A compound stage of a long and a short call, and a stream between their densities."""

    def call(name: str, tokens: float, prompt_tokens: int) -> RequestView:
        length = LengthSketch((tokens,) * 7)
        slo = compound(1e3, program="p", stage_calls=2, length=length)
        return request(name, slo=slo, prompt_tokens=prompt_tokens, max_tokens=1000)

    single = deadline(1e3, length=LengthSketch((10.0,) * 7))
    return (
        call("long", 10.0, 40),
        call("short", 5.0, 10),
        request("single", slo=single, prompt_tokens=35, max_tokens=1000),
    )


@pytest.mark.parametrize(
    ("added_up", "order"),
    [
        # Of 10 s each: 50, 15 and 45 tokens.
        ("own", ("long", "single", "short")),
        # 65 tokens in 10 s; 45 in 10 s.
        ("goodput", ("long", "short", "single")),
        # 65 tokens in 15 s; 45 in 10 s.
        ("both", ("single", "long", "short")),
    ],
)
def test_a_stage_is_ranked_by_what_is_added_up(added_up: str, order: tuple[str, ...]) -> None:
    assert calm_published(step(*stage_of_two(), slots=9), added_up=added_up).order == order


def test_by_requests_the_shortest_feasible_answer_goes_first() -> None:
    def answer(name: str, tokens: float, prompt_tokens: int, deadline_s: float) -> RequestView:
        slo = deadline(deadline_s, length=LengthSketch((tokens,) * 7))
        return request(name, slo=slo, prompt_tokens=prompt_tokens, max_tokens=1000)

    view = step(
        answer("large", 50.0, 9000, 100.0),
        answer("small", 10.0, 10, 100.0),
        answer("infeasible", 5.0, 10, 4.0),
        slots=9,
    )
    assert calm_published(view).order == ("large", "small", "infeasible")
    assert calm_published(view, goodput="requests").order == ("small", "large", "infeasible")


@pytest.mark.parametrize("name", ["added_up", "goodput"])
def test_an_unknown_way_of_counting_is_refused(name: str) -> None:
    with pytest.raises(InvalidEngineConfig, match=name):
        calm_published(step(), **{name: "nothing"})  # type: ignore[arg-type]
