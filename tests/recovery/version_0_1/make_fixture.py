"""Wrote the files beside this one, with the code of version 0.1 (commit ac4255d).

python make_fixture.py FOLDER MODE, for MODE in many, failed, killed, asking; then
`orchestrate patterns fit handbook`, a VACUUM, and gzip.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
from pathlib import Path

import flow_of_version_0_1 as module

from orchestrator import Settings, open_runtime
from orchestrator.testing import ScriptedEngine, crash_at
from serving.generation import GenerationRequest

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


def script(request: GenerationRequest) -> str:
    """The same answer to the same prompt, in every process."""
    prompt = request.prompt
    text = prompt if isinstance(prompt, str) else prompt[-1].content
    chance = random.Random(text)
    if text.startswith("Plan"):
        topic = text.split()[-1]
        sections = [f"{topic}{index}" for index in range(2 + len(topic) % 3)]
        document = {"sections": ["closed"] if topic == "closed" else sections}
        return json.dumps(document, separators=(",", ":"))
    num_words = 12 if text.startswith("Summ") else chance.randint(20, 90)
    return " ".join(chance.choice(WORDS) for _ in range(num_words))


async def write(folder: Path, mode: str) -> None:
    settings = Settings(store=f"sqlite:///{folder / 'store.db'}", fit_every=0)
    async with open_runtime(settings, engine=ScriptedEngine(script)) as runtime:
        if mode == "many":
            for number in range(36):
                topic = f"t{'x' * (number % 3)}{number}"
                await runtime.run(module.handbook.options(run_id=f"done-{number:02d}"), topic)
        elif mode == "failed":
            await runtime.run(module.handbook.options(run_id="failed"), "closed")
        elif mode == "killed":
            crash_at(runtime.store, 9, "after")
            await runtime.run(module.handbook.options(run_id="killed"), "txx")
        elif mode == "asking":
            runtime.start(module.handbook.options(run_id="asking"), "ta", ask=True)
            await asyncio.sleep(1.0)
            os._exit(9)


if __name__ == "__main__":
    socket.gethostname = lambda: "former-host"
    asyncio.run(write(Path(sys.argv[1]), sys.argv[2]))
