"""A process that runs deep research until it is ended from outside.

It prints one line of JSON for each event of its run, once the event's record is in the store.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from agents.deep_research.pipeline import deep_research
from orchestrator import Settings, open_runtime
from orchestrator.events import Event
from orchestrator.testing import ScriptedEngine
from tests.unit.agents.deep_research_samples import QUESTION, Model, open_corpus

RUN_ID = "the-run"


def print_event(event: Event) -> None:
    line = json.dumps({"event": type(event).__name__} | asdict(event))
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(folder: Path) -> None:
    corpus = open_corpus(folder)
    engine = ScriptedEngine(Model(), token_s=0.0005)
    settings = Settings(store=f"sqlite:///{folder / 'store.db'}", record_text=True)
    async with open_runtime(settings, engine=engine, on_event=print_event) as runtime:
        flow = deep_research.options(run_id=RUN_ID, deadline="10m")
        await runtime.run(flow, QUESTION, corpus, rounds=20)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
