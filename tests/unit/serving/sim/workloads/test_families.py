"""The further kinds of work: their statistics are those that they state, and an idle machine does
nearly all of it in time."""

from __future__ import annotations

import re
import statistics
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from serving.sim.programs.programs import Program
from serving.sim.programs.shapes import LONG_LOOP_CALLS
from serving.sim.workloads.arrivals import ARRIVALS, DAY_CYCLES, DAY_FACTOR, day
from serving.sim.workloads.families import (
    FAMILIES,
    MAX_DOCUMENT_TOKENS,
    MIN_DOCUMENT_TOKENS,
)
from serving.sim.workloads.load_generator import Source, generate_load
from serving.sim.workloads.published import PUBLISHED
from serving.sim.workloads.workloads import WORKLOADS, generate
from serving.slo import SloKind
from serving.step_cost import MACHINES, Composition
from serving.workload_errors import InvalidWorkload

COST = MACHINES["a100-llama3-8b"].step_cost
STEP_TOKENS = 2048

DIGESTS = {
    "mixed": 0x2840C3C0,
    "latency": 0xD8C2C2F9,
    "deadline": 0x7693517A,
    "compound": 0x4F1A5BD1,
    "agentic": 0xB6BB92EE,
    "chat": 0xDD2810DE,
    "long_answers": 0x157C97B0,
    "chatbot": 0x67BB8562,
    "coder": 0x1679AABC,
    "summarizer": 0x3971B689,
    "reasoning": 0x16F3F636,
    "tools": 0xF9A32C45,
    "sharegpt": 0xED80A5CF,
}
"""Of the programs that published results are about."""


def sample(name: str, num_programs: int = 2000) -> tuple[Program, ...]:
    times = [float(index) for index in range(num_programs)]
    return generate(name, rate_per_s=1.0, window_s=float("inf"), seed=3, arrivals=times)


def first_calls(programs: Sequence[Program]) -> tuple[list[int], list[int]]:
    calls = [program.stages[0].calls[0] for program in programs]
    return [call.prompt_tokens for call in calls], [call.output_tokens for call in calls]


def isolated_s(program: Program, *, prefix_caching: bool = False) -> tuple[float, float]:
    """Seconds to the first token and to the end, alone on the default machine.

    A stage's prompts are prefilled in full chunks one after another; then all its calls decode.
    """
    now_s, first_s, cached = 0.0, None, 0
    for stage in program.stages:
        now_s += stage.tool_s
        for call in stage.calls:
            done = min(cached, call.shared_prefix_tokens, call.prompt_tokens - 1)
            while done < call.prompt_tokens:
                chunk = min(call.prompt_tokens - done, STEP_TOKENS)
                now_s += COST.seconds(Composition(chunk, 0, 0, ((chunk, done),)))
                done += chunk
            first_s = now_s if first_s is None else first_s
        for token in range(1, max(call.output_tokens for call in stage.calls)):
            contexts = [call.prompt_tokens + token for call in stage.calls]
            now_s += COST.seconds(Composition(len(contexts), len(contexts), sum(contexts), ()))
        if prefix_caching:
            cached = max(call.prompt_tokens for call in stage.calls)
    assert first_s is not None
    return first_s, now_s


def is_feasible(program: Program, *, prefix_caching: bool) -> bool:
    first_s, end_s = isolated_s(program, prefix_caching=prefix_caching)
    if program.kind is SloKind.BEST_EFFORT:
        return True
    if program.deadline_s is not None:
        last = program.stages[-1].calls[-1]
        then_tokens = last.output_tokens - last.whole_tokens
        return end_s <= program.deadline_s + then_tokens * (program.then_tbt_s or 0.0)
    num_later = program.output_tokens - 1
    return first_s <= program.ttft_s and end_s - first_s <= num_later * program.tbt_s


@pytest.mark.parametrize("name", DIGESTS)
def test_the_programs_of_earlier_results_are_unchanged(name: str) -> None:
    programs = generate(name, rate_per_s=3.0, window_s=20.0, seed=5, slo_scale=0.5)
    # What no policy sees, and what only other workloads have, is left out.
    as_before = re.sub(r", step='\w*'|, then_\w+=None", "", repr(programs))
    assert zlib.crc32(as_before.encode()) == DIGESTS[name]


