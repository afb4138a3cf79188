"""The comparison of kinds of sub-deadlines: what is tagged, and what is printed."""

from __future__ import annotations

from typing import NoReturn

import pytest

from benchmarks import sub_deadlines
from benchmarks.sub_deadline_runs import EVEN, NONE, SHARES, DividedPredictions, with_tools
from benchmarks.sub_deadlines import ANY, READS_FUTURES, Cell, main, rows_of, table
from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.policies.table import POLICIES, PolicySpec
from serving.requests import Requests, RequestState, RequestView
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.programs import Call, Program, Stage
from serving.slo import FutureWork, Slo, SloKind
from serving.view import Plan, StepView

PROGRAM = Program(
    id="p",
    application="a",
    kind=SloKind.COMPOUND,
    arrival_s=0.0,
    deadline_s=100.0,
    stages=(
        Stage((Call(1, 100), Call(1, 50))),
        Stage((Call(1, 200),), tool_s=2.0),
        Stage((Call(1, 500),)),
    ),
)
IDLE = Predictions(token_s=0.01, prefill_token_s=0.0)


@pytest.mark.parametrize(
    ("kind", "now_s", "stage", "deadline_s"),
    [
        (NONE, 0.0, 0, 100.0),
        (EVEN, 0.0, 0, 100 / 3),
        (EVEN, 40.0, 1, 30.0),
        (SHARES, 0.0, 0, 10.0),  # 1 s of 1 + 2 + 2 + 5
        (SHARES, 30.0, 1, 20.0),  # 2 s of 2 + 5
        (SHARES, 50.0, 2, 50.0),
    ],
)
def test_each_kind_divides_the_time_that_is_left(
    kind: str, now_s: float, stage: int, deadline_s: float
) -> None:
    call = next(PROGRAM.stage_calls(stage))
    slo = DividedPredictions(IDLE, kind).slo_of(PROGRAM, call, now_s)
    assert slo.deadline_s == pytest.approx(deadline_s)
    assert slo.final_s == pytest.approx(100.0 - now_s)


def test_longer_tools_give_as_much_more_time() -> None:
    longer = with_tools(PROGRAM, 10.0)
    assert (longer.tool_s, longer.deadline_s) == (20.0, 118.0)
    assert with_tools(PROGRAM, 1.0) == PROGRAM


def test_the_table_has_ratios_to_no_sub_deadlines_and_their_means() -> None:
    goodputs = {}
    for workload, factor in (("one", 2.0), ("two", 0.5)):
        for kind, tokens in ((NONE, 100.0), (EVEN, 100.0 * factor), (SHARES, 50.0)):
            goodputs[Cell("calm", "missing", workload, 1.0, kind)] = tokens, tokens / 100
    lines = table(rows_of(goodputs)).splitlines()
    assert [line.split()[-2:] for line in lines[2:]] == [
        ["2.00/2.00", "0.50/0.50"],
        ["0.50/0.50", "0.50/0.50"],
        ["1.00/1.00", "0.50/0.50"],
    ]


def test_a_ratio_to_nothing_is_a_dash() -> None:
    goodputs = {
        Cell("calm", "noisy", "one", 1.0, kind): (0.0, 0.0) for kind in (NONE, EVEN, SHARES)
    }
    assert [line.split()[-2:] for line in table(rows_of(goodputs)).splitlines()[2:]] == [
        ["-/-", "-/-"]
    ] * 2


def test_columns_are_apart_for_policies_with_long_names() -> None:
    name, workload = "calm_published:added_up=both,goodput=tokens", "heavy_tails, long tools"
    goodputs = {Cell(name, ANY, workload, 1.0, kind): (1e6, 1.0) for kind in (NONE, EVEN, SHARES)}
    lines = table(rows_of(goodputs)).splitlines()
    assert lines[2].startswith(f"{name}  {ANY} ")
    assert f"  {workload} " in lines[2]
    assert len({len(line) for line in lines[1:4]}) == 1
    assert lines[4] == f"any: no futures are read by {name}, so --future changes nothing"


def plan_with_future_of(policy: PolicySpec, owner: int) -> Plan:
    """The plan for two equal requests and one slot; one's program has too much left to do."""
    work = FutureWork(50.0, 1e4, 1e5, 1e5, 1e4, 1e3)
    length = LengthSketch((100.0,) * len(LENGTH_LEVELS))
    rows = [
        RequestView(
            request_id=str(index),
            arrival_s=0.0,
            slo=Slo(
                kind=SloKind.COMPOUND,
                deadline_s=20.0,
                final_s=20.0,
                length=length,
                program=str(index),
                future=work if index == owner else FutureWork(0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
            ),
            prompt_tokens=100,
            max_tokens=200,
            priority=0,
            state=RequestState.WAITING,
            computed_tokens=0,
            output_tokens=0,
            unscheduled_s=0.0,
        )
        for index in range(2)
    ]
    view = StepView(
        now_s=1.0,
        requests=Requests.of(rows),
        slots=1,
        step_tokens=2048,
        token_s=0.02,
        prefill_token_s=0.0001,
        mean_step_s=0.02,
    )
    return policy.build()(view)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policys_plan_depends_on_futures_only_if_it_is_said_to_read_them(name: str) -> None:
    plans = [plan_with_future_of(PolicySpec(name), owner) for owner in (0, 1)]
    assert (plans[0] != plans[1]) == (name in READS_FUTURES)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--workload", "nothing"], "'nothing': unknown; known are mixed"),
        (["--workload", "latency"], "no compound programs"),
        (["--workload", "latency, long tools"], "no compound programs"),
        (["--workload", "tools", "--workload", "tools"], "--workload 'tools': give it only once"),
        (["--future", "noisy", "--future", "noisy"], "--future 'noisy': give it only once"),
        (["--policy", "edf", "--policy", "edf"], "each only once"),
        (["--policy", "nope"], "nope"),
        (["--loads", "nan"], "load=nan"),
        (["--loads", "0"], "must be above 0"),
        (["--loads", "1000"], "at most 100"),
        (["--loads", "1,1"], "each only once"),
        (["--loads", ""], "at least one load"),
        (["--loads", "a"], "'a': write numbers"),
        (["--first-seed", "-1"], "seeds=-1"),
        (["--window-s", "nan"], "window_s=nan"),
    ],
)
def test_bad_options_are_refused_before_anything_is_simulated(
    given: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_session(jobs: int) -> NoReturn:
        raise AssertionError(f"{jobs} processes were started")

    monkeypatch.setattr(sub_deadlines, "session", no_session)
    assert main(given) == 2
    assert reason in capsys.readouterr().err
