"""Bodies, reports and a router for the tests of the gateway."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from serving.gateway.reports import SnapshotReport, parse_report
from serving.router.choose import Route
from serving.router.snapshot import HORIZONS_S, ReplicaSnapshot, RoutedRequest
from serving.router.table import RouterSpec

MODEL = "m"
EARLY = RouterSpec("power_of_k", {"k": 0, "late": False, "stay": True}).build()


def report_json(**changes: Any) -> dict[str, Any]:
    """What an idle replica of MODEL answers, with some members of the snapshot changed."""
    outer = {"boot_id": "1", "models": [MODEL], "age_s": 0.0, "draining": False}
    snapshot = {
        "speed": {"prefill_token_s": 0.001, "decode_token_s": 0.002, "token_s": 0.004},
        "slots": 8,
        "num_running": 0,
        "num_waiting": 0,
        "running_tokens": 0,
        "waiting_tokens": 0,
        "work_s": 0.0,
        "due_work_s": [0.0] * len(HORIZONS_S),
        "late_work_s": 0.0,
        "kv_blocks": 1000,
        "free_kv_blocks": 1000,
        "final_kv_blocks": 0,
        "block_tokens": 16,
    }
    for name, value in changes.items():
        (outer if name in outer else snapshot)[name] = value
    return outer | {"snapshot": snapshot}


def report(**changes: Any) -> SnapshotReport:
    return parse_report(json.dumps(report_json(**changes)).encode())


def chat(text: str = "hi", *, model: str = MODEL, **members: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **members}


def due(deadline_s: float, **tags: Any) -> dict[str, Any]:
    """Tags of a request with a deadline."""
    return {"slo_kind": "deadline", "slo_deadline_s": deadline_s, **tags}


class Recording:
    """A router that takes the first replica, and keeps what it was told."""

    def __init__(self) -> None:
        self.requests: list[RoutedRequest] = []
        self.snapshots: list[ReplicaSnapshot] = []

    def __call__(self, request: RoutedRequest, snapshots: Sequence[ReplicaSnapshot]) -> Route:
        self.requests.append(request)
        self.snapshots = list(snapshots)
        return Route((snapshots[0].replica,))
