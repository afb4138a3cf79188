"""Coverage on recorded workflows and a chat trace; skipped if the data is missing."""

from pathlib import Path

import pytest

from benchmarks import lengths
from benchmarks.length_data import DATA_SETS, load
from tests.places import ROOT

DATA = ROOT.parent / "shared" / "data"
AZURE = "traces/AzureLLMInferenceTrace_conv.csv"


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA_SETS)
def test_bounds_on_recorded_calls_have_the_right_coverage_and_are_the_tightest(name: str) -> None:
    if not (DATA / DATA_SETS[name][0]).is_file():
        pytest.skip("the recorded traces are not beside this checkout (../shared/data)")
    figures, _ = lengths.compare(name, load(DATA, name))
    assert 0.87 <= figures[f"{name}_coverage"] <= 0.93
    assert figures[f"{name}_ratio"] < figures[f"{name}_step_ratio"]
    assert figures[f"{name}_ratio"] < figures[f"{name}_global_ratio"]


def test_without_data_the_benchmark_names_the_missing_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lengths.main(["--data", str(tmp_path)]) == 2
    output, errors = capsys.readouterr()
    assert str(tmp_path / AZURE) in errors
    assert not output
