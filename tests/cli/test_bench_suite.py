"""`orchestrate bench --suite`: what it runs, prints and refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli.render.suite_document import document_of_suite
from cli.render.suite_report import ratio_table
from cli.work import bench_session
from serving.sim.compare.experiments import Experiment, Task
from serving.sim.compare.suite import SUITE
from serving.sim.compare.suite_report import report_of
from tests.cli.cli_samples import exit_code
from tests.unit.serving.sim.bench_examples import HAND_MADE, InProcessRunner, fake_result

POLICIES = ("--policy", "fcfs", "--policy", "edf")
SMALL = ("bench", "--suite", *POLICIES, "--loads", "0.7,2", "--seeds", "10-11")
FEW = (*SMALL, "--only", "tiny,coder")


@pytest.fixture(autouse=True)
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the results of the scheduler by made-up ones; everything else is real."""
    monkeypatch.setattr(bench_session, "Runner", InProcessRunner)
    monkeypatch.setenv("COLUMNS", "100")


def test_all_entries_are_run_and_the_tables_fit_100_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code(*SMALL) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        f"suite of {len(SUITE)} workloads, simulated in virtual time: 600 s after 60 s of warm-up",
        "but long_agents 1200 s after 120 s, tiny 60 s after 6 s",
        "seeds 10-11 (for reporting), noisy predictions",
        "machine a100-llama3-8b: A100-80GB, Llama-3-8B (32 layers, 8 KV heads, bf16), TP1",
    ]
    begin = lines.index("load 0.7x: edf")
    assert [line.split()[0] for line in lines[begin + 2 : begin + 2 + len(SUITE)]] == list(SUITE)
    legend = next(at for at, line in enumerate(lines) if line.startswith("Simulated. "))
    assert max(map(len, lines[:legend])) <= 100


def test_ratios_are_to_the_best_others_fcfs_and_the_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """edf has 3/4 of what fcfs has: made-up results grow with the length of a name."""
    assert exit_code(*FEW) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    at = lines.index("load 2x: edf")
    assert lines[at + 1 : at + 12] == [
        "workload tokens/s ×best ×fcfs bound reqs/s ×best ×fcfs bound best others",  # noqa: RUF001
        "coder 610 0.75 0.75 6% 6.11 0.75 0.75 6% fcfs",
        "tiny 610 0.75 0.75 6% 6.11 0.75 0.75 6% fcfs",
        "worst 0.75 0.75 6% 0.75 0.75 6%",
        "median 0.75 0.75 6% 0.75 0.75 6%",
        "geo. mean 0.75 0.75 6% 0.75 0.75 6%",
        "",
        "workload fcfs edf upper bound",
        "coder 810/8.11 610/6.11 10,000/100.00",
        "tiny 810/8.11 610/6.11 10,000/100.00",
        "",
    ]
    at = lines.index("over the suite: ratios to the best others")
    assert lines[at + 1 : at + 5] == [
        "load tok worst med. geo. req worst med. geo. both worst med. geo. worst at",
        "0.7x 0.76 0.76 0.76 0.76 0.76 0.76 0.76 0.76 0.76 coder",
        "2x 0.75 0.75 0.75 0.75 0.75 0.75 0.75 0.75 0.75 coder",
        "all 0.75 0.76 0.76 0.75 0.76 0.76 0.75 0.76 0.76 coder",
    ]


