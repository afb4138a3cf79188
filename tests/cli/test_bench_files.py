"""`orchestrate bench` and the files that users name: a chart to draw, a trace to read."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from cli.errors import BadInput
from cli.work import bench_session
from cli.work.bench_request import check_plot
from tests.cli.cli_samples import exit_code
from tests.unit.serving.sim.bench_examples import InProcessRunner

SMALL = ("bench", "coder", "--policy", "fcfs", "--loads", "0.7")


@pytest.fixture(autouse=True)
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the results of the scheduler by made-up ones; everything else is real."""
    monkeypatch.setattr(bench_session, "Runner", InProcessRunner)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.slow
@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_the_results_are_printed_even_if_the_chart_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: list[str]
) -> None:
    assert exit_code(*SMALL, *extra) == 0
    results = capsys.readouterr().out
    (tmp_path / "full.png").symlink_to("/dev/full")
    assert exit_code(*SMALL, *extra, "--plot", str(tmp_path / "full.png")) == 2
    captured = capsys.readouterr()
    assert captured.out == results
    last = captured.err.splitlines()[-1]
    assert last.startswith(f"error: cannot write to {tmp_path / 'full.png'}: No space left")


@pytest.mark.slow
def test_the_chart_is_drawn_even_if_stdout_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ClosedPipe(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", ClosedPipe())
    assert exit_code(*SMALL, "--json", "--plot", str(tmp_path / "goodput.svg")) == 0
    assert (tmp_path / "goodput.svg").read_bytes().startswith(b"<?xml")


def test_checking_that_a_chart_can_be_written_changes_no_file(tmp_path: Path) -> None:
    check_plot(tmp_path / "new.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "target.png")
    check_plot(tmp_path / "link.png")
    assert [each.name for each in tmp_path.iterdir()] == ["link.png"]
    (tmp_path / "target.png").write_bytes(b"drawn before")
    check_plot(tmp_path / "link.png")
    assert (tmp_path / "target.png").read_bytes() == b"drawn before"


def test_a_chart_that_cannot_be_written_is_refused_before_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "broken-link.png").symlink_to(tmp_path / "nowhere" / "goodput.png")
    (tmp_path / "link-loop.png").symlink_to(tmp_path / "link-loop.png")
    (tmp_path / "read-only.png").touch(mode=0o444)
    names = ["broken-link.png", "link-loop.png", f"{'long' * 100}.png"]
    if not os.access(tmp_path / "read-only.png", os.W_OK):  # root may write to it
        names.append("read-only.png")
    for name in names:
        with pytest.raises(BadInput, match=f"{name}: .*; give a writable file"):
            check_plot(tmp_path / name)


def test_a_trace_file_name_may_be_invalid_utf_8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / os.fsdecode(b"tr\xff.jsonl")
    line = '{{"timestamp": {}, "input_length": 10, "output_length": 3}}\n'
    path.write_text("".join(line.format(1000 * second) for second in range(20)))
    command = ("bench", "--trace", str(path), "--policy", "fcfs", "--loads", "1")
    assert exit_code(*command, "--plot", str(tmp_path / "goodput.png")) == 0
    assert capsys.readouterr().out.startswith("tr\ufffd, simulated")
    assert exit_code(*command, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["workload"], document["trace"]) == ("tr\ufffd", "tr\ufffd.jsonl")
    path.write_text("odd")
    assert exit_code(*command) == 2
    assert "none of the known formats" in capsys.readouterr().err
