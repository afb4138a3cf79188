"""Every example runs as it stands, and the README shows the same code."""

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
def test_an_example_runs_and_says_that_the_demo_model_means_nothing(
    example: Path, tmp_path: Path
) -> None:
    environment = os.environ | {"ORCHESTRATE_STORE": f"sqlite:///{tmp_path / 'runs.db'}"}
    done = subprocess.run(
        [sys.executable, str(example)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "random" in done.stderr
    assert "meaningless" in done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_readme_shows_the_example_as_it_is(example: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```python\n{example.read_text(encoding='utf-8')}```" in readme