def test_the_json_document_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*FEW, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {
        "suite",
        "simulated",
        "policies",
        "reference",
        "loads",
        "seeds",
        "seeds_for",
        "code",
        "summary",
        "ratios",
        "goodputs",
        "upper_bound",
        "comparisons",
    }
    assert (document["suite"], document["reference"]) == (["coder", "tiny"], "edf")
    assert (document["seeds"], document["seeds_for"]) == ([10, 11], "reporting")
    assert [each["load"] for each in document["summary"]] == [0.7, 2.0, None]
    assert document["summary"][1]["to_best_rival"]["mean"].keys() == {
        "worst",
        "worst_workload",
        "median",
        "geometric_mean",
        "num_cut",
    }
    row = document["ratios"][-1]
    assert (row["workload"], row["load"]) == ("tiny", 2.0)
    assert row["best_rivals"] == {"tokens": "fcfs", "requests": "fcfs"}
    for baseline in ("to_best_rival", "to_fcfs", "of_bound"):
        assert row[baseline].keys() == {"tokens", "requests", "mean"}
    assert document["goodputs"][0].keys() == {
        "workload",
        "load",
        "policy",
        "token_goodput",
        "request_goodput",
    }
    assert len(document["goodputs"]) == 2 * 2 * 2
    assert len(document["upper_bound"]) == 2 * 2
    assert document["comparisons"].keys() == {"coder", "tiny"}
    assert len(document["comparisons"]["tiny"]["rows"]) == 8


def test_zero_goodputs_are_shown_and_are_valid_json() -> None:
    report = report_of(HAND_MADE)
    document = json.loads(json.dumps(document_of_suite(HAND_MADE, report), allow_nan=False))
    ratios = {each["workload"]: each["to_best_rival"] for each in document["ratios"]}
    assert ratios["two"] == {"tokens": "inf", "requests": 2.0, "mean": "inf"}
    assert ratios["three"] == {"tokens": 0.0, "requests": 1.0, "mean": 0.5}
    table = ratio_table(report, 1.0, width=100)
    assert "inf" in list(table.columns[2].cells)[1].plain  # type: ignore[union-attr]


def test_a_lone_policy_and_no_bound_leave_the_ratios_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ("bench", "--suite", "--only", "day", "--policy", "edf", "--loads", "1", "--no-bound")
    assert exit_code(*command) == 0
    output = capsys.readouterr().out
    assert "worst  " not in output
    assert "over the suite:" not in output
    assert exit_code(*command, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ratios"][0]["to_best_rival"] is None
    assert document["summary"][0] == {
        "load": 1.0,
        "to_best_rival": None,
        "to_fcfs": None,
        "of_bound": None,
    }


def test_an_empty_window_is_warned_of_with_its_workload(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class EmptyDay(InProcessRunner):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings | {"work": without_arrivals})

    def without_arrivals(task: Task) -> dict[str, Any]:
        result = fake_result(task)
        if isinstance(task, Experiment) and task.config.source.name == "tiny":
            result["report"]["counts"]["arrived"] = 0
        return result

    monkeypatch.setattr(bench_session, "Runner", EmptyDay)
    assert exit_code(*FEW, "--no-cache") == 0
    warnings = " ".join(capsys.readouterr().err.split())
    assert "warning: tiny at 0.7x, seed 10: no program arrived in the window of 60 s" in warnings
    assert "coder at" not in warnings


def test_progress_names_the_workload_of_each_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*FEW) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "0 of 30, measuring the capacity under fcfs (simulated)"
    assert lines[-1].startswith("30 of 30, coder, ")
    assert len(lines) <= 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mixed", "--suite"], "leave out the workload mixed: --suite runs its own workloads"),
        (["--suite", "--trace", "a.csv"], "leave out --trace"),
        (["--suite", "--arrivals", "burst"], "leave out --arrivals"),
        (["--suite", "--prefix-caching"], "leave out --prefix-caching"),
        (["--suite", "--engine", "vllm"], "leave out --engine vllm"),
        (["--suite", "--plot", "goodput.png"], "leave out --plot"),
        (["--suite", "--only", "mixed,nonsense"], "unknown: nonsense; known: mixed, agentic"),
        (["--suite", "--only", ","], "give at least one name; known: mixed"),
        (["--only", "mixed"], "--only mixed: it chooses entries of --suite; give --suite too"),
        (["--suite", "--seeds", "11-10"], "write a number of seeds such as 3"),
        (["--suite", "--seeds", "3,3"], "give each seed only once"),
    ],
)
def test_bad_input_is_refused_before_anything_is_computed(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("bench", *arguments) == 2
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert captured.out == ""
