"""Workloads: seeded to the byte, in the tables' proportions, with the papers' promises."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.sim.programs.programs import Program
from serving.sim.workloads.workloads import WORKLOADS, generate
from serving.slo import SloKind
from serving.workload_errors import InvalidProgram, InvalidWorkload

names = st.sampled_from(sorted(WORKLOADS))
some = settings(deadline=None, max_examples=30)

COMPOUND_MEANS = {"tree_of_thoughts": (1300, 4458), "deep_research": (12223, 3541)}


@some
@given(
    names, st.integers(0, 2**40), st.sampled_from(["poisson", "gamma", "burst"]), st.floats(0.1, 3)
)
def test_the_same_seed_gives_the_same_programs_in_order_of_arrival(
    name: str, seed: int, arrivals: str, slo_scale: float
) -> None:
    one, other = (
        generate(
            name,
            rate_per_s=2.0,
            window_s=10.0,
            seed=seed,
            arrivals=arrivals,
            slo_scale=slo_scale,
        )
        for _ in range(2)
    )
    assert repr(one) == repr(other)
    assert all(0 <= each.arrival_s < 10.0 for each in one)
    assert list(one) == sorted(one, key=lambda each: (each.arrival_s, each.id))
    assert len({each.id for each in one}) == len(one)


@some
@given(names, st.integers(0, 2**40))
def test_load_and_scale_change_when_programs_come_and_their_promises_but_not_their_work(
    name: str, seed: int
) -> None:
    slow = generate(name, rate_per_s=1.0, window_s=10.0, seed=seed)
    fast = generate(name, rate_per_s=4.0, window_s=10.0, seed=seed, slo_scale=0.5, arrivals="gamma")
    for one, other in zip(slow, fast, strict=False):
        assert one.stages == other.stages
        assert one.kind is other.kind
        assert other.tbt_s == pytest.approx(one.tbt_s / 2)
        assert (other.deadline_s or 0) == pytest.approx((one.deadline_s or 0) / 2)


def sample(name: str) -> tuple[Program, ...]:
    return generate(name, rate_per_s=10.0, window_s=600.0, seed=11)


def test_mixed_is_a_third_of_each_kind_with_the_promises_of_the_thesis() -> None:
    programs = sample("mixed")
    counts = Counter(each.kind for each in programs)
    assert set(counts) == {SloKind.LATENCY, SloKind.DEADLINE, SloKind.COMPOUND}
    for count in counts.values():
        assert count / len(programs) == pytest.approx(1 / 3, abs=0.03)
    for each in programs:
        assert (each.ttft_s, each.tbt_s) == (2.0, 0.1)
        if each.kind is SloKind.DEADLINE:
            assert each.deadline_s == 20.0
        if each.kind is SloKind.COMPOUND:
            assert each.deadline_s == 20.0 * len(each.stages)


@pytest.mark.parametrize("name", ["latency", "deadline", "compound"])
def test_a_workload_named_for_a_kind_has_no_other(name: str) -> None:
    assert {each.kind.value for each in sample(name)} == {name}


@pytest.mark.parametrize("application", sorted(COMPOUND_MEANS))
def test_compound_programs_ask_in_total_what_the_table_says(application: str) -> None:
    programs = [each for each in sample("compound") if each.application == application]
    for asked, mean in zip(
        (
            [each.prompt_tokens for each in programs],
            [each.output_tokens for each in programs],
        ),
        COMPOUND_MEANS[application],
        strict=True,
    ):
        error = np.std(asked) / np.sqrt(len(asked))
        assert np.mean(asked) == pytest.approx(mean, abs=4 * error + 0.01 * mean)


def test_compound_shapes_are_those_that_are_stated() -> None:
    for each in sample("agentic"):
        widths = [len(stage.calls) for stage in each.stages]
        if each.application == "tree_of_thoughts":
            assert widths == [3, 3, 3, 3, 1]
        elif each.application == "deep_research":
            assert len(widths) in (4, 6)
            assert all(width == 1 for width in (widths[0], *widths[2::2], widths[-1]))
            assert all(1 <= width <= 3 for width in widths)
        else:
            assert set(widths) == {1}
            prompts = [stage.calls[0].prompt_tokens for stage in each.stages]
            assert prompts == sorted(prompts)


def test_a_tool_loop_has_as_many_turns_as_the_table_says() -> None:
    turns = [len(each.stages) for each in sample("tools")]
    assert np.mean(turns) == pytest.approx(2.7, abs=0.1)
    assert np.std(turns) == pytest.approx(1.1, abs=0.1)


@pytest.mark.parametrize("name", ["chat", "long_answers"])
def test_tempos_mix_is_3_to_1_to_1(name: str) -> None:
    programs = sample(name)
    counts = Counter(each.kind for each in programs)
    assert counts[SloKind.LATENCY] / len(programs) == pytest.approx(0.6, abs=0.03)
    assert counts[SloKind.COMPOUND] / len(programs) == pytest.approx(0.2, abs=0.03)


def test_sharegpt_has_few_paying_users_and_no_request_beyond_the_cap() -> None:
    programs = sample("sharegpt")
    paying = [each for each in programs if each.user == "paying"]
    assert len(paying) / len(programs) == pytest.approx(0.05, abs=0.01)
    assert {each.tbt_s for each in paying} == {0.1}
    assert {each.tbt_s for each in programs if each.user == "free"} == {0.5}
    assert max(each.total_tokens for each in programs) <= 8192


def test_a_slowdown_promises_longer_prompts_more_time() -> None:
    programs = sorted(sample("chatbot"), key=lambda each: each.prompt_tokens)
    promised = [each.ttft_s for each in programs]
    assert promised == sorted(promised)
    assert promised[0] > 0.05


def test_reasoning_thinks_and_responds_in_one_answer() -> None:
    answers = [each.output_tokens for each in sample("reasoning")]
    assert np.mean(answers) == pytest.approx(4693 + 803, rel=0.02)


def test_given_times_are_kept() -> None:
    programs = generate(
        "mixed", rate_per_s=1.0, window_s=5.0, seed=0, arrivals=[4.0, 1.0, 1.0, 7.0]
    )
    assert [each.arrival_s for each in programs] == [1.0, 1.0, 4.0]
    with pytest.raises(InvalidProgram, match="arrival_s"):
        generate("mixed", rate_per_s=1.0, window_s=5.0, seed=0, arrivals=[-1.0])


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "nothing"},
        {"arrivals": "never"},
        {"rate_per_s": 0.0},
        {"window_s": float("inf")},
        {"seed": -1},
        {"slo_scale": 0.0},
        {"slo_scale": float("nan")},
    ],
)
def test_a_setting_out_of_range_is_named(changes: dict[str, object]) -> None:
    given_: dict[str, object] = {"name": "mixed", "rate_per_s": 1.0, "window_s": 1.0, "seed": 0}
    with pytest.raises(InvalidWorkload):
        generate(**(given_ | changes))  # type: ignore[arg-type]


def test_every_workload_says_what_is_the_papers_and_what_is_assumed() -> None:
    for workload in WORKLOADS.values():
        assert "table" in workload.source
        assert "Assumed" in workload.source
