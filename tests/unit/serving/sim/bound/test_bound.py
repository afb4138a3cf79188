"""The upper bound: no schedule exceeds it, and it is close to optima that are known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.sim.bound.bound import Bound, upper_bound
from serving.sim.bound.linear_program import LinearProgram, Solution
from serving.sim.drive.driver import Replay, VirtualTime, replay
from serving.sim.metrics.metrics import Report, summarise
from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.workloads.workloads import generate
from serving.slo import SloKind
from serving.step_cost import MACHINES, Machine, StepCost
from serving.workload_errors import SimError
from tests.strategies import examples
from tests.unit.serving.sim.random_engine import RandomEngine

A100 = MACHINES["a100-llama3-8b"]
SLOW = replace(A100, step_cost=replace(A100.step_cost, fixed_s=0.03))
"""A machine with steps so long that few programs with long chains of steps can be in time."""
ROUNDING = 1e-5  # relative: what the bound adds for rounding and for the solver's tolerance


def program(*stages: Stage, **changes: Any) -> Program:
    """A deadline or compound program that arrives at 0 with a deadline of 10 s."""
    values: dict[str, Any] = {
        "id": "p",
        "application": "",
        "kind": SloKind.DEADLINE if len(stages) == 1 else SloKind.COMPOUND,
        "arrival_s": 0.0,
        "stages": stages,
        "deadline_s": 10.0,
    }
    return Program(**(values | changes))


def stream(prompt_tokens: int, output_tokens: int, **changes: Any) -> Program:
    stage = Stage((Call(prompt_tokens, output_tokens),))
    return program(stage, **{"kind": SloKind.LATENCY, "deadline_s": None} | changes)


def copies(original: Program, count: int) -> list[Program]:
    return [replace(original, id=f"{original.id}{number}") for number in range(count)]


def machine(*, kv_tokens: int = 10**6, **coefficients: float) -> Machine:
    cost = StepCost(name="made up", source="", uncertainty="", **coefficients)
    return Machine(step_cost=cost, kv_blocks=kv_tokens, block_tokens=1, memory_source="")


def bound(programs: list[Program], on: Machine, *, until_s: float = 10.0, **changes: Any) -> Bound:
    return upper_bound(programs, on, window_s=(0.0, until_s), **changes)


# Workloads with a known optimum


def test_a_program_alone_is_served_completely() -> None:
    result = bound([program(Stage((Call(100, 20),)))], A100)
    assert result.token_goodput == pytest.approx(12.0, rel=ROUNDING)
    assert result.request_goodput == pytest.approx(0.1, rel=ROUNDING)
    assert result.tokens.served == {"deadline": pytest.approx(1.0)}


@pytest.mark.parametrize(("deadline_s", "is_possible"), [(5.9, False), (6.0, True)])
def test_a_program_without_time_for_its_steps_earns_nothing(
    deadline_s: float, is_possible: bool
) -> None:
    late = program(Stage((Call(7, 2),)), Stage((Call(1, 2),), tool_s=2.0), deadline_s=deadline_s)
    result = bound([late], machine(fixed_s=1.0))
    assert (result.token_goodput > 0) is is_possible
    assert (result.request_goodput > 0) is is_possible


def test_under_overload_only_as_many_programs_are_served_as_fit() -> None:
    """20 prompts of one token; a token costs a second, and all are due after 10 s."""
    programs = copies(program(Stage((Call(1, 1),))), 20)
    result = bound(programs, machine(small_token_s=1.0))
    assert result.request_goodput == pytest.approx(1.0, rel=ROUNDING)
    assert result.token_goodput == pytest.approx(2.0, rel=ROUNDING)


def test_programs_that_earn_more_per_second_are_served_first() -> None:
    """In 10 s one long program, of 1 s and 1,010 tokens, and nine short ones of 20 tokens each."""
    long, short = (
        program(Stage((Call(*lengths),)), id=name)
        for name, lengths in (("long", (1000, 10)), ("short", (10, 10)))
    )
    cost = machine(small_base_s=0.0, decode_sequence_s=0.1, chunk_base_s=0.1)
    result = bound([*copies(long, 1), *copies(short, 200)], cost)
    assert result.token_goodput == pytest.approx((1010 + 9 * 20) / 10, rel=0.01)
    assert result.request_goodput == pytest.approx(1.0, rel=0.01)


def test_a_batch_has_no_more_sequences_than_slots() -> None:
    """1 s a step and 100 steps each: 2 of 6 programs at a time, in 100 s."""
    programs = copies(program(Stage((Call(1, 100),)), deadline_s=100.0), 6)
    result = bound(programs, machine(fixed_s=1.0), until_s=100.0, slots=2)
    assert result.request_goodput * 100 == pytest.approx(2.0, rel=0.02)


def test_a_batch_shares_the_base_cost_of_its_decodes() -> None:
    """4 prompts of 1 s each, and then 10 steps of 1 s for all of them."""
    programs = copies(program(Stage((Call(1, 11),)), deadline_s=14.0), 4)
    on = machine(chunk_base_s=1.0, decode_base_s=1.0)
    assert bound(programs, on, slots=4).request_goodput * 10 == pytest.approx(4.0, rel=ROUNDING)
    alone = bound(programs, on, slots=1).request_goodput * 10
    assert alone == pytest.approx(14 / 11, rel=ROUNDING)


def test_recomputing_a_context_may_cost_less_than_decoding() -> None:
    """A decode takes 1 s; recomputing 2 to 11 tokens at 0.1 s takes 6.6 s for all 10 tokens."""
    recomputed = program(Stage((Call(1, 11),)), deadline_s=6.7)
    on = machine(decode_sequence_s=1.0, small_token_s=0.1)
    assert bound([recomputed], on).request_goodput * 10 == pytest.approx(1.0, rel=ROUNDING)


@pytest.mark.parametrize("bin_s", [2.0, 10.0])
def test_chains_of_different_lengths_are_not_all_served_by_fractions(bin_s: float) -> None:
    """1 s a step, 0.1 s a token, 10 s: chains of 8 and 4 steps, and a prompt of 8 s.

    At best 8 steps serve both chains, with time for 0.1 of the prompt. If 4 steps sufficed for half
    of the longer chain and all of the shorter one, there would be time for 0.65 of the prompt:
    2.15 programs. One more program arrives after these 10 s.
    """
    lengths = ((1, 8), (1, 4), (80, 1))
    programs = [program(Stage((Call(*each),)), id=str(each)) for each in lengths]
    later = program(Stage((Call(1, 1),)), id="later", arrival_s=10.0)
    on = machine(fixed_s=1.0, small_token_s=0.1)
    result = bound([*programs, later], on, until_s=20.0, bin_s=bin_s)
    assert result.request_goodput * 20 == pytest.approx(3.1, rel=ROUNDING)


def test_a_step_has_at_most_step_tokens_tokens() -> None:
    """1 s a step of 100 tokens: ten prompts of 100 tokens in 10 s."""
    result = bound(
        copies(program(Stage((Call(100, 1),))), 50), machine(fixed_s=1.0), step_tokens=100
    )
    assert result.request_goodput == pytest.approx(1.0, rel=ROUNDING)


def test_the_contexts_of_a_batch_fit_the_kv_cache() -> None:
    """1 s a step and 100 steps each: 2 contexts of more than 1,000 tokens at a time."""
    programs = copies(program(Stage((Call(1000, 100),)), deadline_s=100.0), 6)
    result = bound(programs, machine(fixed_s=1.0, kv_tokens=2100), until_s=100.0)
    assert 2.0 <= result.request_goodput * 100 <= 2.1


def test_programs_far_apart_do_not_share_the_time_between_them() -> None:
    """Two bursts of 20 programs of 1 s; each has its own 10 s, and the time between is unused."""
    bursts = [
        *copies(program(Stage((Call(1, 1),)), id="early"), 20),
        *copies(program(Stage((Call(1, 1),)), id="late", arrival_s=50.0), 20),
    ]
    result = bound(bursts, machine(small_token_s=1.0), until_s=100.0)
    assert result.request_goodput * 100 == pytest.approx(20.0, rel=ROUNDING)


def test_a_stream_earns_the_tokens_that_can_be_in_time() -> None:
    """Token i is possible after i + 1 s and due after 3 + i / 2 s: tokens 0 to 4 are in time."""
    slow = stream(1, 20, ttft_s=3.0, tbt_s=0.5)
    result = bound([slow], machine(fixed_s=1.0))
    assert result.token_goodput * 10 == pytest.approx(5.0, rel=ROUNDING)
    assert result.request_goodput == 0


def test_a_stream_needs_nine_tenths_of_its_tokens_in_time() -> None:
    """Of ten tokens, 9 can be in time with a TTFT of 5 s, and 8 with 4.5 s."""
    on = machine(fixed_s=1.0)
    met, missed = (stream(1, 10, ttft_s=ttft_s, tbt_s=0.5) for ttft_s in (5.0, 4.5))
    assert bound([met], on).request_goodput * 10 == pytest.approx(1.0, rel=ROUNDING)
    assert bound([missed], on).request_goodput == 0


def test_with_prefix_caching_a_common_prefix_is_computed_once() -> None:
    """1 s a token: a common prefix of 9 tokens, and 1 further prompt token of each of 3 calls."""
    common = program(Stage((Call(10, 1, 9),) * 3), kind=SloKind.COMPOUND, deadline_s=12.0)
    on = machine(small_token_s=1.0)
    assert bound([common], on, prefix_caching=True).request_goodput > 0
    without_caching = bound([common], on).request_goodput * 10
    assert without_caching == pytest.approx(12 / 30, rel=ROUNDING)


@pytest.mark.parametrize(("groups", "num_tokens"), [((1, 1, 1, 1), 13), ((1, 2, 1, 2), 22)])
def test_only_calls_of_one_group_share_a_prefix(groups: tuple[int, ...], num_tokens: int) -> None:
    """1 s a token: 10 of each group's prompt, and the last of them for each further call."""
    stage = Stage(tuple(Call(10, 1, 10, group) for group in groups))
    on = machine(small_token_s=1.0)
    for stages in ((stage,), (Stage(stage.calls[:2]), Stage(stage.calls[2:]))):
        shared = program(*stages, kind=SloKind.COMPOUND, deadline_s=13.0)
        served = bound([shared], on, until_s=13.0, prefix_caching=True).request_goodput * 13
        assert served == pytest.approx(13 / num_tokens, rel=ROUNDING)


