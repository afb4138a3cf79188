from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

pytestmark = pytest.mark.usefixtures("subprocesses")

ENGINE = {"torch", "vllm", "transformers"}
HEAVY = ENGINE | {
    "langgraph",
    "networkx",
    "numpy",
    "openai",
    "pydantic",
    "pydantic_settings",
    "sqlalchemy",
}

NEEDED_LATER = ENGINE | {
    "alembic",
    "anyio",
    "fastapi",
    "filelock",
    "httpx",
    "jsonschema",
    "kmedoids",
    "langchain_core",
    "langgraph",
    "matplotlib",
    "mcp",
    "networkx",
    "numpy",
    "openai",
    "opentelemetry",
    "psycopg",
    "quantile_forest",
    "rich",
    "scipy",
    "sklearn",
    "sqlalchemy",
    "typer",
}
"""What defining a flow does not need: they load when a runtime opens, or when they are used."""

RUN = """
import asyncio, json, sys
from orchestrator import Settings, flow, gather, llm, open_runtime, step, tool
from serving.generation import Completion, EngineInfo, Usage

class Engine:  # not a ScriptedEngine: orchestrator.testing loads the runtime's modules itself
    info = EngineInfo("fixed", "none", random_weights=False, max_model_tokens=None)

    async def start(self): ...

    async def generate(self, request):
        text = '{"value": 2}' if request.schema else "So."
        return Completion(request.request_id, text, "stop", Usage(1, 1), 0.0, 0.0)

    async def close(self): ...

@tool
async def look(at: str) -> list[str]:
    return [at]

@step(retries=1)
async def part(topic: str) -> str:
    return await llm(topic, max_tokens=9)

@flow(deadline="30s", stages=2)
async def article(topic: str) -> str:
    number = await llm(topic, schema=int)
    return "".join(await gather(*(part(each) for each in await look(topic) * number)))

async def main():
    settings = Settings(store=f"sqlite:///{sys.argv[1]}", fit_every=0)
    async with open_runtime(settings, engine=Engine()):
        before = set(sys.modules)
        assert await article("tides") == "So.So."
        print(json.dumps(sorted(set(sys.modules) - before)))

asyncio.run(main())
"""


def printed_by(script: str, *arguments: str) -> list[str]:
    """The list that a script prints, in a fresh process."""
    command = [sys.executable, "-c", script, *arguments]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    printed: list[str] = json.loads(process.stdout)
    return printed


def loaded_by(module: str) -> set[str]:
    """The top-level modules that importing a module loads, in a fresh process."""
    script = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    return {name.partition(".")[0] for name in printed_by(script)}


def test_the_command_starts_without_importing_heavy_packages() -> None:
    assert not loaded_by("cli.main") & HEAVY


def test_importing_the_sdk_loads_nothing_that_only_an_open_runtime_needs() -> None:
    assert sorted(loaded_by("orchestrator") & NEEDED_LATER) == []


def test_no_module_is_loaded_in_the_time_of_a_run(tmp_path: Path) -> None:
    """What is needed later is loaded before a deadline begins to count."""
    assert printed_by(RUN, str(tmp_path / "runs.db")) == []


@pytest.mark.parametrize(
    "module",
    [
        "serving.policies",
        "serving.policies.table",
        "serving.engine.setup.config",
        "serving.errors",
        "serving.gateway.gateway",
        "patterns",
        "store.session",
        "orchestrator",
        "agents.deep_research.pipeline",
    ],
)
def test_these_modules_do_not_import_vllm(module: str) -> None:
    assert not loaded_by(module) & ENGINE


@pytest.mark.parametrize("module", ["store.records", "store.errors", "serving.errors"])
def test_records_and_errors_do_not_import_sqlalchemy(module: str) -> None:
    assert "sqlalchemy" not in loaded_by(module)
