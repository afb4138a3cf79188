"""The preemption gate: a running batch is exchanged only if the gain exceeds the loss."""

from __future__ import annotations

import numpy as np
import pytest

from serving.policies.preemption_gate import exchange_batch, stall_s
from serving.requests import Floats, Ints
from serving.view import StepView
from tests.unit.serving.serving_examples import request, running, step

Case = tuple[StepView, list[int], list[int], Floats]


def indices(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


def machine(*held: int, waiting: int = 0, prefill_token_s: float = 0.0) -> StepView:
    """Running requests that hold these numbers of tokens, and some that wait."""
    rows = [running(str(n), computed_tokens=tokens) for n, tokens in enumerate(held)]
    rows += [request(f"w{n}") for n in range(waiting)]
    return step(*rows, prefill_token_s=prefill_token_s)


@pytest.mark.parametrize(("free", "seconds"), [(0, 1.0), (250, 0.75), (1000, 0.0)])
def test_tokens_expected_in_the_prefix_cache_are_not_recomputed(free: int, seconds: float) -> None:
    view = machine(100, prefill_token_s=0.01)._replace(kv_tokens=1000, free_kv_tokens=free)
    assert stall_s(view, indices(0), prefix_caching=True) == pytest.approx([seconds])
    assert stall_s(view, indices(0), prefix_caching=False) == pytest.approx([1.0])


def test_a_batch_is_exchanged_only_as_a_whole() -> None:
    """The best waiting request alone would pay; the two together gain less than a tenth."""
    view = machine(10, 10, waiting=2)
    value = np.array([10.0, 10.0, 13.0, 8.9])
    run = exchange_batch(view, indices(0, 1), indices(2, 3), value, frame_s=1.0)
    assert run.tolist() == [0, 1]
    value[3] = 9.1
    run = exchange_batch(view, indices(0, 1), indices(2, 3), value, frame_s=1.0)
    assert run.tolist() == [2, 3]