# Which programs count


def test_programs_that_arrive_outside_the_window_do_not_count() -> None:
    base = program(Stage((Call(10, 10),)))
    programs = [
        replace(base, id=f"{arrival_s}", arrival_s=arrival_s) for arrival_s in (4.0, 5.0, 9.0)
    ]
    result = upper_bound(programs, A100, window_s=(5.0, 9.0))
    assert result.request_goodput * 4 == pytest.approx(1.0, rel=ROUNDING)
    assert set(result.requests.programs) == {"5.0"}


def test_work_after_the_observation_earns_nothing() -> None:
    five_steps = program(Stage((Call(1, 5),)))
    on = machine(fixed_s=1.0)
    assert bound([five_steps], on, observed_until_s=4.9).token_goodput == 0
    assert bound([five_steps], on, observed_until_s=5.0).token_goodput > 0


def test_best_effort_programs_earn_nothing() -> None:
    free = program(Stage((Call(1, 5),)), kind=SloKind.BEST_EFFORT, deadline_s=None)
    assert bound([free], A100).tokens.served == {"best_effort": 0.0}
    assert (bound([], A100).token_goodput, bound([free], A100).request_goodput) == (0.0, 0.0)


# Laws


def coefficients(largest: float) -> st.SearchStrategy[float]:
    return st.just(0.0) | st.floats(0, largest)


