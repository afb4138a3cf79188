"""Recorded runs, as if this process had begun them."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from typing import Any

from store.records import RunRecord

ID = "the-run"
HERE = socket.gethostname()


def a_run(**facts: Any) -> RunRecord:
    """A run that this process began just now, with other facts."""
    now = datetime.now(UTC)
    told: dict[str, Any] = {"claimed_at": now, "process_id": os.getpid(), "host": HERE}
    return RunRecord(id=ID, flow="work", **{"started_at": now, **told, **facts})
