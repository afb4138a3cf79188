"""Workloads: reproducible, with the proportions, lengths and SLOs of the papers' tables."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.sim.programs.programs import Program
from serving.sim.workloads.workloads import WORKLOADS, generate
from serving.slo import SloKind
from serving.workload_errors import InvalidProgram, InvalidWorkload
from tests.strategies import examples

names = st.sampled_from(sorted(WORKLOADS))
few_examples = settings(deadline=None, max_examples=examples(30))

COMPOUND_MEANS = {"tree_of_thoughts": (1300, 4458), "deep_research": (12223, 3541)}


@few_examples
@given(
    names,
    st.integers(0, 2**40),
    st.sampled_from(["poisson", "gamma", "burst", "day"]),
    st.floats(0.1, 3),
)
def test_the_same_seed_gives_the_same_programs_in_order_of_arrival(
    name: str, seed: int, arrivals: str, slo_scale: float
) -> None:
    first, second = (
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
    assert repr(first) == repr(second)
    assert all(0 <= each.arrival_s < 10.0 for each in first)
    assert list(first) == sorted(first, key=lambda each: (each.arrival_s, each.id))
    assert len({each.id for each in first}) == len(first)


@few_examples
@given(names, st.integers(0, 2**40))
def test_rate_and_scale_change_arrivals_and_slos_but_not_the_calls(name: str, seed: int) -> None:
    slow = generate(name, rate_per_s=1.0, window_s=10.0, seed=seed)
    fast = generate(name, rate_per_s=4.0, window_s=10.0, seed=seed, slo_scale=0.5, arrivals="gamma")
    for base, scaled in zip(slow, fast, strict=False):
        assert base.stages == scaled.stages
        assert base.kind is scaled.kind
        assert scaled.tbt_s == pytest.approx(base.tbt_s / 2)
        assert (scaled.deadline_s or 0) == pytest.approx((base.deadline_s or 0) / 2)


def sample(name: str) -> tuple[Program, ...]:
    return generate(name, rate_per_s=10.0, window_s=600.0, seed=11)


def test_mixed_is_a_third_of_each_kind_with_the_slos_of_the_thesis() -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["latency", "deadline", "compound"])
def test_a_workload_named_after_a_kind_has_no_other_kind(name: str) -> None:
    assert {each.kind.value for each in sample(name)} == {name}


@pytest.mark.slow
@pytest.mark.parametrize("application", sorted(COMPOUND_MEANS))
def test_compound_programs_have_the_tables_mean_tokens_in_total(application: str) -> None:
    programs = [each for each in sample("compound") if each.application == application]
    for tokens, mean in zip(
        (
            [each.prompt_tokens for each in programs],
            [each.output_tokens for each in programs],
        ),
        COMPOUND_MEANS[application],
        strict=True,
    ):
        error = np.std(tokens) / np.sqrt(len(tokens))
        assert np.mean(tokens) == pytest.approx(mean, abs=4 * error + 0.01 * mean)


def test_compound_programs_have_the_documented_shapes() -> None:
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


def test_a_tool_loop_has_the_tables_number_of_turns() -> None:
    turns = [len(each.stages) for each in sample("tools")]
    assert np.mean(turns) == pytest.approx(2.7, abs=0.1)
    assert np.std(turns) == pytest.approx(1.1, abs=0.1)


@pytest.mark.parametrize("name", ["chat", "long_answers"])
def test_tempos_mix_is_3_to_1_to_1(name: str) -> None:
    programs = sample(name)
    counts = Counter(each.kind for each in programs)
    assert counts[SloKind.LATENCY] / len(programs) == pytest.approx(0.6, abs=0.03)
    assert counts[SloKind.COMPOUND] / len(programs) == pytest.approx(0.2, abs=0.03)


def test_sharegpt_has_few_paying_users_and_no_request_above_8192_tokens() -> None:
    programs = sample("sharegpt")
    paying = [each for each in programs if each.user == "paying"]
    assert len(paying) / len(programs) == pytest.approx(0.05, abs=0.01)
    assert {each.tbt_s for each in paying} == {0.1}
    assert {each.tbt_s for each in programs if each.user == "free"} == {0.5}
    assert max(each.total_tokens for each in programs) <= 8192


def test_with_a_ttft_slowdown_longer_prompts_have_a_later_ttft() -> None:
    programs = sorted(sample("chatbot"), key=lambda each: each.prompt_tokens)
    ttfts = [each.ttft_s for each in programs]
    assert ttfts == sorted(ttfts)
    assert ttfts[0] > 0.05


def test_a_reasoning_answer_contains_the_reasoning_and_the_response() -> None:
    answers = [each.output_tokens for each in sample("reasoning")]
    assert np.mean(answers) == pytest.approx(4693 + 803, rel=0.02)


def test_given_arrival_times_are_kept() -> None:
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
def test_an_argument_out_of_range_raises_a_named_error(changes: dict[str, object]) -> None:
    arguments: dict[str, object] = {"name": "mixed", "rate_per_s": 1.0, "window_s": 1.0, "seed": 0}
    with pytest.raises(InvalidWorkload):
        generate(**(arguments | changes))  # type: ignore[arg-type]


def test_every_workload_names_its_source_and_its_assumptions() -> None:
    for workload in WORKLOADS.values():
        assert "Assumed" in workload.source
        if not workload.source.startswith("Assumed throughout"):
            assert any(word in workload.source for word in ("table", "section", "(Xiang et al."))
