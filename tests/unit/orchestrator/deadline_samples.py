"""Options of flows for their deadlines, and a flow body that measures how long it ran."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.orchestrator.virtual_time import never


async def keep_best(so_far: str | None) -> str:
    """A `wrap_up` that takes no time."""
    return f"kept {so_far}"


class Elapsed:
    """A flow body that runs until it is cancelled, and measures how long that took."""

    def __init__(self) -> None:
        self.seconds = -1.0

    async def __call__(self) -> str:
        began_s = asyncio.get_running_loop().time()
        try:
            await never()
        finally:
            self.seconds = asyncio.get_running_loop().time() - began_s
        return "the end"


DeadlineOptions = dict[str, Any]
DEADLINE_OPTIONS: list[DeadlineOptions] = [
    {},
    {"on_deadline": "best_so_far"},
    {"wrap_up": keep_best, "tail": 5},
]
