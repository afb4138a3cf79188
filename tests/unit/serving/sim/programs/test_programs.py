"""Programs: malformed ones are rejected, and prompts share exactly their prefixes."""

import math
import pickle
from itertools import combinations
from typing import Any

import pytest

from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.programs.programs import Call, Program, Stage
from serving.slo import SloKind
from serving.step_cost import StepCost
from serving.workload_errors import (
    BadTrace,
    CodeChanged,
    InvalidProgram,
    InvalidWorkload,
    StepFitFailed,
    TraceMissing,
)
from tests.unit.serving.sim.bench_examples import FifoEngine

ONE = (Stage((Call(10, 5),)),)
TWO = (Stage((Call(10, 5), Call(20, 6, 10))), Stage((Call(7, 3),), tool_s=1.5))

THEN = (Stage((Call(9, 5, then_from=2),)),)


def program(**changes: Any) -> Program:
    arguments: dict[str, Any] = {
        "id": "p",
        "application": "chat",
        "kind": SloKind.LATENCY,
        "arrival_s": 0.0,
        "stages": ONE,
    }
    return Program(**(arguments | changes))


def test_a_program_s_totals_cover_all_of_its_calls() -> None:
    compound = program(kind=SloKind.COMPOUND, deadline_s=40.0, stages=TWO)
    assert (compound.num_calls, compound.prompt_tokens, compound.output_tokens) == (3, 37, 14)
    assert (compound.total_tokens, compound.tool_s) == (51, 1.5)
    assert [each.call_id for each in compound.all_calls()] == ["p/0/0", "p/0/1", "p/1/0"]
    assert [each.stage for each in compound.all_calls()] == [0, 0, 1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": ""}, "needs an id"),
        ({"stages": ()}, "needs at least one stage"),
        ({"stages": (Stage(()),)}, "every stage at least one call"),
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
        ({"then_tbt_s": 0.0}, "then_tbt_s"),
        ({"then_tbt_s": 1.0}, "then_tbt_s needs then_from"),
        ({"stages": THEN}, "needs then_tbt_s"),
        ({"stages": THEN, "then_tbt_s": 1.0, "kind": SloKind.BEST_EFFORT}, "best_effort has no"),
        ({"stages": (Stage((Call(9, 5, then_from=5),)),), "then_tbt_s": 1.0}, "then_from must be"),
        ({"stages": (Stage((Call(9, 5, then_from=0),)),), "then_tbt_s": 1.0}, "then_from must be"),
        (
            {
                "stages": (*THEN, *ONE),
                "then_tbt_s": 1.0,
                "kind": SloKind.COMPOUND,
                "deadline_s": 1.0,
            },
            "and nowhere else",
        ),
    ],
)
def test_a_malformed_program_is_rejected_with_the_reason(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidProgram, match=reason):
        program(**changes)


class PromptEngine(FifoEngine):
    """Records the prompts."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: dict[str, list[int]] = {}

    def submit(self, request_id: str, *, prompt: list[int], **request: Any) -> None:
        self.prompts[request_id] = prompt
        super().submit(request_id, prompt=prompt, **request)


def test_prompts_share_exactly_the_prefix_of_their_program_and_group() -> None:
    stages = (
        Stage((Call(9, 1, 9, 1), Call(9, 1, 9, 1), Call(9, 1, 9, 2), Call(8, 1))),
        Stage((Call(9, 1, 4), Call(9, 1, 6), Call(12, 1, 12, 1))),
    )
    changes = {"kind": SloKind.COMPOUND, "deadline_s": 40.0, "stages": stages}
    programs = [program(id=name, **changes) for name in ("p", "q")]
    engine = PromptEngine()
    cost = StepCost(name="", source="", uncertainty="", fixed_s=0.01)
    replay(programs, engine, VirtualTime(), cost, until_s=math.inf)
    calls = [(each, call) for each in programs for call in each.all_calls()]
    assert len(engine.prompts) == len(calls) == 14
    for (owner, first), (other_owner, second) in combinations(calls, 2):
        shared = 0
        if owner is other_owner and first.call.prefix_group == second.call.prefix_group:
            shared = min(first.call.shared_prefix_tokens, second.call.shared_prefix_tokens)
        prompts = engine.prompts[first.call_id], engine.prompts[second.call_id]
        assert list(map(len, prompts)) == [first.call.prompt_tokens, second.call.prompt_tokens]
        are_equal = [left == right for left, right in zip(*prompts, strict=False)]
        assert are_equal == [True] * shared + [False] * (len(are_equal) - shared)


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
def test_an_error_survives_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert "why" in str(error)