def test_every_workload_is_of_one_of_the_two_tables() -> None:
    assert set(PUBLISHED) == set(DIGESTS)
    assert not set(PUBLISHED) & set(FAMILIES)
    assert dict(WORKLOADS) == {**PUBLISHED, **FAMILIES}


@pytest.mark.parametrize("name", FAMILIES)
def test_nearly_all_programs_are_in_time_alone_on_the_default_machine(name: str) -> None:
    programs = sample(name, 150)
    kept = sum(is_feasible(each, prefix_caching=name == "long_agents") for each in programs)
    assert kept >= 0.97 * len(programs)


@pytest.mark.parametrize(
    ("name", "application", "prompt", "output"),
    [
        ("code_completion", "code_completion", 1500, 13),
        ("documents", "documents", 12_000, 100),
        ("tiny", "label", 100, 3),
        ("heavy_tails", "heavy", 500, 100),
        ("near_and_far", "near", 200, 10),
        ("near_and_far", "far", 403, 1000),
    ],
)
def test_medians_are_those_of_the_source(
    name: str, application: str, prompt: int, output: int
) -> None:
    programs = [each for each in sample(name, 4000) if each.application == application]
    prompts, outputs = first_calls(programs)
    assert statistics.median(prompts) == pytest.approx(prompt, rel=0.1)
    assert statistics.median(outputs) == pytest.approx(output, rel=0.1)


def test_means_are_those_of_the_source() -> None:
    for name, prompt, output in (("code_completion", 2048, 28), ("documents", 15_325, 149)):
        prompts, outputs = first_calls(sample(name, 4000))
        assert statistics.fmean(prompts) == pytest.approx(prompt, rel=0.1)
        assert statistics.fmean(outputs) == pytest.approx(output, rel=0.1)


def test_the_lengths_of_two_tiers_are_those_of_the_table() -> None:
    programs = sample("two_tiers")
    prompts, outputs = first_calls(programs)
    assert (np.mean(prompts), np.std(prompts)) == pytest.approx((763, 424), rel=0.1)
    assert (np.mean(outputs), np.std(outputs)) == pytest.approx((266, 160), rel=0.1)
    shares = Counter(each.tbt_s for each in programs)
    assert set(shares) == {0.03, 0.15}
    assert shares[0.03] / len(programs) == pytest.approx(0.5, abs=0.04)


def test_code_is_completed_with_two_ttfts_and_few_tokens() -> None:
    programs = sample("code_completion")
    assert {each.ttft_s for each in programs} == {1.0, 2.0}
    assert max(each.prompt_tokens for each in programs) <= 8192
    assert max(each.output_tokens for each in programs) <= 512


def test_documents_are_long_and_their_ttft_grows_with_them() -> None:
    programs = sample("documents")
    lengths = [each.prompt_tokens for each in programs]
    assert (min(lengths), max(lengths)) == (MIN_DOCUMENT_TOKENS, MAX_DOCUMENT_TOKENS)
    streams = [each for each in programs if each.kind is SloKind.LATENCY]
    streams.sort(key=lambda each: each.prompt_tokens)
    ttfts = [each.ttft_s for each in streams]
    assert ttfts == sorted(ttfts)
    assert {each.deadline_s for each in programs if each.kind is SloKind.DEADLINE} == {40.0}


