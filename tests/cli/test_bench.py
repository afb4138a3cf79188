from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import typing
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.commands import bench_options
from cli.errors import BadInput
from cli.terminal.bench_progress import remaining_s
from cli.work import bench_session
from cli.work.bench_request import DEFAULT_LIVE_WINDOW_S, loads_of, policy_of, window_of
from serving.sim.compare import result_cache as cache
from serving.sim.compare.experiment_config import DEFAULT_WINDOW_S
from serving.sim.compare.experiments import Experiment, Task
from serving.sim.compare.runner import CompletedTask
from serving.sim.compare.task_progress import Progress
from tests.cli.cli_samples import exit_code
from tests.places import ROOT
from tests.unit.serving.sim.bench_examples import CAPACITY, InProcessRunner, fake_result

SMALL = (
    "bench",
    "coder",
    "--policy",
    "fcfs",
    "--policy",
    "edf",
    "--loads",
    "2,0.7",
    "--seeds",
    "2",
)


@pytest.fixture(autouse=True)
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the results of the scheduler by made-up ones; everything else is real."""
    monkeypatch.setattr(bench_session, "Runner", InProcessRunner)
    monkeypatch.setenv("COLUMNS", "100")


def test_the_tables_say_that_they_are_simulated_and_what_load_1_means(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code(*SMALL) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "coder, simulated in virtual time: 600 s after 60 s of warm-up, seeds"
    )
    assert lines[0].endswith("seeds 0-1 (for tuning)")
    assert f"1.0x is {CAPACITY:.2f} programs/s: simulated capacity under fcfs" in lines
    assert [line for line in lines if line.startswith("load ")] == [
        "load 0.7x, 2.10 programs/s",
        "load 2x, 6.00 programs/s",
    ]
    assert max(map(len, lines[:-5])) <= 100


def test_a_window_without_arrivals_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty_at_seed_1(task: Task) -> dict[str, Any]:
        result = fake_result(task)
        if isinstance(task, Experiment) and task.seed == 1:
            result["report"]["counts"]["arrived"] = 0
        return result

    monkeypatch.setattr(bench_session, "Runner", partial(InProcessRunner, work=empty_at_seed_1))
    assert exit_code(*SMALL, "--json", "--no-cache") == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)["rows"]) == 8
    warnings = " ".join(err.split())
    assert warnings.count("no program arrived in the window of 600 s") == 2  # one per load
    assert "warning: at 0.7x, seed 1: no program arrived" in warnings
    assert "choose a longer --window-s" in warnings


def test_the_default_window_is_shorter_in_real_time() -> None:
    assert 0 < window_of(None, live=True) < window_of(None, live=False)
    assert window_of(30.0, live=True) == window_of(30.0, live=False) == 30.0
    help_text = str(typing.get_args(bench_options.WindowS)[1].help)
    assert f"{DEFAULT_WINDOW_S:g}, on vLLM {DEFAULT_LIVE_WINDOW_S:g}" in help_text


def test_ratios_are_means_over_those_of_fcfs_and_of_the_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code(*SMALL) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    heavy = lines[lines.index("load 2x, 6.00 programs/s") + 1 :]
    assert heavy[:6] == [
        "policy tokens/s ± ×fcfs bound reqs/s ± ×fcfs bound lat ddl cmp",  # noqa: RUF001
        "fcfs 800 1 1.00 8% 8.00 0.01 1.00 8% 50% – 25%",  # noqa: RUF001
        "edf 600 1 0.75 6% 6.00 0.01 0.75 6% 50% – 25%",  # noqa: RUF001
        "upper bound 10,000 0 12.49 100% 100.00 0.00 12.49 100%",
        "policy TTFT s TBT ms E2EL s tokens/s preempt recomp sched ms",
        "fcfs 0.50/2.00 500/2,000 0.50/2.00 1,601 3 400 0.25",
    ]


def test_the_json_document_has_the_documented_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*SMALL, "--json", "--window-s", "30") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["workload"], document["window_s"]) == ("coder", 30.0)
    assert document["simulated"] is True
    assert document["capacity_programs_s"] == pytest.approx(CAPACITY)
    places = [(row["policy"], row["load"], row["seed"]) for row in document["rows"]]
    assert places == [
        (policy, load, seed) for policy in ("fcfs", "edf") for load in (0.7, 2.0) for seed in (0, 1)
    ]
    row = document["rows"][0]
    assert row["attainment"].keys() == {"latency", "deadline", "compound"}
    for name in ("ttft_s", "tbt_s", "e2el_s"):
        assert {"p50", "p95"} <= row[name].keys()
    for name in ("token_goodput", "request_goodput", "throughput_tokens_s", "preemptions"):
        assert isinstance(row[name], int | float)
    assert {"recomputed_tokens", "schedule_ms_per_step"} <= row.keys()
    assert document["upper_bound"][3] == {
        "load": 2.0,
        "seed": 1,
        "token_goodput": 10_000.0,
        "request_goodput": 100.0,
    }


def test_the_same_command_prints_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for extra in ([], [], ["--no-cache"]):
        assert exit_code(*SMALL, "--json", *extra) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2]


def test_with_no_cache_nothing_is_written_to_the_cache(tmp_path: Path) -> None:
    assert exit_code(*SMALL, "--no-cache") == 0
    assert not (tmp_path / "cache" / "bench").exists()
    assert exit_code(*SMALL) == 0
    assert len(list((tmp_path / "cache" / "bench").iterdir())) == 3 + 4 + 8


def test_a_trace_file_can_be_the_workload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hour.jsonl"
    line = '{{"timestamp": {}, "input_length": 10, "output_length": 3}}\n'
    path.write_text("".join(line.format(1000 * second) for second in range(20)))
    assert exit_code("bench", "--trace", str(path), "--policy", "fcfs", "--loads", "1") == 0
    output = capsys.readouterr().out
    assert output.startswith("hour, simulated")
    assert "restarted 2 times" in output
    assert exit_code("bench", "--trace", str(path), "--policy", "fcfs", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["workload"], document["trace"]) == ("hour", "hour.jsonl")


@pytest.mark.slow
def test_a_chart_is_drawn(tmp_path: Path) -> None:
    assert exit_code(*SMALL, "--plot", str(tmp_path / "goodput.png")) == 0
    assert (tmp_path / "goodput.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("extra", [[], ["--no-cache"]])
def test_the_document_names_the_code_version_at_the_start_even_if_files_change_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    extra: list[str],
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "policy.py").write_text("before")
    monkeypatch.setattr(cache, "_PACKAGE", package)
    version_at_start = cache.code_version()

    class EditingRunner(InProcessRunner):
        def run(self, tasks: Sequence[Task]) -> Iterator[CompletedTask]:
            (package / "policy.py").write_text("changed meanwhile")
            return super().run(tasks)

    monkeypatch.setattr(bench_session, "Runner", EditingRunner)
    assert exit_code(*SMALL, "--json", *extra) == 0
    assert json.loads(capsys.readouterr().out)["code"] == version_at_start != cache.code_version()


def test_measured_numbers_are_never_called_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*SMALL, "--engine", "vllm") == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("coder, measured on vLLM here")
    assert "simulated" not in first
    assert exit_code(*SMALL, "--engine", "vllm", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["simulated"], document["engine"]) == (False, "vllm")
    assert "rows" not in document["simulated_parts"]


def test_a_model_setting_that_bench_ignores_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine, model, is_warned in (("vllm", "Qwen/Qwen3-4B", True), ("vllm", "random", False)):
        monkeypatch.setenv("ORCHESTRATE_MODEL", model)
        assert exit_code(*SMALL, "--engine", engine) == 0
        warning = "warning: ORCHESTRATE_MODEL=Qwen/Qwen3-4B is ignored: bench measures the model"
        assert (warning in capsys.readouterr().err) is is_warned


def test_simulated_numbers_are_never_called_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The bound of measured runs is simulated on a fitted machine, so it is an estimate."""
    for engine, is_live in (("sim", False), ("vllm", True)):
        assert exit_code(*SMALL, "--engine", engine) == 0
        output = " ".join(capsys.readouterr().out.split())
        assert ("simulated bound 10,000" in output) is is_live
        assert ("upper bound" in output) is not is_live
        assert ("no scheduler could exceed" in output) is not is_live
        assert ("load 1.0x and a bound, which are simulated" in output) is is_live
        assert ("an estimate, which a measured run may exceed" in output) is is_live
        assert ("measured" in output) is is_live
        assert exit_code(*SMALL, "--engine", engine, "--json") == 0
        document = json.loads(capsys.readouterr().out)
        simulated = {"capacity_programs_s", "upper_bound"}
        assert set(document["simulated_parts"]) == simulated | (set() if is_live else {"rows"})
        assert document["upper_bound"][0].keys() == {
            "load",
            "seed",
            "token_goodput",
            "request_goodput",
        }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "known: mixed"),
        (["--policy", "nonsense"], "known: fcfs"),
        (["--policy", "edf:odd=1"], "edf(odd=...)"),
        (["--policy", "fcfs:batch"], "NAME:KEY=VALUE"),
        (["--policy", "fcfs", "--policy", "fcfs"], "each only once"),
        (["--loads", "0.7;1"], "separated by commas"),
        (["--loads", ""], "at least one"),
        (["--loads", "-1"], "above 0"),
        (["--loads", "nan"], "above 0"),
        (["--seeds", "0"], "between 1 and 1000"),
        (["--window-s", "0"], "window_s=0.0"),
        (["--window-s", "1e9"], "window_s"),
        (["--warmup-s", "-1"], "warmup_s"),
        (["--slo-scale", "0"], "slo_scale"),
        (["--length-bias", "0"], "bias"),
        (["--future-bias", "0"], "bias"),
        (["--predictions", "perfect"], "noisy, learned, oracle, none"),
        (["--learned-runs", "9"], "--learned-runs 9: add --predictions learned"),
        (["--learn-from", "a.json"], "--learn-from a.json: add --predictions learned"),
        (["--predictions", "learned", "--learned-runs", "-1"], "must be between 0 and 100,000"),
        (["--predictions", "learned", "--learn-from", "nowhere.csv"], "nowhere.csv: cannot read"),
        (["--predictions", "learned", "--engine", "vllm"], "use --predictions noisy"),
        (["--predictions", "learned", "--future-bias", "2"], "learned have no bias"),
        (["--arrivals", "sometimes"], "known: poisson"),
        (["--machine", "abacus"], "known: a100-llama3-8b"),
        (["--engine", "steam"], "known: sim, vllm"),
        (["--engine", "vllm", "--machine", "a100-llama3-8b"], "leave out --machine"),
        (["--engine", "vllm", "--prefix-caching"], "leave out --prefix-caching"),
        (["--slots", "0"], "slots"),
        (["--step-tokens", "9" * 20], "step_tokens"),
        (["--step-tokens", "0"], "--step-tokens 0: must be at least --slots (256)"),
        (["--step-tokens", "255"], "--step-tokens 255"),
        (["--engine", "vllm", "--step-tokens", "255"], "step_tokens=255: must be at least slots"),
        (
            [
                *("--policy", "calm_published:batch=1,cutoff=0.5"),
                *("--policy", "calm_published:cutoff=0.5,batch=1"),
            ],
            "each only once",
        ),
        (["--trace", "a.csv", "--trace", "b.csv"], "--trace a.csv, b.csv: give one trace file"),
        (["--jobs", "0"], "jobs"),
        (["--trace", "nowhere.csv"], "nowhere.csv: cannot read it"),
        (["mixed", "--trace", "nowhere.csv"], "not both"),
        (["--plot", "goodput.txt"], ".png, .svg, .pdf"),
        (["--plot", "no/such/folder/goodput.png"], "in an existing folder"),
    ],
)
def test_bad_input_is_refused_before_anything_is_computed(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert exit_code("bench", *arguments) == 2
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert captured.out == ""
    assert not (tmp_path / "cache" / "bench").exists()


def test_policy_parameters_are_parsed_as_int_or_float() -> None:
    spec = policy_of("calm_published:batch=96, cutoff=0.5")
    assert spec.params == {"batch": 96, "cutoff": 0.5}
    assert isinstance(spec.params["batch"], int)
    with pytest.raises(BadInput):
        policy_of("calm_published:batch=1,batch=2")


def test_loads_are_sorted() -> None:
    assert loads_of(" 2, .5,1.0,") == (0.5, 1.0, 2.0)


def test_without_a_terminal_progress_takes_at_most_four_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code(*SMALL, "--json") == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "0 of 15, measuring the capacity under fcfs (simulated)"
    assert lines[-1].startswith("15 of 15, ")
    assert "(simulated)" in lines[-1]
    assert len(lines) <= 4


def test_the_remaining_time_is_extrapolated_from_the_computed_weight() -> None:
    def left_s(done_weight: float, left_weight: float) -> float | None:
        return remaining_s(Progress("runs", 1, 3, None, done_weight, left_weight), 10.0)

    assert left_s(2.0, 6.0) == pytest.approx(30.0)
    assert left_s(0.0, 6.0) is None  # all completed results were cached


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_no_worker_process_and_keeps_completed_results(
    tmp_path: Path, number: signal.Signals
) -> None:
    workers = tmp_path / "workers"
    workers.mkdir()
    command = [sys.executable, str(Path(__file__).with_name("slow_bench.py")), str(workers)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        while len(list(workers.iterdir())) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, number)  # like a terminal: the workers receive it too
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    assert out == ""
    if number is signal.SIGINT:
        assert "3 results are cached; the same command continues" in err
    for worker in workers.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(worker.name), 0)
    assert len(list((tmp_path / "cache" / "bench").iterdir())) == 3
