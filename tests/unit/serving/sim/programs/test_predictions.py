"""Predictions: they have the stated error, and do not depend on the order of calls."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.length_sketch import LENGTH_LEVELS
from serving.sim.programs.predictions import (
    ORACLE_FUTURES,
    ORACLE_LENGTHS,
    FutureErrors,
    LengthErrors,
)
from serving.sim.programs.programs import Call, Program, Stage
from serving.slo import FutureWork, Slo, SloKind, from_tags, to_tags
from serving.workload_errors import InvalidWorkload
from tests.strategies import law, names

outputs = st.integers(1, 1_000_000)
sigmas = st.floats(0, 2)
factors = st.floats(0.1, 10)
MEDIAN = LENGTH_LEVELS.index(0.5)

PROGRAM = Program(
    id="p",
    application="a",
    kind=SloKind.COMPOUND,
    arrival_s=0.0,
    deadline_s=60.0,
    stages=(
        Stage((Call(10, 5),)),
        Stage((Call(100, 20), Call(1000, 10)), tool_s=2.0),
        Stage((Call(50, 30),), tool_s=1.0),
    ),
)


@law
@given(names, outputs, factors, factors, sigmas, st.integers(0, 2**40))
def test_a_prediction_survives_conversion_to_tags_and_depends_only_on_the_call(
    call_id: str, output_tokens: int, ratio: float, bias: float, sigma: float, seed: int
) -> None:
    errors = LengthErrors(ratio=ratio, sigma=sigma, bias=bias, seed=seed)
    sketch = errors.sketch(call_id, output_tokens)
    errors.sketch(call_id + "x", output_tokens + 1)
    assert errors.sketch(call_id, output_tokens) == sketch
    assert min(sketch.tokens) >= 1.0
    assert from_tags(to_tags(Slo(length=sketch))).length == sketch


@law
@given(names, outputs, st.integers(0, 1_000_000))
def test_the_oracle_knows_the_length(call_id: str, output_tokens: int, generated: int) -> None:
    sketch = ORACLE_LENGTHS.sketch(call_id, output_tokens)
    assert sketch.tokens == (float(output_tokens),) * len(LENGTH_LEVELS)
    bound = sketch.upper(0.9, generated=generated)
    assert bound == pytest.approx(max(output_tokens, generated + 1))


def test_the_medians_of_predictions_are_lognormal_around_the_truth_times_the_ratio() -> None:
    errors = LengthErrors(ratio=1.4, sigma=0.4)
    medians = [errors.sketch(f"p-{n}/0/0", 1000).tokens[MEDIAN] for n in range(5000)]
    logs = np.log(np.array(medians) / 1000)
    assert logs.mean() == pytest.approx(math.log(1.4), abs=4 * 0.4 / math.sqrt(5000))
    assert logs.std() == pytest.approx(0.4, rel=0.05)


def test_with_ratio_and_bias_1_the_quantiles_are_calibrated() -> None:
    errors = LengthErrors(ratio=1.0, sigma=0.4)
    sketches = [errors.sketch(f"p-{n}/0/0", 1000) for n in range(5000)]
    for index, level in enumerate(LENGTH_LEVELS):
        held = np.mean([each.tokens[index] >= 1000 for each in sketches])
        assert held == pytest.approx(level, abs=0.03)


@law
@given(names, st.sampled_from([0.5, 2.0]))
def test_a_bias_multiplies_every_quantile(call_id: str, bias: float) -> None:
    plain = LengthErrors().sketch(call_id, 100_000).tokens
    biased = LengthErrors(bias=bias).sketch(call_id, 100_000).tokens
    assert biased == pytest.approx([bias * tokens for tokens in plain])


def test_the_oracle_of_futures_sums_the_later_stages() -> None:
    after_first = ORACLE_FUTURES.future(PROGRAM, 0, token_s=0.1, prefill_token_s=0.01)
    assert after_first == pytest.approx(
        FutureWork(
            calls=3,
            prefill_tokens=1150,
            decode_tokens=60,
            critical_s=(10 + 1) + (0.5 + 3) + 3.0,
            tool_s=3.0,
            serial_tokens=20 + 30,
        )
    )
    assert ORACLE_FUTURES.future(PROGRAM, 2, token_s=0.1, prefill_token_s=0.01) == (0,) * 6


@law
@given(st.integers(0, 1), sigmas, factors, st.integers(0, 2**40))
def test_a_future_is_the_truth_times_one_factor_independent_of_earlier_predictions(
    stage: int, sigma: float, bias: float, seed: int
) -> None:
    errors = FutureErrors(sigma=sigma, bias=bias, seed=seed)
    future = errors.future(PROGRAM, stage, token_s=0.1, prefill_token_s=0.01)
    errors.future(PROGRAM, 1 - stage, token_s=0.1, prefill_token_s=0.01)
    assert errors.future(PROGRAM, stage, token_s=0.1, prefill_token_s=0.01) == future
    truth = ORACLE_FUTURES.future(PROGRAM, stage, token_s=0.1, prefill_token_s=0.01)
    factor = future.calls / truth.calls
    assert future == pytest.approx([part * factor for part in truth])
    if sigma == 0:
        assert factor == pytest.approx(bias)


def test_the_factors_of_futures_are_lognormal() -> None:
    calls = [
        FutureErrors(sigma=0.3, seed=seed)
        .future(PROGRAM, 0, token_s=0.1, prefill_token_s=0.01)
        .calls
        for seed in range(4000)
    ]
    logs = np.log(np.array(calls) / 3)
    assert logs.mean() == pytest.approx(0.0, abs=0.02)
    assert logs.std() == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_parameters_out_of_range_raise_a_named_error(value: float) -> None:
    with pytest.raises(InvalidWorkload, match="ratio"):
        LengthErrors(ratio=value)
    with pytest.raises(InvalidWorkload, match="bias"):
        LengthErrors(bias=value)
    with pytest.raises(InvalidWorkload, match="bias"):
        FutureErrors(bias=value)
    if value:
        with pytest.raises(InvalidWorkload, match="sigma"):
            LengthErrors(sigma=value)
        with pytest.raises(InvalidWorkload, match="sigma"):
            FutureErrors(sigma=value)
