"""Who reads a prompt leaves the tokens of a step to who still waits, where the plan has it so.

vLLM serves all who run before anybody who waits: a long prompt would take every step whole until it
is read, whoever came meanwhile.
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
def left_out(requests: Iterable[Request]) -> Iterator[None]:
    """Plan a step without these, who run and keep what they hold."""
    eligible = [(request, request.next_decode_eligible_step) for request in requests]
    for request, _ in eligible:
        request.next_decode_eligible_step = NEVER
    try:
        yield
    finally:
        for request, step in eligible:
            request.next_decode_eligible_step = step


@contextmanager
def held_back(
    readers: Sequence[Request],
    needs: Sequence[int],
    step_tokens: int,
    config: SchedulerConfig,
    *,
    least_chunk_tokens: int = 1,
) -> Iterator[None]:
    """Plan a step in which these requests read only what others leave.

    The best of them has what is left, unless its chunk's limit, which is one for all, would cut
    the others' prompts. The rest are left out of the step.

    Args:
        readers: best first; nothing changes without any.
        needs: tokens that each of the others still has to read, at least one if there are readers.
        step_tokens: what the step has for them all.
        least_chunk_tokens: no chunk's limit may be lower.
    """
    chunk_tokens = config.long_prefill_token_threshold
    left = step_tokens - sum(needs)
    if readers and left >= max(least_chunk_tokens, *needs):
        readers = readers[1:]
        config.long_prefill_token_threshold = min(chunk_tokens or left, left)
    try:
        with left_out(readers):
            yield
    finally:
        config.long_prefill_token_threshold = chunk_tokens
