from __future__ import annotations

from pathlib import Path

import pytest

from serving.sim.compare.chart import draw
from serving.sim.compare.compare import compare
from serving.sim.drive.live_scale import LiveSettings
from tests.unit.serving.sim.bench_examples import HereRunner, a_comparison, a_plan

MANY = ("fcfs", "priority", "edf", "sjf", "srpt", "calm_published")


@pytest.mark.parametrize(
    ("suffix", "begins"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")]
)
def test_the_suffix_says_the_format(tmp_path: Path, suffix: str, begins: bytes) -> None:
    path = tmp_path / f"goodput{suffix}"
    draw(a_comparison(*MANY), path)
    assert path.read_bytes().startswith(begins)


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_the_same_comparison_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    found = []
    for day in (1, 2):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(day * 86_400))
        draw(a_comparison("fcfs", "edf"), tmp_path / f"{day}{suffix}")
        found.append((tmp_path / f"{day}{suffix}").read_bytes())
    assert found[0] == found[1]


def texts(tmp_path: Path, *policies: str, **changes: object) -> str:
    """All words of the picture, as SVG keeps them where fonts are not turned into curves."""
    import matplotlib as mpl

    path = tmp_path / "words.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        draw(a_comparison(*policies, **changes), path)
    return path.read_text()


def test_the_picture_says_simulated_the_workload_the_window_and_every_policy(
    tmp_path: Path,
) -> None:
    told = texts(tmp_path, *MANY)
    for words in ("coder, simulated: window 20 s after 5 s, 2 seeds", "upper bound", "0.7x", *MANY):
        assert words in told
    for words in ("TTFT of latency programs at 2x", "token goodput", "request goodput"):
        assert words in told


def test_what_was_not_observed_is_said_instead_of_drawn(tmp_path: Path) -> None:
    told = texts(tmp_path, "fcfs", with_bound=False)
    assert told.count("none in this workload") == 1  # no deadline programs in the made-up results
    assert told.count("nothing was observed") == 1  # nor any end
    assert "upper bound" not in told


def test_a_bound_beside_measured_runs_is_called_simulated(tmp_path: Path) -> None:
    import matplotlib as mpl

    live = compare(a_plan("fcfs", live=LiveSettings()), HereRunner(), live_runner=HereRunner())
    path = tmp_path / "live.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        draw(live, path)
    told = path.read_text()
    assert "simulated bound" in told
    assert "upper bound" not in told
    assert "what fcfs drains (simulated)" in told
