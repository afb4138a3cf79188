"""Policies with a single key: their orders, and the requests that run."""

from hypothesis import given

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.policies.baselines.orderings import edf, fcfs, priority, sjf, srpt
from serving.policies.urgency import DeadlineClass, deadline_class, due_s
from serving.slo import OnLate, Slo, SloKind
from serving.view import StepView
from tests.strategies import law, step_views
from tests.unit.serving.serving_examples import (
    compound,
    deadline,
    dropped_when_late,
    latency,
    request,
    running,
    step,
)


def test_fcfs_is_the_order_of_arrival_regardless_of_slos() -> None:
    view = step(
        request("c", arrival_s=3.0, slo=deadline(1.0)),
        request("a", arrival_s=1.0),
        request("b", arrival_s=2.0, slo=deadline(50.0)),
        now_s=3.0,
    )
    assert fcfs(view).order == ("a", "b", "c")
    assert fcfs(view).run == {"a", "b"}


def test_ties_are_broken_by_arrival_then_id() -> None:
    view = step(
        request("z", arrival_s=0.0, slo=deadline(9.0)),
        request("b", arrival_s=1.0, slo=deadline(8.0)),
        request("a", arrival_s=1.0, slo=deadline(8.0)),
        now_s=1.0,
    )
    assert edf(view).order == ("z", "a", "b")


def test_edf_is_the_order_of_due_times() -> None:
    view = step(
        request("deadline", slo=deadline(20.0)),
        request("best effort"),
        request("stage", slo=compound(15.0, final_s=500.0)),
        running("stream", slo=latency(5.0, 2.0), output_tokens=3),  # its next token: 5 + 3 * 2
        request("stage overdue", slo=compound(1.0, final_s=30.0)),
        now_s=5.0,
    )
    order = ("stream", "stage", "deadline", "stage overdue", "best effort")
    assert edf(view).order == order


def test_edf_ranks_a_late_stream_by_its_first_token_that_can_be_in_time() -> None:
    """Its overdue tokens are lost and do not make it urgent."""
    behind = running("stream", slo=latency(1.0, 2.0), output_tokens=0, max_tokens=100)
    view = step(behind, request("deadline", slo=deadline(25.0)), now_s=20.0)
    # Token j is due at 1 + 2 j and can be there at 20 + j + 1: the first in time is j = 20.
    assert due_s(view)[0] == 41.0
    assert edf(view).order == ("deadline", "stream")


def test_a_stream_that_can_never_catch_up_ranks_behind_best_effort() -> None:
    hopeless = running("stream", slo=latency(1.0, 0.5), max_tokens=100)
    view = step(hopeless, request("best effort"), now_s=3.0, slots=1)
    assert edf(view).run == {"best effort"}


@law
@given(step_views())
def test_edf_ranks_feasible_work_by_due_time(view: StepView) -> None:
    ids = view.requests.request_id.tolist()
    rank = dict(zip(ids, zip(deadline_class(view), due_s(view), strict=True), strict=True))
    plan = edf(view)
    dropped = {request_id for request_id, _ in plan.drop}
    ranks = [rank[request_id] for request_id in plan.order if request_id not in dropped]
    assert ranks == sorted(ranks)


def test_late_work_to_continue_precedes_late_best_effort_work() -> None:
    view = step(
        request("a", slo=deadline(1.0, on_late=OnLate.BEST_EFFORT)),
        request("b", slo=deadline(4.0, on_late=OnLate.CONTINUE)),
        request("c", slo=deadline(99.0)),
        now_s=5.0,
    )
    assert edf(view).order == ("c", "b", "a")
    assert deadline_class(view)[1] == DeadlineClass.LATE


def test_dropped_requests_do_not_run_and_take_no_slot() -> None:
    view = step(
        request("late", slo=dropped_when_late(1.0)),
        request("impatient", slo=deadline(99.0, waiting_s=2.0)),
        request("a", slo=deadline(50.0)),
        request("b", slo=deadline(60.0)),
        now_s=5.0,
    )
    for policy in (edf, fcfs):
        plan = policy(view)
        assert dict(plan.drop).keys() == {"late", "impatient"}
        assert plan.run == {"a", "b"}
        assert sorted(plan.order[2:]) == ["impatient", "late"]


def test_a_batch_below_the_slots_limits_the_running_requests() -> None:
    view = step(request("a"), request("b"), request("c"), slots=3)
    assert fcfs(view).run == {"a", "b", "c"}
    assert fcfs(view, batch=1).run == {"a"}
    assert edf(view, batch=2).run == {"a", "b"}


def test_a_plan_expires_at_the_next_deadline_or_waiting_limit() -> None:
    view = step(
        request("a", slo=deadline(20.0)), request("b", slo=deadline(9.0, waiting_s=4.0)), now_s=3.0
    )
    assert edf(view).until_s == 4.0
    assert edf(step()).until_s == float("inf")


def test_priority_is_the_order_of_the_callers_priorities() -> None:
    view = step(
        request("later", priority=5),
        request("first", priority=-1, arrival_s=1.0),
        request("default", arrival_s=0.5),
        now_s=2.0,
    )
    assert priority(view).order == ("first", "default", "later")


def predicted(tokens: float) -> Slo:
    return Slo(length=LengthSketch((tokens,) * len(LENGTH_LEVELS)))


def test_sjf_uses_the_predicted_length_and_srpt_the_remaining_one() -> None:
    view = step(
        running("nearly done", slo=predicted(100.0), output_tokens=99, max_tokens=1000),
        request("short", slo=predicted(10.0), max_tokens=1000),
        request("unknown", max_tokens=1000),
        now_s=1.0,
    )
    assert sjf(view).order == ("short", "nearly done", "unknown")
    assert srpt(view).order == ("nearly done", "short", "unknown")


def test_srpt_counts_the_prefill_too() -> None:
    view = step(
        request("long prompt", slo=predicted(10.0), prompt_tokens=5000, max_tokens=1000),
        request("longer answer", slo=predicted(20.0), prompt_tokens=10, max_tokens=1000),
        now_s=1.0,
    )._replace(token_s=0.01, prefill_token_s=0.001)
    assert sjf(view).order == ("long prompt", "longer answer")
    assert srpt(view).order == ("longer answer", "long prompt")


def test_expired_work_comes_last_regardless_of_length_and_priority() -> None:
    tight = Slo(
        kind=SloKind.DEADLINE,
        deadline_s=1.0,
        length=LengthSketch((1.0,) * len(LENGTH_LEVELS)),
    )
    view = step(request("late", slo=tight, priority=-9), request("long"), now_s=5.0)
    for policy in (priority, sjf, srpt):
        assert policy(view).order == ("long", "late")


def sketched(tokens: float) -> LengthSketch:
    return LengthSketch((tokens,) * len(LENGTH_LEVELS))


def test_sjf_that_knows_no_deadlines_lets_short_expired_work_go_first() -> None:
    view = step(
        request("expired", slo=deadline(1.0, length=sketched(2.0))),
        request("feasible", slo=deadline(50.0, length=sketched(5.0))),
        now_s=3.0,
    )
    assert sjf(view).order == ("feasible", "expired")
    assert sjf(view, late_last=False).order == ("expired", "feasible")


def test_sjf_without_preemption_keeps_what_has_a_slot() -> None:
    view = step(
        running("long", slo=Slo(length=sketched(9.0))),
        request("short", slo=Slo(length=sketched(2.0))),
        request("shorter", slo=Slo(length=sketched(1.0))),
        slots=1,
    )
    assert sjf(view).order == ("shorter", "short", "long")
    assert sjf(view, preempts=False).order == ("long", "shorter", "short")