def test_long_agents_are_chains_over_a_growing_context_that_is_shared() -> None:
    programs = sample("long_agents", 600)
    num_calls = [each.num_calls for each in programs]
    assert (min(num_calls), max(num_calls)) == LONG_LOOP_CALLS
    over_86 = sum(count > 86 for count in num_calls) / len(num_calls)
    assert over_86 == pytest.approx(0.1, abs=0.04)  # P99 among P90
    for program in programs[:100]:
        calls = [stage.calls[0] for stage in program.stages]
        assert all(len(stage.calls) == 1 for stage in program.stages)
        assert program.deadline_s == 6.0 * len(calls)
        for call, later in pairwise(calls):
            assert call.shared_prefix_tokens == call.prompt_tokens <= later.prompt_tokens
    answers = [call.call.output_tokens for each in programs for call in each.all_calls()]
    assert statistics.median(answers) == pytest.approx(46, rel=0.1)
    new = [
        later.calls[0].prompt_tokens - stage.calls[0].prompt_tokens - stage.calls[0].output_tokens
        for each in programs
        for stage, later in pairwise(each.stages)
        if later.calls[0].prompt_tokens < 60_000
    ]
    assert statistics.median(new) == pytest.approx(222, rel=0.1)
    assert max(new) <= 2048


def test_heavy_tails_have_a_mean_far_above_the_median_in_each_kind() -> None:
    programs = sample("heavy_tails")
    counts = Counter(each.kind for each in programs)
    assert set(counts) == {SloKind.LATENCY, SloKind.DEADLINE, SloKind.COMPOUND}
    for kind, count in counts.items():
        assert count / len(programs) == pytest.approx(1 / 3, abs=0.04)
        prompts, outputs = first_calls([each for each in programs if each.kind is kind])
        assert statistics.fmean(prompts) > 3 * statistics.median(prompts)
        assert statistics.fmean(outputs) > 2 * statistics.median(outputs)


def test_near_and_far_deadlines_differ_by_a_factor_of_a_hundred() -> None:
    programs = sample("near_and_far")
    shares = Counter(each.deadline_s for each in programs)
    assert set(shares) == {0.5, 50.0}
    assert shares[0.5] / len(programs) == pytest.approx(0.5, abs=0.04)


def test_half_of_half_promised_has_no_slo_and_the_same_shapes() -> None:
    programs = sample("half_promised")
    without = [each for each in programs if each.kind is SloKind.BEST_EFFORT]
    assert len(without) / len(programs) == pytest.approx(0.5, abs=0.04)
    assert all(each.deadline_s is None for each in without)

    def shapes(of: Callable[[Program], bool]) -> Counter[str]:
        return Counter(each.application for each in programs if of(each))

    promised = shapes(lambda each: each.kind is not SloKind.BEST_EFFORT)
    for application, count in shapes(lambda each: each.kind is SloKind.BEST_EFFORT).items():
        assert count == pytest.approx(promised[application], rel=0.2)


def test_a_day_swings_between_calm_and_rush_and_keeps_its_mean_rate() -> None:
    times = day(np.random.default_rng(1), rate_per_s=20.0, window_s=10_000.0)
    assert len(times) == pytest.approx(200_000, rel=0.01)
    counts, _ = np.histogram(times, bins=40 * DAY_CYCLES, range=(0.0, 10_000.0))
    cycles = counts.reshape(DAY_CYCLES, 40)
    for cycle in cycles:
        assert cycle[18:22].mean() / cycle[[0, 1, 38, 39]].mean() == pytest.approx(
            DAY_FACTOR, rel=0.1
        )
        rising = cycle[:20]
        assert (np.diff(rising) > -4 * np.sqrt(rising[1:])).all()  # but for chance


@pytest.mark.parametrize(
    ("changes", "message"), [({"factor": 0.5}, "factor"), ({"cycles": 0}, "cycles")]
)
def test_a_day_out_of_range_is_rejected(changes: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidWorkload, match=message):
        day(np.random.default_rng(0), rate_per_s=1.0, window_s=1.0, **changes)  # type: ignore[arg-type]


def test_a_workload_arrives_by_its_own_process_unless_another_is_asked_for() -> None:
    for name, process in (("day", "day"), ("code_completion", "gamma"), ("tiny", "poisson")):
        source = Source.generator(name)
        assert source.arrivals == process
        own, same, other = (
            generate_load(
                source, rate_per_s=5.0, seed=1, warmup_s=5.0, window_s=20.0, arrivals=arrivals
            )
            for arrivals in (None, process, "burst")
        )
        assert own == same != other
    assert {workload.arrivals for workload in WORKLOADS.values()} <= set(ARRIVALS)
