"""A request with a malformed SLO, or one that asks to be dropped, ends with a named error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from serving.errors import InvalidSlo, RequestDropped
from serving.generation import Completion, GenerationRequest
from serving.policies.table import PolicySpec
from serving.slo import BEST_EFFORT, OnLate, Slo, SloKind


def one_at_a_time(llm: Any) -> None:
    """Use fcfs with one running request, and a clock that counts engine steps."""
    scheduler: Any = scheduler_of(llm)
    scheduler.planner.use(PolicySpec("fcfs", {"batch": 1}))
    scheduler.lifecycle.ledger.clock = lambda: float(scheduler.current_step)


def call(name: str, slo: Slo = BEST_EFFORT, max_tokens: int = 8) -> GenerationRequest:
    return GenerationRequest(
        request_id=name, prompt=f"once upon {name}", max_tokens=max_tokens, temperature=0.0, slo=slo
    )


def malformed(**values: object) -> Slo:
    """An SLO that its constructor would reject, but that another client may send."""
    slo = Slo()
    for name, value in values.items():
        object.__setattr__(slo, name, value)
    return slo


async def running_call(engine: EmbeddedEngine, max_tokens: int) -> asyncio.Task[Completion]:
    """A call that runs, so that no other one can."""
    task = asyncio.create_task(engine.generate(call("busy", max_tokens=max_tokens)))
    while not await engine.call(lambda llm: len(scheduler_of(llm).running)):
        pass
    return task


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"weight": -1.0}, "slo_weight"),
        ({"kind": SloKind.DEADLINE}, "slo_deadline_s"),
        ({"stage": 0.5}, "slo_stage"),
        ({"user": 3}, "slo_user"),
    ],
)
async def test_a_malformed_tag_ends_its_own_call_only(
    engine: EmbeddedEngine, values: dict[str, object], key: str
) -> None:
    answers = await asyncio.gather(
        engine.generate(call("before")),
        engine.generate(call("broken", malformed(**values))),
        engine.generate(call("after")),
        return_exceptions=True,
    )
    assert isinstance(answers[1], InvalidSlo)
    assert key in str(answers[1])
    for answer in (answers[0], answers[2]):
        assert isinstance(answer, Completion)
        assert answer.usage.output_tokens == 8


async def test_a_call_that_waits_longer_than_its_limit_is_dropped(engine: EmbeddedEngine) -> None:
    await engine.call(one_at_a_time)
    busy = await running_call(engine, max_tokens=120)
    patient = asyncio.create_task(engine.generate(call("patient")))
    with pytest.raises(RequestDropped, match="slo_waiting_s is 20") as dropped:
        await engine.generate(call("hurried", Slo(waiting_s=20.0)))
    assert dropped.value.args[0] == "hurried"
    assert not busy.done()
    assert (await busy).usage.output_tokens == 120
    assert (await patient).usage.output_tokens == 8


async def test_a_late_call_is_dropped_only_if_its_slo_asks_for_it(engine: EmbeddedEngine) -> None:
    """Four steps are not enough for sixty tokens."""
    await engine.call(one_at_a_time)
    late = {
        on_late: Slo(kind=SloKind.DEADLINE, deadline_s=4.0, on_late=on_late) for on_late in OnLate
    }
    answers = await asyncio.gather(
        *(engine.generate(call(on_late, slo, 60)) for on_late, slo in late.items()),
        return_exceptions=True,
    )
    for on_late, answer in zip(late, answers, strict=True):
        if on_late is OnLate.DROP:
            assert isinstance(answer, RequestDropped)
            assert "slo_on_late is drop" in str(answer)
        else:
            assert isinstance(answer, Completion)
            assert answer.usage.output_tokens == 60


async def test_a_running_request_is_dropped_in_the_middle_of_its_answer(
    engine: EmbeddedEngine,
) -> None:
    await engine.call(one_at_a_time)
    slo = Slo(kind=SloKind.DEADLINE, deadline_s=10.0, on_late=OnLate.DROP)
    num_chunks = 0

    async def listen() -> None:
        nonlocal num_chunks
        async for _ in engine.stream(call("r", slo, max_tokens=100)):
            num_chunks += 1

    with pytest.raises(RequestDropped):
        await listen()
    assert 5 <= num_chunks <= 11
