"""Program: what is malformed never reaches a simulation."""

import math
import pickle
from typing import Any

import pytest

from serving.sim.errors import (
    BadTrace,
    CodeChanged,
    InvalidProgram,
    InvalidWorkload,
    StepFitFailed,
    TraceMissing,
)
from serving.sim.programs import Call, Program, Stage
from serving.slo import SloKind

ONE = (Stage((Call(10, 5),)),)
TWO = (Stage((Call(10, 5), Call(20, 6, 10))), Stage((Call(7, 3),), tool_s=1.5))


def program(**changes: Any) -> Program:
    given: dict[str, Any] = {
        "id": "p",
        "application": "chat",
        "kind": SloKind.LATENCY,
        "arrival_s": 0.0,
        "stages": ONE,
    }
    return Program(**(given | changes))


def test_a_program_counts_all_of_its_calls() -> None:
    found = program(kind=SloKind.COMPOUND, deadline_s=40.0, stages=TWO)
    assert (found.num_calls, found.prompt_tokens, found.output_tokens) == (3, 37, 14)
    assert (found.total_tokens, found.tool_s) == (51, 1.5)
    assert [each.call_id for each in found.all_calls()] == ["p/0/0", "p/0/1", "p/1/0"]
    assert [each.stage for each in found.all_calls()] == [0, 0, 1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": ""}, "needs an id"),
        ({"stages": ()}, "needs a stage"),
        ({"stages": (Stage(()),)}, "every stage a call"),
        ({"stages": TWO}, "use compound"),
        ({"stages": TWO, "kind": SloKind.DEADLINE, "deadline_s": 1.0}, "use compound"),
        ({"stages": (Stage(ONE[0].calls, -1.0),)}, "tool_s"),
        ({"stages": (Stage(ONE[0].calls, math.nan),)}, "tool_s"),
        ({"stages": (Stage((Call(0, 1),)),)}, "1 prompt"),
        ({"stages": (Stage((Call(1, 0),)),)}, "1 output"),
        ({"stages": (Stage((Call(9, 1, 10),)),)}, "shared_prefix_tokens"),
        ({"arrival_s": -1.0}, "arrival_s"),
        ({"arrival_s": math.inf}, "arrival_s"),
        ({"deadline_s": 1.0}, "has no deadline_s"),
        ({"kind": SloKind.DEADLINE}, "needs a deadline_s"),
        ({"kind": SloKind.COMPOUND}, "needs a deadline_s"),
        ({"kind": SloKind.DEADLINE, "deadline_s": 0.0}, "deadline_s must be"),
        ({"ttft_s": math.nan}, "ttft_s"),
        ({"tbt_s": -1.0}, "tbt_s"),
        ({"weight": 0.0}, "weight"),
    ],
)
def test_a_malformed_program_is_refused_with_the_reason(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidProgram, match=reason):
        program(**changes)


@pytest.mark.parametrize(
    "error",
    [
        InvalidProgram("p", "why"),
        InvalidWorkload("rate_per_s", -1, "why"),
        BadTrace("file", "why"),
        TraceMissing("file", "why"),
        StepFitFailed(3, "why"),
        CodeChanged("v1", "why"),
    ],
)
def test_an_error_survives_the_process_boundary(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert "why" in str(error)