step_costs = st.builds(
    machine,
    kv_tokens=st.sampled_from([60, 200, 10**6]),
    fixed_s=st.floats(0.01, 0.2),
    small_base_s=coefficients(0.2),
    small_token_s=coefficients(0.02),
    large_base_s=coefficients(0.2),
    large_token_s=coefficients(0.05),
    decode_base_s=coefficients(0.1),
    decode_sequence_s=coefficients(0.05),
    decode_context_s=coefficients(0.005),
    chunk_base_s=coefficients(0.1),
    chunk_pair_s=coefficients(0.001),
)
calls = st.tuples(st.integers(1, 40), st.integers(1, 12)).map(lambda tokens: Call(*tokens))
stages = st.builds(
    Stage,
    st.lists(calls, min_size=1, max_size=3).map(tuple),
    st.just(0.0) | st.floats(0, 1),
)


@st.composite
def workloads(draw: st.DrawFn) -> list[Program]:
    programs = []
    for number in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from((SloKind.LATENCY, SloKind.DEADLINE, SloKind.COMPOUND)))
        drawn_stages = draw(st.lists(stages, min_size=1, max_size=3).map(tuple))
        if kind is not SloKind.COMPOUND:
            drawn_stages = (Stage(drawn_stages[0].calls[:1], drawn_stages[0].tool_s),)
        then_tbt_s = draw(st.none() | st.floats(0.01, 0.5))
        last = drawn_stages[-1].calls[0]
        least = 0 if kind is SloKind.COMPOUND else 1
        if then_tbt_s is not None and last.output_tokens > least:
            then_from = draw(st.integers(least, last.output_tokens - 1))
            part = Stage((last._replace(then_from=then_from),), drawn_stages[-1].tool_s)
            drawn_stages = (*drawn_stages[:-1], part)
        else:
            then_tbt_s = None
        programs.append(
            program(
                *drawn_stages,
                id=str(number),
                then_tbt_s=then_tbt_s,
                kind=kind,
                arrival_s=draw(st.integers(0, 10)) / 2,
                deadline_s=None if kind is SloKind.LATENCY else draw(st.floats(0.5, 12)),
                ttft_s=draw(st.floats(0.1, 3)),
                tbt_s=draw(st.floats(0.01, 0.5)),
            )
        )
    return programs


