"""Ways to end at a deadline, and how long what was ended then went on."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.orchestrator.jumping_time import never


async def kept(so_far: str | None) -> str:
    """A way to wrap up: takes no time."""
    return f"kept {so_far}"


class Elapsed:
    """How long a flow went on until it was ended."""

    def __init__(self) -> None:
        self.seconds = -1.0

    async def __call__(self) -> str:
        began_s = asyncio.get_running_loop().time()
        try:
            await never()
        finally:
            self.seconds = asyncio.get_running_loop().time() - began_s
        return "the end"


Ways = dict[str, Any]
WAYS: list[Ways] = [
    {},
    {"on_deadline": "best_so_far"},
    {"wrap_up": kept, "tail": 5},
]
