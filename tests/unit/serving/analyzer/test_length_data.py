"""Coverage on recorded workflows and a chat trace; skipped if the data is missing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

pytestmark = pytest.mark.usefixtures("subprocesses")

DATA = ROOT.parent / "shared" / "data"
FILES = ("traces/AzureLLMInferenceTrace_conv.csv", "agentic/tot_game24_dag.json")
NAMES = ("azure", "azure_random", "deep_research", "tree_of_thoughts")


@pytest.mark.slow
@pytest.mark.skipif(
    not all((DATA / file).is_file() for file in FILES),
    reason="the recorded traces are not beside this checkout (../shared/data)",
)
def test_bounds_on_recorded_calls_have_the_right_coverage_and_are_the_tightest() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/lengths.py", "--data", str(DATA), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    figures = json.loads(done.stdout)
    for name in NAMES:
        assert 0.87 <= figures[f"{name}_coverage"] <= 0.93, name
        assert figures[f"{name}_ratio"] < figures[f"{name}_step_ratio"], name
        assert figures[f"{name}_ratio"] < figures[f"{name}_global_ratio"], name


def test_without_data_the_benchmark_names_the_missing_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/lengths.py", "--data", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert str(tmp_path / FILES[0]) in done.stderr
    assert not done.stdout
