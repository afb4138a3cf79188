"""Runs an agent on an embedded engine of its own: python -m tests.engine.tool_agent_run MODEL STORE

MODEL is a model's name, or that and a tool parser: random+hermes. Prints a JSON object.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from typing import Any

from orchestrator import AgentResult, Settings, agent, flow, open_runtime, tool


@tool(effects="pure")
def weather(city: str, days: int = 1) -> str:
    """The weather in a city.

    Args:
        city: its name
        days: how many days
    """
    return f"rain in {city} for {days} days"


@tool(effects="pure")
def add(first: float, second: float) -> float:
    """Add two numbers."""
    return first + second


async def main(model: str, store: str) -> dict[str, Any]:
    name, _, parser = model.partition("+")
    results: list[AgentResult[str]] = []
    shown: list[str] = []

    @flow
    async def one_agent() -> None:
        result = await agent(
            "Will it rain in Bern? Use the tools.",
            [weather, add],
            max_rounds=3,
            max_invalid=3,
            seed=1,
            on_text=shown.append,
        )
        results.append(result)

    settings = Settings(store=store, model=name, tool_parser=parser or None, fit_every=0)
    async with open_runtime(settings) as runtime:
        await runtime.run(one_agent)
        info = runtime.engine.info
    [result] = results
    return {
        "tool_parser": info.tool_parser,
        "value": result.value,
        "shown": "".join(shown),
        "rounds": result.rounds,
        "ended": result.ended,
        "calls": [dataclasses.asdict(use) for use in result.calls],
        "output_tokens": result.usage.output_tokens,
    }


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(asyncio.run(main(*sys.argv[1:])))}\n")
