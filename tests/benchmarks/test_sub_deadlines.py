"""The comparison of kinds of sub-deadlines: what is tagged, and what is printed."""

from __future__ import annotations

import pytest

from benchmarks.sub_deadlines import (
    EVEN,
    NONE,
    SHARES,
    Cell,
    DividedPredictions,
    main,
    rows_of,
    table,
    with_tools,
)
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.programs import Call, Program, Stage
from serving.slo import SloKind

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


def test_an_unknown_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--workload", "nothing"])
    assert "nothing" in capsys.readouterr().err
