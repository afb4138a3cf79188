"""Every example runs unchanged, and the README shows the same code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

EXAMPLES = [ROOT / "examples" / name for name in ("first_flow.py", "langgraph_graph.py")]
POLICY = "examples/my_policy.py:shortest_prompt_first"


AGENT = ROOT / "examples" / "tool_agent.py"
REPAIR = ROOT / "examples" / "repair.py"
WORKSPACE = ROOT / "examples" / "langgraph_workspace.py"


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.engine
@pytest.mark.parametrize("example", [*EXAMPLES, AGENT, WORKSPACE], ids=lambda path: path.stem)
def test_an_example_runs_and_warns_that_the_random_models_text_is_meaningless(
    example: Path, tmp_path: Path
) -> None:
    environment = os.environ | {"ORCHESTRATE_STORE": f"sqlite:///{tmp_path / 'runs.db'}"}
    process = subprocess.run(
        [sys.executable, str(example)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip()
    assert "random" in process.stderr
    assert "meaningless" in process.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_readme_shows_the_example_unchanged(example: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```python\n{example.read_text(encoding='utf-8')}```" in readme


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.engine
def test_the_flow_and_the_policy_run_from_the_command_line_as_the_documents_say(
    tmp_path: Path,
) -> None:
    environment = os.environ | {"ORCHESTRATE_STORE": f"sqlite:///{tmp_path / 'runs.db'}"}
    flow = ["examples/first_flow.py:article", "--topic", "deadlines", "--deadline", "60s"]
    process = subprocess.run(
        [sys.executable, "-m", "cli", "run", *flow, "--policy", POLICY, "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout)
    assert document["in_time"] is True
    assert document["random_weights"] is True


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.engine
def test_the_repair_adopts_the_candidate_that_passes_and_leaves_the_folder(tmp_path: Path) -> None:
    environment = os.environ | {"ORCHESTRATE_STORE": f"sqlite:///{tmp_path / 'runs.db'}"}
    process = subprocess.run(
        [sys.executable, str(REPAIR)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    assert "+    half = len(numbers) // 2" in process.stdout
    assert "wrong for most" not in process.stdout
