from __future__ import annotations

import json
import subprocess
import sys

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


def loaded_by(module: str) -> set[str]:
    """The top-level modules that importing a module loads, in a fresh process."""
    script = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in json.loads(process.stdout)}


def test_the_command_starts_without_importing_heavy_packages() -> None:
    assert not loaded_by("cli.main") & HEAVY


@pytest.mark.parametrize(
    "module",
    [
        "serving.policies",
        "serving.policies.table",
        "serving.engine.setup.config",
        "serving.errors",
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
