"""Limits running prefills, so that a step has tokens left for better waiting requests.

vLLM serves all running requests before any waiting one: a long prompt would fill every step until
it is prefilled, whatever arrived meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import SchedulerConfig
    from vllm.v1.request import Request

NEVER = 1 << 62
"""A step number that is never reached: a request that waits for it is paused."""


@contextmanager
def skipped(requests: Iterable[Request]) -> Iterator[None]:
    """Plan a step without these running requests; they keep their slots and KV cache."""
    eligible = [(request, request.next_decode_eligible_step) for request in requests]
    for request, _ in eligible:
        request.next_decode_eligible_step = NEVER
    try:
        yield
    finally:
        for request, step in eligible:
            request.next_decode_eligible_step = step


@contextmanager
def throttled(
    prefills: Sequence[Request],
    needs: Sequence[int],
    step_tokens: int,
    config: SchedulerConfig,
    *,
    min_chunk_tokens: int = 1,
) -> Iterator[None]:
    """Plan a step in which these running prefills get only the tokens that waiting requests leave.

    The best of them gets the rest of the step, unless its chunk limit would cut the waiting
    prompts: vLLM has one limit on chunks for all requests. The others are left out of the step.

    Args:
        prefills: best first; if empty, nothing changes.
        needs: uncomputed prompt tokens of each better waiting request; not empty if there are
            prefills.
        step_tokens: the step's tokens for all of these.
        min_chunk_tokens: smallest limit on chunks.
    """
    chunk_tokens = config.long_prefill_token_threshold
    left = step_tokens - sum(needs)
    if prefills and left >= max(min_chunk_tokens, *needs):
        prefills = prefills[1:]
        config.long_prefill_token_threshold = min(chunk_tokens or left, left)
    try:
        with skipped(prefills):
            yield
    finally:
        config.long_prefill_token_threshold = chunk_tokens
