"""Every example runs unchanged, and the README shows the same code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.engine
@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_runs_and_warns_that_the_demo_models_text_is_meaningless(
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