def run_schedule(programs: list[Program], on: Machine, engine: RandomEngine) -> Replay:
    return replay(programs, engine, VirtualTime(), on.step_cost, until_s=30.0)


def assert_not_exceeded(result: Bound, report: Report) -> None:
    assert report.token_goodput <= result.token_goodput * (1 + ROUNDING)
    assert report.request_goodput <= result.request_goodput * (1 + ROUNDING)


@settings(deadline=None, max_examples=examples(100))
@given(
    programs=workloads(),
    on=step_costs,
    seed=st.integers(0, 2**16),
    order=st.sampled_from(("any", "first", "short", "urgent")),
    disruption=st.sampled_from((0.0, 0.1, 0.5)),
    slots=st.integers(1, 8),
    step_tokens=st.sampled_from((8, 30, 200)),
    bin_s=st.sampled_from((0.5, 2.0, 5.0)),
    observed_until_s=st.sampled_from((4.0, math.inf)),
)
def test_no_schedule_exceeds_the_bound(
    programs: list[Program],
    on: Machine,
    seed: int,
    order: str,
    disruption: float,
    slots: int,
    step_tokens: int,
    bin_s: float,
    observed_until_s: float,
) -> None:
    engine = RandomEngine(seed, order, disruption, slots, step_tokens, on.kv_tokens)
    run = run_schedule(programs, on, engine)
    measured = {"window_s": (1.0, 5.0), "observed_until_s": observed_until_s}
    result = upper_bound(
        programs, on, slots=slots, step_tokens=step_tokens, bin_s=bin_s, **measured
    )
    assert_not_exceeded(result, summarise(run.programs, **measured))


