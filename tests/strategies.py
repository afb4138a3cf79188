"""Hypothesis strategies for the tests of serving: SLOs, requests and whole views."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.policies.table import POLICIES
from serving.requests import Requests, RequestState, RequestView, program_name
from serving.slo import FutureWork, OnLate, Slo, SloKind
from serving.view import Plan, StepModel, StepView

AnyPolicy = Callable[..., Plan]

PLAN_KINDS = ("edf", "slos_serve", "calm_published", "calm")
"""Policies that together use every field of a plan, for the tests of what carries plans out.

An order alone; a token budget for one step; preemption; chunks and a plan valid for many steps.
"""

law = settings(deadline=None)
"""Settings of a property test: no time limit for an example."""

Test = Callable[..., None]


def examples(number: int) -> int:
    """This many examples of a property; fewer for `make quick`, by its profile."""
    return min(number, settings().max_examples)


def of_each_policy(policies: Mapping[str, AnyPolicy] = POLICIES) -> Callable[[Test], Test]:
    """Runs a property test, which takes a `policy`, for each of these on the same examples.

    To draw a view takes longer than to plan it by every policy.
    """

    def decorate(test: Test) -> Test:
        whole = inspect.signature(test)
        drawn = [each for each in whole.parameters.values() if each.name != "policy"]
        signature = whole.replace(parameters=drawn)

        @functools.wraps(test)
        def of_all(*args: Any, **kwargs: Any) -> None:
            arguments = signature.bind(*args, **kwargs).arguments
            for name, policy in policies.items():
                try:
                    test(policy=policy, **arguments)
                except BaseException as error:
                    error.add_note(f"policy {name}")
                    raise

        vars(of_all)["__signature__"] = signature
        return of_all

    return decorate


finite = {"allow_nan": False, "allow_infinity": False}
positive = st.floats(min_value=0, exclude_min=True, **finite)
not_negative = st.floats(min_value=0, **finite)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def sketches(values: st.SearchStrategy[float] = not_negative) -> st.SearchStrategy[LengthSketch]:
    """Ascending quantiles; neighbours may be equal."""
    num_levels = len(LENGTH_LEVELS)
    return st.lists(values, min_size=num_levels, max_size=num_levels).map(
        lambda tokens: LengthSketch(tuple(sorted(tokens)))
    )


any_sketch = sketches()
any_future = st.builds(FutureWork, *[not_negative] * 5, not_negative | st.just(math.inf))
any_calls = st.integers(1, 4) | st.integers(1, 2**53)


@st.composite
def slos(
    draw: st.DrawFn,
    *,
    seconds: st.SearchStrategy[float] = positive,
    weights: st.SearchStrategy[float] = positive,
    lengths: st.SearchStrategy[LengthSketch] = any_sketch,
    programs: st.SearchStrategy[str] = names,
    futures: st.SearchStrategy[FutureWork] = any_future,
    stage_calls: st.SearchStrategy[int] = any_calls,
    waiting: bool = True,
    parts: bool = False,
) -> Slo:
    """Any valid SLO; with parts, also of answers in two parts."""
    kind = draw(st.sampled_from(SloKind))
    deadline_s = draw(seconds) if kind in (SloKind.DEADLINE, SloKind.COMPOUND) else None
    final_s = draw(st.none() | seconds) if deadline_s is not None else None
    if final_s is not None and deadline_s is not None:
        deadline_s, final_s = sorted((deadline_s, final_s))
    has_parts = parts and kind is not SloKind.BEST_EFFORT and draw(st.booleans())
    has_token = has_parts and (kind is SloKind.LATENCY or draw(st.booleans()))
    return Slo(
        kind=kind,
        then_token=draw(st.integers(0, 200_000)) if has_token else None,
        then_tbt_s=draw(seconds) if has_parts else None,
        then_length=draw(st.none() | lengths) if has_token else None,
        deadline_s=deadline_s,
        ttft_s=draw(seconds),
        tbt_s=draw(seconds),
        waiting_s=draw(st.none() | seconds) if waiting else None,
        on_late=draw(st.sampled_from(OnLate)),
        program=draw(programs),
        stage=draw(st.integers(0, 3) | st.integers(0, 2**53)),
        final_s=final_s,
        length=draw(st.none() | lengths),
        stage_calls=draw(stage_calls),
        future=draw(st.none() | futures),
        weight=draw(weights),
        user=draw(names),
    )


def _times_s(longest_s: float) -> st.SearchStrategy[float]:
    return st.floats(0, longest_s) | st.integers(0, int(longest_s)).map(float)


@st.composite
def request_views(
    draw: st.DrawFn,
    *,
    request_id: str,
    now_s: float,
    slo: st.SearchStrategy[Slo],
    hostile: bool = False,
) -> RequestView:
    """A request at time now_s; a hostile one has values that a correct engine never shows."""
    arrival_s = draw(st.floats(0, now_s) if now_s else st.just(0.0))
    state = draw(st.sampled_from(RequestState))
    prompt_tokens = draw(st.integers(1, 32) | st.integers(1, 8192))
    max_tokens = draw(st.integers(1, 64) | st.integers(1, 4096))
    output_tokens = draw(st.integers(0, max_tokens - 1))
    if hostile:
        arrival_s = draw(st.floats(-1e9, 1e9))
        output_tokens = draw(st.integers(0, 10 * max_tokens))
    holds_cache = state is not RequestState.WAITING or (hostile and draw(st.booleans()))
    held_tokens = st.integers(1, prompt_tokens + output_tokens)
    unscheduled_s = draw(st.floats(0, max(now_s, 0))) if now_s else 0.0
    return RequestView(
        request_id=request_id,
        arrival_s=arrival_s,
        slo=draw(slo),
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        priority=draw(st.integers(-3, 3)),
        state=state,
        computed_tokens=draw(held_tokens) if holds_cache else 0,
        output_tokens=output_tokens,
        unscheduled_s=draw(st.floats(-1e9, 1e9)) if hostile else max(arrival_s, unscheduled_s),
    )


step_models = st.builds(
    StepModel,
    base_s=st.floats(0.0, 0.3),
    token_s=st.just(0.0) | st.floats(1e-6, 0.01),
    sequence_s=st.just(0.0) | st.floats(1e-6, 0.01),
    context_s=st.just(0.0) | st.floats(1e-9, 1e-5),
    pair_s=st.just(0.0) | st.floats(1e-10, 1e-6),
).filter(any)
"""Fitted step models: any coefficient may be 0, but not all of them."""


@st.composite
def step_views(
    draw: st.DrawFn,
    *,
    max_requests: int = 12,
    hostile: bool | None = None,
    slo: st.SearchStrategy[Slo] | None = None,
) -> StepView:
    """Views for policies: by default half of them realistic, half of them hostile.

    Realistic: the first two hours of an engine, with deadlines that can be met, are missed, or are
    hopeless. Hostile: any value that valid tags allow, arrivals in the future, outputs above
    max_tokens.
    """
    if hostile is None:
        hostile = draw(st.booleans())
    programs = st.sampled_from(["", "one", "two"])
    if slo is None and hostile:
        slo = slos(programs=programs)
    elif slo is None:
        slo = slos(
            seconds=st.floats(0.01, 300) | st.integers(1, 60).map(float),
            weights=st.sampled_from([0.01, 1.0, 1.0, 1.0, 5.0]),
            lengths=sketches(st.integers(0, 2000).map(float)),
            programs=programs,
        )
    now_s = draw(st.just(0.0) | _times_s(100.0) | _times_s(7200.0))
    ids = draw(st.lists(st.integers(0, 99).map(str), max_size=max_requests, unique=True))
    arrived = draw(st.lists(st.integers(0, 99).map("arrival {}".format), max_size=6, unique=True))
    rows, arrivals = (
        [
            draw(request_views(request_id=request_id, now_s=now_s, slo=slo, hostile=hostile))
            for request_id in request_ids
        ]
        for request_ids in (ids, arrived)
    )
    kv_tokens = draw(st.sampled_from([64, 4096, 1 << 19]))
    return StepView(
        now_s=now_s,
        requests=Requests.of(_with_statistics(draw, rows)),
        slots=draw(st.integers(1, 6)),
        step_tokens=draw(st.integers(8, 4096)),
        token_s=draw(st.floats(0.001, 0.3)),
        prefill_token_s=draw(st.floats(0.0, 0.01)),
        mean_step_s=draw(st.floats(0.001, 0.6)),
        model=draw(step_models),
        kv_tokens=kv_tokens,
        free_kv_tokens=draw(st.sampled_from([0, kv_tokens // 2, kv_tokens])),
        arrivals=Requests.of(_at_arrival(_with_statistics(draw, arrivals))),
        arrivals_s=draw(st.sampled_from([0.01, 1.0, 60.0])),
        arrival_counts=np.array([draw(st.sampled_from([1.0, 0.125, 0.02])) for _ in arrivals]),
    )


def _at_arrival(rows: list[RequestView]) -> list[RequestView]:
    new = {"state": RequestState.WAITING, "computed_tokens": 0, "output_tokens": 0}
    return [row._replace(**new, program_tokens=0.0) for row in rows]


def _with_statistics(draw: st.DrawFn, rows: list[RequestView]) -> list[RequestView]:
    """Set the statistics of programs and users, equal for all requests of one of them."""
    tokens = st.integers(0, 3) | st.integers(0, 10**7)
    programs = [program_name(row.request_id, row.slo) for row in rows]
    program_tokens = {program: float(draw(tokens)) for program in dict.fromkeys(programs)}
    users = dict.fromkeys(row.slo.user for row in rows)
    user_tokens = {user: float(draw(tokens)) for user in users}
    ended_tokens = {program: float(draw(tokens)) for program in program_tokens}
    hit_rates = {user: draw(st.sampled_from([0.0, 0.3, 1.0])) for user in users}
    ratios = {user: draw(st.sampled_from([1.0, 0.01, 500.0])) for user in users}
    lengths = {user: draw(st.sampled_from([0.0, 0.4, 30.0, 1e6])) for user in users}
    return [
        row._replace(
            program_tokens=program_tokens[program],
            user_tokens=user_tokens[row.slo.user],
            ended_tokens=ended_tokens[program],
            cached_tokens=draw(st.sampled_from([0, row.prompt_tokens // 2, row.prompt_tokens])),
            prefix_hit_rate=hit_rates[row.slo.user],
            length_ratio=ratios[row.slo.user],
            default_length=tuple(
                lengths[row.slo.user] * level for level in range(len(LENGTH_LEVELS))
            ),
        )
        for row, program in zip(rows, programs, strict=True)
    ]
