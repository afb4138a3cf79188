"""Scheduling's share of a step: what is timed, and both schedulers on the engine."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from benchmarks.scheduling import Share, Timed, table
from tests.places import ROOT


class Sleeper:
    def spins(self, seconds: float) -> float:
        until_s = time.thread_time() + seconds
        while time.thread_time() < until_s:
            pass
        return seconds

    def fails(self) -> None:
        raise ValueError("as it should")


def test_the_time_of_the_named_functions_adds_up_whether_they_return_or_raise() -> None:
    sleeper = Sleeper()
    timed = Timed(sleeper, "spins", "fails")
    assert sleeper.spins(0.01) == 0.01
    first_s = timed.seconds
    assert first_s >= 0.01
    with pytest.raises(ValueError, match="as it should"):
        sleeper.fails()
    assert timed.seconds >= first_s
    assert sleeper.spins(0.01) == 0.01
    assert timed.seconds >= first_s + 0.01


def test_the_table_has_a_line_for_each_measurement() -> None:
    row = Share(scheduler="calm", requests=8, step_ms=20.0, scheduling_ms=0.5, share=0.025)
    assert table([row, row]).splitlines()[1:] == [table([row]).splitlines()[-1]] * 2
    assert "2.50%" in table([row])


@pytest.mark.usefixtures("subprocesses")
def test_both_schedulers_are_measured_on_the_real_engine() -> None:
    command = [sys.executable, "-m", "benchmarks.scheduling", "--model", "random", "--json"]
    command += ["--requests", "3", "1", "--steps", "2"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    rows = json.loads(done.stdout)
    assert [(row["scheduler"], row["requests"]) for row in rows] == [
        ("vllm", 1),
        ("vllm", 3),
        ("calm", 1),
        ("calm", 3),
    ]
    assert all(0.0 < row["scheduling_ms"] < row["step_ms"] for row in rows)
