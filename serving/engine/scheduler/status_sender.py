"""What the engine's process tells the API server: its state and its counters, ten times a second.

The API server has no other way to them: the policy, its queue and the measured speed are in the
engine's process. Messages are JSON over ZeroMQ, which vLLM uses between the two processes as well.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import zmq

from serving.requests import KINDS, Requests, RequestState
from serving.router.engine_snapshot import EngineReport, engine_snapshot
from serving.router.snapshot import Speed

if TYPE_CHECKING:
    from serving.engine.observers.step_tracker import StepTracker
    from serving.view import StepView

ADDRESS_VARIABLE = "ORCHESTRATE_STATUS_ADDRESS"
"""Environment variable with the ZeroMQ address that a server listens on; unset: nothing is sent.

Not in vLLM's configuration: a new path there would be another key of its compilation cache.
"""

PERIOD_S = 0.1
"""Seconds between two messages of an engine that computes: routing tolerates that age
(a router adds what it has sent meanwhile), and a message costs a fraction of a millisecond."""

FULL_BATCH = 96
"""The decodes of a step by which the machine time of an output token is measured, if the engine
has that many slots: with more, a token's share of a step hardly falls."""


class StatusSender:
    """Sends an engine's status to an address, without ever waiting for the receiver."""

    def __init__(self, address: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 16)  # a receiver that is gone costs no memory
        self._socket.connect(address)
        self._next_s = 0.0
        self._is_idle = False

    @classmethod
    def of_environment(cls) -> StatusSender | None:
        """A sender to the address in the environment; None if there is none."""
        address = os.environ.get(ADDRESS_VARIABLE)
        return cls(address) if address else None

    def is_due(self, now_s: float, *, is_idle: bool) -> bool:
        """Whether to send now: after PERIOD_S, and at once when the engine's last request ends."""
        return now_s >= self._next_s or (is_idle and not self._is_idle)

    def send(self, status: dict[str, Any], now_s: float, *, is_idle: bool) -> None:
        """Send a status; while nobody receives, it is lost."""
        self._next_s, self._is_idle = now_s + PERIOD_S, is_idle
        with suppress(zmq.Again):  # the next one says the same, later
            self._socket.send(json.dumps(status).encode(), zmq.NOBLOCK)

    def close(self) -> None:
        """Send nothing more."""
        self._socket.close()


def status_of(
    view: StepView, tracker: StepTracker, *, block_tokens: int, plans: int, plan_s: float
) -> dict[str, Any]:
    """The engine's status, JSON-safe: `snapshot` (ReplicaSnapshot), `queue` and `counters`.

    Args:
        plans, plan_s: plans made since the start, and the seconds that they took.
    Returns:
        queue: kind of SLO -> requests that wait, run and are paused. counters: since the start.
    """
    slots = view.slots
    report = EngineReport(
        speed=Speed(
            prefill_token_s=view.model.base_s / view.step_tokens + view.prefill_token_s,
            decode_token_s=tracker.decode_token_s(min(slots, FULL_BATCH)),
            token_s=view.token_s,
        ),
        slots=slots,
        kv_blocks=view.kv_tokens // block_tokens,
        free_kv_blocks=view.free_kv_tokens // block_tokens,
        block_tokens=block_tokens,
    )
    snapshot = engine_snapshot("", report, view.requests, view.now_s)._asdict()
    del snapshot["replica"], snapshot["prefix_tokens"]  # which the router knows
    counts = tracker.snapshot()
    return {
        "snapshot": snapshot | {"speed": report.speed._asdict()},
        "queue": queue_by_kind(view.requests),
        "counters": {
            "plans": plans,
            "plan_s": plan_s,
            "steps": counts.steps,
            "step_s": counts.step_s,
            "recomputed_tokens": counts.lost_blocks * block_tokens,
        },
    }


def queue_by_kind(requests: Requests) -> dict[str, dict[str, int]]:
    """Kind of SLO -> state -> number of requests."""
    return {
        kind: {
            state.name.lower(): int(((requests.kind == code) & (requests.state == state)).sum())
            for state in RequestState
        }
        for code, kind in enumerate(KINDS)
    }
