"""StepCost: it equals the published formula, and a fit recovers known coefficients."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.step_cost import (
    MACHINES,
    STEP_COSTS,
    Chunk,
    Composition,
    StepCost,
    StepSample,
    fit,
)
from serving.workload_errors import StepFitFailed
from tests.places import DATA
from tests.strategies import law

A100 = STEP_COSTS["a100-llama3-8b"]
FIT = DATA / "perf" / "a100_llama3_8b_fit.json"
FORMULA = (
    "step = max(9.71+0.0317*n, 6.33+0.0670*n) + [decode>0]*(0.61+7.8e-5*sum_ctx_decode)"
    " + sum_over_prefill_chunks(0.51+3.3e-6*c*(kv+c/2)) + lm_head(0.52) + overhead(~1.5)"
)

tokens = st.integers(0, 100_000)
chunks = st.lists(st.tuples(st.integers(1, 8192), tokens), max_size=4)


@pytest.mark.parametrize(
    ("decodes", "contexts", "prefill_chunks", "expected_ms"),
    [
        (1, 1000, (), 9.71 + 0.0317 + 0.61 + 0.078 + 2.02),
        (32, 64_000, (), 9.71 + 32 * 0.0317 + 0.61 + 4.992 + 2.02),
        (0, 0, ((2048, 0),), 6.33 + 137.216 + 0.51 + 6.9206016 + 2.02),
        (
            48,
            96_000,
            ((400, 1000), (64, 0)),
            6.33 + 512 * 0.067 + 0.61 + 7.488 + (0.51 + 1.584) + (0.51 + 0.0067584) + 2.02,
        ),
    ],
)
def test_a_step_of_the_a100_takes_the_time_of_its_formula(
    decodes: int, contexts: int, prefill_chunks: tuple[Chunk, ...], expected_ms: float
) -> None:
    seconds = A100.seconds(
        Composition(
            decodes + sum(chunk for chunk, _ in prefill_chunks), decodes, contexts, prefill_chunks
        )
    )
    assert seconds == pytest.approx(expected_ms / 1000, rel=1e-12)


def test_the_formula_of_these_tests_is_the_one_of_the_shared_fit() -> None:
    if not FIT.exists():
        pytest.skip("no ../shared/data/perf beside this checkout")
    shared = json.loads(FIT.read_text())
    assert shared["formula"] == FORMULA
    assert shared["kv_blocks_16tok_A100_80GB_BLIS"] == MACHINES["a100-llama3-8b"].kv_blocks


@law
@given(st.integers(0, 512), tokens, chunks, st.integers(1, 8192))
def test_more_work_never_takes_less_time(
    decodes: int, contexts: int, prefill_chunks: list[Chunk], more: int
) -> None:
    new_tokens = decodes + sum(chunk for chunk, _ in prefill_chunks)

    def seconds(extra_chunks: list[Chunk], extra_decodes: int) -> float:
        return A100.seconds(
            Composition(
                new_tokens + extra_decodes + sum(chunk for chunk, _ in extra_chunks),
                decodes + extra_decodes,
                contexts + extra_decodes,
                (*prefill_chunks, *extra_chunks),
            )
        )

    before = seconds([], 0)
    assert before > 0
    assert seconds([(more, 0)], 0) > before
    assert seconds([], more) > before


def measured(cost: StepCost, *, count: int, noise: float = 0.0) -> list[StepSample]:
    rng = np.random.default_rng(7)
    samples = []
    for _ in range(count):
        decodes = int(rng.integers(0, 64))
        contexts = decodes * int(rng.integers(10, 4000))
        sizes = rng.integers(1, 512, size=int(rng.integers(0, 4))).tolist()
        prefill_chunks = tuple((size, int(rng.integers(0, 2000))) for size in sizes)
        composition = Composition(decodes + sum(sizes), decodes, contexts, prefill_chunks)
        seconds = cost.seconds(composition) * (1 + noise * rng.standard_normal())
        samples.append(StepSample(composition, seconds))
    return samples


LINEAR = StepCost(
    name="linear",
    source="made up",
    uncertainty="none",
    small_base_s=0.010,
    small_token_s=5e-5,
    decode_sequence_s=2e-4,
    decode_context_s=8e-8,
    chunk_base_s=5e-4,
    chunk_pair_s=2e-8,
)
COEFFICIENTS = (
    "small_base_s",
    "small_token_s",
    "decode_sequence_s",
    "decode_context_s",
    "chunk_base_s",
    "chunk_pair_s",
)


def test_a_fit_recovers_the_coefficients_that_generated_the_steps() -> None:
    fitted = fit(measured(LINEAR, count=40))
    for name in COEFFICIENTS:
        assert getattr(fitted, name) == pytest.approx(getattr(LINEAR, name), rel=1e-6), name


def test_a_fit_to_noisy_steps_is_close_and_states_its_mean_error() -> None:
    fitted = fit(measured(LINEAR, count=400, noise=0.02))
    for name in COEFFICIENTS:
        assert getattr(fitted, name) == pytest.approx(getattr(LINEAR, name), rel=0.25), name
    assert "mean error 1.5%" in fitted.uncertainty


def test_a_fit_of_steps_without_prefill_attributes_the_cost_to_new_tokens() -> None:
    steps = [StepSample(Composition(n, n, 100 * n, ()), 0.01 + 0.001 * n) for n in range(1, 9)]
    fitted = fit(steps)
    assert fitted.small_token_s == pytest.approx(0.001)
    assert fitted.decode_sequence_s == fitted.chunk_base_s == 0.0


@law
@given(
    st.lists(
        st.builds(
            StepSample,
            st.builds(
                Composition,
                st.integers(0, 4096),
                st.integers(0, 64),
                tokens,
                chunks.map(tuple),
            ),
            st.floats(1e-4, 10),
        ),
        max_size=12,
    )
)
def test_a_fit_has_no_negative_coefficient_or_fails_with_a_named_error(
    samples: list[StepSample],
) -> None:
    with contextlib.suppress(StepFitFailed):
        fitted = fit(samples)
        assert all(getattr(fitted, name) >= 0 for name in COEFFICIENTS)
        assert any(getattr(fitted, name) > 0 for name in COEFFICIENTS)


def only_decodes(count: int) -> Composition:
    return Composition(count, count, count, ())


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([], "at least 6"),
        ([StepSample(only_decodes(8), 0.01)] * 4, "at least 6"),
        ([StepSample(only_decodes(8), 0.01)] * 9, "several sizes"),
        ([StepSample(only_decodes(n), 0.0) for n in range(9)], "above 0"),
        ([StepSample(only_decodes(n), float("nan")) for n in range(9)], "above 0"),
        ([StepSample(Composition(n, n, -1, ()), 0.01) for n in range(9)], "count below 0"),
    ],
)
def test_steps_that_determine_no_cost_are_refused(samples: list[StepSample], reason: str) -> None:
    with pytest.raises(StepFitFailed, match=reason):
        fit(samples)
