"""Records of runs, as if this process had started them."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from typing import Any

from store.records import RunRecord
from store.session import Store

ID = "the-run"
HERE = socket.gethostname()


def a_run(**fields: Any) -> RunRecord:
    """A run that this process started just now, with some fields changed."""
    now = datetime.now(UTC)
    process: dict[str, Any] = {"claimed_at": now, "process_id": os.getpid(), "host": HERE}
    return RunRecord(id=ID, flow="work", **{"started_at": now, **process, **fields})


async def add(store: Store, run: RunRecord) -> None:
    """Record a run that was started without arguments."""
    async with store.transaction() as tx:
        payload = await tx.payloads.put(b"{}", media_type="application/json")
        await tx.runs.add(RunRecord(**{**fields_of(run), "input_payload": payload}))


def fields_of(run: RunRecord) -> dict[str, Any]:
    return {name: getattr(run, name) for name in RunRecord.__dataclass_fields__}
