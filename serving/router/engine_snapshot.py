"""The snapshot that a running engine makes of itself, from the columns of its requests.

The same quantities as `snapshot_of` computes from the requests that a router has sent, but from
what the engine knows: prompt tokens that are computed or cached, and lengths learned by user. An
engine makes one several times a second in its scheduling loop, so all is computed on whole columns.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from serving.length_sketch_columns import upper_tokens
from serving.requests import LATENCY, Floats, Requests, RequestState
from serving.router.snapshot import HORIZONS_S, TYPICAL_LEVEL, ReplicaReport, ReplicaSnapshot, Speed


class EngineReport(NamedTuple):
    """A ReplicaReport as data."""

    speed: Speed
    slots: int
    kv_blocks: int
    free_kv_blocks: int
    block_tokens: int


def engine_snapshot(
    replica: str, report: ReplicaReport, requests: Requests, now_s: float
) -> ReplicaSnapshot:
    """The snapshot of an engine with these requests at a time of its own clock."""
    speed = report.speed
    generated = requests.output_tokens
    length = typical_tokens(requests)
    waits = requests.state == RequestState.WAITING
    known = np.maximum(requests.computed_tokens, np.where(waits, requests.cached_tokens, 0))
    context = requests.prompt_tokens + np.maximum(generated - 1, 0)
    prefill_s = np.maximum(context - known, 0) * speed.prefill_token_s
    decode_s = np.maximum(length - generated, 0.0) * speed.decode_token_s
    streams = requests.kind == LATENCY
    first_s = requests.arrival_s + requests.ttft_s - now_s
    last_s = first_s + (length - 1.0) * requests.tbt_s
    whole_s = requests.deadline_s - now_s
    whole_s = np.where(whole_s > 0, whole_s, requests.final_s - now_s)
    due_s = np.concatenate(
        [np.where(streams, first_s, whole_s), np.where(streams, last_s, whole_s)]
    )
    work_s = np.concatenate([prefill_s, decode_s])
    is_late = due_s <= 0
    due_s[is_late] = math.inf
    horizon = np.searchsorted(HORIZONS_S, due_s, side="left")
    by_horizon = np.bincount(horizon, weights=work_s, minlength=len(HORIZONS_S) + 1).cumsum()
    total_tokens = requests.prompt_tokens + generated
    num_waiting = int(waits.sum())
    final_blocks = np.ceil((requests.prompt_tokens + length) / report.block_tokens)
    return ReplicaSnapshot(
        replica=replica,
        speed=speed,
        slots=report.slots,
        num_running=len(requests) - num_waiting,
        num_waiting=num_waiting,
        running_tokens=int(total_tokens[~waits].sum()),
        waiting_tokens=int(requests.prompt_tokens[waits].sum()),
        work_s=float(by_horizon[-1]),
        due_work_s=tuple(by_horizon[:-1].tolist()),
        kv_blocks=report.kv_blocks,
        free_kv_blocks=report.free_kv_blocks,
        final_kv_blocks=int(final_blocks.sum()),
        block_tokens=report.block_tokens,
        late_work_s=float(work_s[is_late].sum()),
    )


def typical_tokens(requests: Requests) -> Floats:
    """The typical length of each answer in tokens, given those generated so far: (n,).

    Of a request without a prediction that of its user's recent answers; its limit while there are
    none.
    """
    generated = requests.output_tokens
    has_default = np.isnan(requests.length[:, :1]) & (requests.default_length[:, -1:] > 0)
    quantiles = np.where(has_default, requests.default_length, requests.length)
    predicted = upper_tokens(quantiles, TYPICAL_LEVEL, generated=generated)
    limit = np.maximum(requests.max_tokens, np.where(np.isnan(predicted), generated + 1, 1))
    typical: Floats = np.fmin(predicted, limit.astype(np.float64))
    return typical