@settings(deadline=None, max_examples=examples(30))
@given(programs=workloads(), on=step_costs)
def test_looser_limits_never_lower_the_bound(programs: list[Program], on: Machine) -> None:
    limits = {"slots": 2, "step_tokens": 16, "observed_until_s": 6.0}
    tight = bound(programs, on, **limits)
    for loosened in ({"slots": 4}, {"step_tokens": 32}, {"observed_until_s": 8.0}):
        loose = bound(programs, on, **(limits | loosened))
        assert loose.token_goodput >= tight.token_goodput * (1 - ROUNDING)
        assert loose.request_goodput >= tight.request_goodput * (1 - ROUNDING)


@pytest.fixture(scope="module")
def busy() -> list[Program]:
    """30 s of mixed work at more than twice the machine's capacity."""
    return list(generate("mixed", rate_per_s=6.0, window_s=30.0, seed=2))


@pytest.mark.slow
def test_each_round_of_cuts_tightens_the_bound_until_no_cut_is_violated(
    busy: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    goodputs = []
    for num_rounds in (0, 1, 2, 40, 60):
        monkeypatch.setattr("serving.sim.bound.bound._CUT_ROUNDS", num_rounds)
        goodputs.append(bound(busy, SLOW, until_s=30.0).token_goodput)
    assert goodputs[0] > goodputs[1] > goodputs[2] > goodputs[3]
    assert goodputs[4] == pytest.approx(goodputs[3], rel=ROUNDING)


@pytest.mark.slow
def test_if_the_solver_fails_with_cuts_the_bound_is_the_one_without_cuts(
    busy: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    solve = LinearProgram.maximise

    def solve_once(linear_program: LinearProgram) -> Solution:
        if linear_program in solved:
            raise SimError("the solver fails")
        solved.append(linear_program)
        return solve(linear_program)

    solved: list[LinearProgram] = []
    with monkeypatch.context() as patched:
        patched.setattr("serving.sim.bound.bound._CUT_ROUNDS", 0)
        loose = bound(busy, SLOW, until_s=30.0)
    assert bound(busy, SLOW, until_s=30.0).token_goodput < loose.token_goodput
    monkeypatch.setattr(LinearProgram, "maximise", solve_once)
    assert bound(busy, SLOW, until_s=30.0) == loose


def test_on_a_machine_without_limits_every_program_meets_its_slo(busy: list[Program]) -> None:
    result = bound(busy, machine(fixed_s=1e-9), until_s=30.0)
    assert result.request_goodput == pytest.approx(len(busy) / 30, rel=ROUNDING)
    earned = sum(
        each.output_tokens if each.kind is SloKind.LATENCY else each.total_tokens for each in busy
    )
    assert result.token_goodput == pytest.approx(earned / 30, rel=ROUNDING)


def test_narrower_bins_give_a_slightly_tighter_bound(busy: list[Program]) -> None:
    wide, narrow = (bound(busy, A100, until_s=30.0, bin_s=bin_s) for bin_s in (10.0, 5.0))
    for wide_goodput, narrow_goodput in zip(
        (wide.token_goodput, wide.request_goodput),
        (narrow.token_goodput, narrow.request_goodput),
        strict=True,
    ):
        assert narrow_goodput <= wide_goodput * (1 + ROUNDING)
        assert narrow_goodput >= wide_goodput * 0.95


def test_the_same_programs_have_the_same_bound(busy: list[Program]) -> None:
    first, second = (bound(busy[:60], A100, until_s=30.0) for _ in range(2))
    assert first == second
    assert first.token_goodput > 0
