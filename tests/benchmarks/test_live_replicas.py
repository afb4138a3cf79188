"""The benchmark of real replicas: its requests, what it reads of answers, its table."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from benchmarks import live_replicas
from benchmarks.http_engine import body_of, merged, sample_of, tokens_of
from benchmarks.live_replica_runs import (
    SETTINGS,
    Measured,
    busiest_share,
    spec_of,
    typical_step,
)
from benchmarks.live_replicas import Run, is_ok, table
from serving.errors import RequestDropped, RequestFailed, dropped_stop_reason
from serving.sim.drive.live_driver import ForcedRequest
from serving.sim.metrics.metrics import EngineCounters, Report, summarise
from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.workloads.load_generator import GeneratedLoad
from serving.slo import Slo, SloKind, from_tags
from serving.step_cost import MACHINES, Composition, StepSample

SLO = Slo(kind=SloKind.DEADLINE, deadline_s=3.0)


def forced(request_id: str, *, output_tokens: int, slo: Slo = SLO) -> ForcedRequest:
    return ForcedRequest(
        request_id=request_id,
        prompt="",
        prompt_token_ids=(7, 8, 9),
        output_tokens=output_tokens,
        max_tokens=100,
        temperature=0.0,
        slo=slo,
    )


def no_replicas(*_: Any) -> NoReturn:
    raise AssertionError("replicas were started")


def test_only_sampling_tells_the_length_of_an_answer() -> None:
    short, long = (body_of(forced("a", output_tokens=tokens)) for tokens in (1, 40))
    assert (short["min_tokens"], long["min_tokens"]) == (0, 39)
    assert short | {"min_tokens": 39} == long
    assert short["max_tokens"] == 100
    assert short["prompt"] == [7, 8, 9]
    assert from_tags(short["vllm_xargs"]) == SLO


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        (b'data: {"choices": [{"text": "a", "token_ids": [5]}]}\n', 1),
        (b'data: {"choices": [{"text": "ab", "token_ids": [5, 6]}]}\n', 2),
        (b'data: {"choices": [{"text": "", "token_ids": null}]}\n', 0),
        (b'data: {"choices": [], "usage": {"prompt_tokens": 3}}\n', 0),
        (b"data: [DONE]\n", 0),
        (b": keep-alive\n", 0),
        (b"\n", 0),
    ],
)
def test_the_tokens_of_an_event_are_counted(line: bytes, tokens: int) -> None:
    assert tokens_of(line, "a") == tokens


@pytest.mark.parametrize(
    ("message", "error"),
    [(dropped_stop_reason("too late"), RequestDropped), ("out of memory", RequestFailed)],
)
def test_an_error_event_of_a_dropped_request_is_told_from_others(
    message: str, error: type[Exception]
) -> None:
    event = f"data: {json.dumps({'error': {'message': message, 'code': 504}})}\n".encode()
    with pytest.raises(error, match=message.removeprefix(dropped_stop_reason(""))):
        tokens_of(event, "a")


def test_a_step_is_read_as_it_is_written() -> None:
    sample = StepSample(Composition(9, 2, 300, ((7, 0), (1, 64))), 0.02)
    assert sample_of(json.loads(json.dumps(sample))) == sample


def test_counters_of_replicas_are_added_and_their_time_to_schedule_is_a_mean_over_steps() -> None:
    idle = EngineCounters()
    one = EngineCounters(preemptions=1, recomputed_tokens=5, steps=10, schedule_ms_per_step=2.0)
    two = EngineCounters(preemptions=2, recomputed_tokens=7, steps=30, schedule_ms_per_step=4.0)
    assert merged([one, two, idle]) == EngineCounters(
        preemptions=3, recomputed_tokens=12, steps=40, schedule_ms_per_step=3.5
    )
    assert merged([idle]) == idle


def test_the_busiest_share_counts_attempts_of_all_outcomes_and_no_dummies() -> None:
    page = """
# TYPE orchestrate_gateway_attempts counter
orchestrate_gateway_attempts_total{outcome="answered",replica="a"} 2.0
orchestrate_gateway_attempts_total{outcome="refused",replica="a"} 1.0
orchestrate_gateway_attempts_total{outcome="answered",replica="b"} 1.0
# TYPE orchestrate_gateway_dummies counter
orchestrate_gateway_dummies_total{outcome="begun",replica="b"} 90.0
"""
    assert busiest_share(page) == pytest.approx(0.75)


def test_power_of_k_ignores_prefixes_unless_asked_for_them() -> None:
    default, asked = spec_of("power_of_k:late=true"), spec_of("power_of_k:stay=true")
    assert default.params == {"affinity": 0.0, "stay": False, "late": True}
    assert asked.params == {"affinity": 0.0, "stay": True, "late": False}
    assert spec_of("round_robin").params == {}


def test_the_typical_context_is_the_mean_over_decodes() -> None:
    calls = (Call(100, 1), Call(40, 20))
    program = Program(
        id="p",
        application="test",
        kind=SloKind.COMPOUND,
        arrival_s=0.0,
        stages=(Stage(calls),),
        deadline_s=1.0,
    )
    load = GeneratedLoad((program,), window_s=(0.0, 1.0), decided_s=1.0)
    mean = (1 * 100.5 + 20 * 50.0) / 21
    assert typical_step(load) == (SETTINGS.slots, round(mean), SETTINGS.step_tokens)


def report(token_goodput: float, request_goodput: float) -> Report:
    empty = summarise((), window_s=(0.0, 1.0))
    rates = {"tokens": token_goodput, "requests": request_goodput}
    return replace(empty, goodputs=empty.goodputs | rates)


def run_of(router: str, seed: int, measured: float, simulated: float) -> Run:
    real = Measured(report(measured, 2.0), MACHINES["a100-llama3-8b"], 0.5, None)
    return Run(router, seed, real, report(simulated, 2.0), 0.5)


def test_the_error_compares_means_over_the_seeds() -> None:
    runs = [
        run_of("round_robin", 0, 80.0, 150.0),
        run_of("round_robin", 1, 120.0, 60.0),
        run_of("slos_serve", 0, 50.0, 50.0),
    ]
    lines = table(runs).splitlines()
    assert lines[1].split()[2:] == ["100.00", "105.00", "+5.0%", "1.00", "1.00"]
    assert lines[2].split()[2:] == ["50.00", "50.00", "+0.0%", "0.50", "0.48"]
    assert lines[-1].endswith(": ok")


def test_a_simulation_that_is_far_off_for_one_router_is_not_ok() -> None:
    near, far = run_of("round_robin", 0, 100.0, 100.0), run_of("slos_serve", 0, 100.0, 84.0)
    assert is_ok([near])
    assert not is_ok([near, far])
    assert not is_ok([run_of("round_robin", 0, 0.0, 0.0)])
    assert table([near, far]).endswith("NOT ok")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "nope"], "policy='nope'"),
        (["--router", "nope"], "router='nope'"),
        (["--router", "power_of_k:k"], "NAME:KEY=VALUE"),
        (["--load", "0"], "above 0"),
        (["--window-s", "0"], "window_s=0.0"),
    ],
)
def test_an_invalid_argument_is_an_error_before_replicas_start(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(live_replicas, "replicas_of", no_replicas)
    monkeypatch.setattr(live_replicas, "ENVIRONMENT", {})
    assert live_replicas.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
