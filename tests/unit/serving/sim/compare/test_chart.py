"""The chart of a comparison: formats, reproducible bytes, words."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.sim.compare.chart import draw
from serving.sim.compare.compare import compare
from serving.sim.drive.live_scale import LiveSettings
from tests.unit.serving.sim.bench_examples import InProcessRunner, make_comparison, make_plan

pytestmark = pytest.mark.slow

MANY = ("fcfs", "priority", "edf", "sjf", "srpt", "calm_published")


@pytest.mark.parametrize(
    ("suffix", "begins"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")]
)
def test_the_suffix_sets_the_format(tmp_path: Path, suffix: str, begins: bytes) -> None:
    path = tmp_path / f"goodput{suffix}"
    draw(make_comparison(*MANY), path)
    assert path.read_bytes().startswith(begins)


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_the_same_comparison_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    contents = []
    for day in (1, 2):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(day * 86_400))
        draw(make_comparison("fcfs", "edf"), tmp_path / f"{day}{suffix}")
        contents.append((tmp_path / f"{day}{suffix}").read_bytes())
    assert contents[0] == contents[1]


def svg_text(tmp_path: Path, *policies: str, **changes: object) -> str:
    """The figure as SVG with its words as text, not as curves."""
    import matplotlib as mpl

    path = tmp_path / "words.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        draw(make_comparison(*policies, **changes), path)
    return path.read_text()


def test_the_figure_names_the_workload_the_window_every_policy_and_that_it_is_simulated(
    tmp_path: Path,
) -> None:
    text = svg_text(tmp_path, *MANY)
    for words in (
        "coder, simulated: window 20 s after 5 s, seeds 0-1",
        "upper bound",
        "0.7x",
        *MANY,
    ):
        assert words in text
    for words in ("TTFT of latency programs at 2x", "token goodput", "request goodput"):
        assert words in text


def test_axes_without_observations_say_so(tmp_path: Path) -> None:
    text = svg_text(tmp_path, "fcfs", with_bound=False)
    assert text.count("none in this workload") == 1  # the fake results have no deadline programs
    assert text.count("nothing was observed") == 1  # and no end-to-end latencies
    assert "upper bound" not in text


def test_a_bound_beside_measured_runs_is_called_simulated(tmp_path: Path) -> None:
    import matplotlib as mpl

    plan = make_plan("fcfs", live=LiveSettings())
    path = tmp_path / "live.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        draw(compare(plan, InProcessRunner(), live_runner=InProcessRunner()), path)
    text = path.read_text()
    assert "simulated bound" in text
    assert "upper bound" not in text
    assert "that fcfs drains (simulated)" in text
