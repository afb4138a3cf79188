"""A request of a dying engine has one answer, one error, or is dropped; never two submissions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from serving.engine.healing.resubmission import max_submissions, until_begun, within_patience
from serving.errors import AnswerLost, RequestDropped, RequestFailed
from serving.slo import OnLate, Slo, SloKind

LIMIT = max_submissions(3)


class Death(Exception):
    """The engine died."""


class Engine:
    """Dies in each submission after a number of outputs; in those after the last it does not."""

    def __init__(self, *outputs_before_death: int) -> None:
        self.num_submissions = 0
        self.num_open = 0
        self._deaths = outputs_before_death

    async def submit(self) -> AsyncGenerator[int, None]:
        self.num_submissions += 1
        self.num_open += 1
        assert self.num_open == 1
        try:
            dies = self.num_submissions <= len(self._deaths)
            for output in range(self._deaths[self.num_submissions - 1] if dies else 3):
                yield output
            if dies:
                raise Death
        finally:
            self.num_open -= 1


async def outputs_of(engine: Engine) -> list[int]:
    return [each async for each in until_begun(engine.submit, "r", death=Death, limit=LIMIT)]


async def keep_outputs_of(engine: Engine, seen: list[int]) -> None:
    async for output in until_begun(engine.submit, "r", death=Death, limit=LIMIT):
        seen.append(output)  # noqa: PERF401 (what came before an error counts)


@pytest.mark.parametrize("num_deaths", range(LIMIT))
async def test_a_request_without_an_output_is_submitted_again(num_deaths: int) -> None:
    engine = Engine(*[0] * num_deaths)
    assert await outputs_of(engine) == [0, 1, 2]
    assert (engine.num_submissions, engine.num_open) == (num_deaths + 1, 0)


async def test_a_request_with_an_output_is_not_submitted_again() -> None:
    engine = Engine(0, 2)
    seen: list[int] = []
    with pytest.raises(AnswerLost):
        await keep_outputs_of(engine, seen)
    assert (seen, engine.num_submissions, engine.num_open) == ([0, 1], 2, 0)


async def test_a_request_that_kills_the_engine_each_time_ends() -> None:
    engine = Engine(*[0] * LIMIT)
    with pytest.raises(RequestFailed, match="died each of the 3 times"):
        await outputs_of(engine)
    assert engine.num_submissions == LIMIT


async def test_a_caller_that_leaves_ends_the_submission_at_once() -> None:
    engine = Engine()
    outputs = until_begun(engine.submit, "r", death=Death, limit=LIMIT)
    await anext(outputs)
    assert engine.num_open == 1
    await outputs.aclose()
    assert engine.num_open == 0


@pytest.mark.parametrize(
    "slo",
    [
        Slo(kind=SloKind.DEADLINE, deadline_s=2.0, on_late=OnLate.DROP),
        Slo(kind=SloKind.LATENCY, waiting_s=2.0),
    ],
)
async def test_a_request_is_dropped_when_its_slo_asks_for_it_before_there_is_an_engine(
    slo: Slo,
) -> None:
    never = asyncio.Event()
    with pytest.raises(RequestDropped, match="no engine within 2 s"):
        await within_patience(never.wait(), "r", slo, spent_s=1.99)


@pytest.mark.parametrize("slo", [Slo(), Slo(kind=SloKind.DEADLINE, deadline_s=0.01)])
async def test_any_other_request_waits_for_the_engine(slo: Slo) -> None:
    running = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, running.set)
    assert await within_patience(running.wait(), "r", slo, spent_s=1.0)


async def test_an_engine_that_runs_is_there_even_for_a_request_that_is_late() -> None:
    """The scheduler drops it, with the reason that it also gives otherwise."""
    running = asyncio.Event()
    running.set()
    slo = Slo(kind=SloKind.DEADLINE, deadline_s=2.0, on_late=OnLate.DROP)
    assert await within_patience(running.wait(), "r", slo, spent_s=5.0)
