"""Cached steps: reused for the same code, arguments and model, up to a maximum age."""

from __future__ import annotations

import inspect
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from orchestrator import ResultNotSerialisable, flow, llm, step
from orchestrator.execution.step_cache import cache_key
from orchestrator.testing import ScriptedEngine, VirtualClock
from store.records import Status
from tests.unit.orchestrator.orchestrator_samples import Boom, recorded, scripted_runtime


@dataclass(frozen=True)
class Place:
    name: str


NUM_CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _reset_counter() -> None:
    NUM_CALLS.clear()


async def looked_up(place: Place, *, loud: bool = False) -> list[Place]:
    """The body of the steps in these tests."""
    NUM_CALLS[place.name] += 1
    if place.name == "nowhere":
        raise Boom(place.name)
    return [place, Place(await llm("where?"))]


class Counted:
    """A flow with one step, cached or not, that counts its executions."""

    def __init__(self, cache: bool | str) -> None:
        look_up = step(looked_up) if cache is False else step(cache=cache)(looked_up)

        @flow
        async def find(name: str, loud: bool = False) -> list[Place]:
            return await look_up(Place(name), loud=loud)

        self.find = find
        self.num_calls = NUM_CALLS


async def test_another_run_uses_the_cached_result_without_executing_the_step(
    tmp_path: Path,
) -> None:
    counted, engine = Counted(cache=True), ScriptedEngine(lambda request: "there")
    async with scripted_runtime(tmp_path, engine) as runtime:
        first = await runtime.run(counted.find, "here")
        second = await runtime.run(counted.find, "here")
        record = await recorded(runtime.store, second.run_id)
    assert first.value == second.value == [Place("here"), Place("there")]
    assert counted.num_calls == {"here": 1}
    assert len(engine.requests) == 1
    assert [step.status for step in record.journal.values()] == [Status.COMPLETED]
    assert not record.calls


async def test_a_large_result_is_cached_too(tmp_path: Path) -> None:
    counted = Counted(cache=True)
    async with scripted_runtime(tmp_path, ScriptedEngine(lambda _: "far" * 20_000)) as runtime:
        first = await runtime.run(counted.find, "here")
        assert (await runtime.run(counted.find, "here")).value == first.value
    assert counted.num_calls == {"here": 1}


async def test_other_arguments_are_not_served_from_the_cache(tmp_path: Path) -> None:
    counted = Counted(cache=True)
    async with scripted_runtime(tmp_path) as runtime:
        for name, loud in [("a", False), ("b", False), ("a", True), ("b", False)]:
            await runtime.run(counted.find, name, loud)
    assert counted.num_calls == {"a": 2, "b": 1}


async def test_a_failed_step_is_not_cached(tmp_path: Path) -> None:
    counted = Counted(cache=True)
    async with scripted_runtime(tmp_path) as runtime:
        for _ in range(2):
            with pytest.raises(Boom):
                await runtime.run(counted.find, "nowhere")
    assert counted.num_calls == {"nowhere": 2}


async def test_a_step_without_cache_is_not_reused(tmp_path: Path) -> None:
    counted = Counted(cache=False)
    async with scripted_runtime(tmp_path) as runtime:
        for _ in range(2):
            await runtime.run(counted.find, "here")
    assert counted.num_calls == {"here": 2}


async def test_a_result_is_reused_up_to_its_maximum_age(tmp_path: Path) -> None:
    """Its age counts from the run that made it; reuse does not make it younger."""
    counted, clock = Counted(cache="1h"), VirtualClock()
    async with scripted_runtime(tmp_path, clock=clock) as runtime:
        for _ in range(3):
            await runtime.run(counted.find, "here")
            clock.advance(1700.0)
        assert counted.num_calls == {"here": 1}
        clock.advance(600.0)
        await runtime.run(counted.find, "here")
    assert counted.num_calls == {"here": 2}


async def test_a_step_with_other_code_is_not_served_from_the_cache(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:

        @step(cache=True, name="same")
        async def former(number: int) -> int:
            return number + 1

        @step(cache=True, name="same")
        async def latter(number: int) -> int:
            return number + 2

        @flow
        async def of_former() -> int:
            return await former(1)

        @flow
        async def of_latter() -> int:
            return await latter(1)

        assert (await runtime.run(of_former)).value == 2
        assert (await runtime.run(of_latter)).value == 3


async def test_a_cached_result_that_cannot_be_read_is_replaced_by_executing_the_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counted = Counted(cache=True)
    async with scripted_runtime(tmp_path) as runtime:
        await runtime.run(counted.find, "here")
        with closing(sqlite3.connect(tmp_path / "store.db")) as other, other:
            damage = "UPDATE steps SET result = X'35' WHERE reuse_key IS NOT NULL"
            assert other.execute(damage).rowcount == 1
        assert (await runtime.run(counted.find, "here")).value[0] == Place("here")
    assert counted.num_calls == {"here": 2}
    assert "is not used" in caplog.text


async def test_arguments_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    @step(cache=True)
    async def ask(what: object) -> int:
        return 1

    @flow
    async def asking() -> int:
        return await ask(object())

    async with scripted_runtime(tmp_path) as runtime:
        with pytest.raises(ResultNotSerialisable, match="argument what"):
            await runtime.run(asking)


async def test_a_default_and_the_same_value_as_an_argument_share_a_cached_result(
    tmp_path: Path,
) -> None:
    look_up = step(cache=True)(looked_up)

    @flow
    async def twice() -> None:
        await look_up(Place("here"))
        await look_up(Place("here"), loud=False)

    async with scripted_runtime(tmp_path) as runtime:
        await runtime.run(twice)
        await runtime.run(twice)
    assert NUM_CALLS == {"here": 1}


async def test_two_lambdas_on_one_line_have_different_cached_results(tmp_path: Path) -> None:
    plus, minus = step(cache=True)(lambda n: n + 1), step(cache=True)(lambda n: n - 1)

    @flow
    async def both() -> list[int]:
        return [await plus(5), await minus(5)]

    async with scripted_runtime(tmp_path) as runtime:
        for _ in range(2):
            assert (await runtime.run(both)).value == [6, 4]


def two_functions(first: str, second: str) -> list[Callable[..., Any]]:
    """The functions `g` of two source texts, in one module."""
    both = []
    for text in first, second:
        names: dict[str, Any] = {"__name__": "one_module"}
        exec(text, names)
        both.append(names["g"])
    return both


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("def g(a): return a", "def g(*a): return a"),
        ("def g(a): return (lambda b: b)(*a)", "def g(a): return (lambda *b: b)(*a)"),
        ("def g(a): return (lambda b, c: 1)(*a)", "def g(a): return (lambda b, *, c: 1)(*a)"),
        (
            "def g(a):\n  try: f(a); h(a)\n  except E: return 0",
            "def g(a):\n  try: f(a)\n  except E: return 0\n  else: h(a)",
        ),
    ],
)
def test_functions_that_differ_in_more_than_their_instructions_have_different_keys(
    first: str, second: str
) -> None:
    keys = [
        cache_key(g, [1] if g.__code__.co_flags & inspect.CO_VARARGS else [[1]], {}, model="m")
        for g in two_functions(first, second)
    ]
    assert keys[0] != keys[1]


class Scaled:
    """A callable with state."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    async def times(self, number: int) -> int:
        return self.factor * number

    async def __call__(self, number: int) -> int:
        return self.factor * number


def closure(factor: int) -> Callable[[int], Awaitable[int]]:
    async def times(number: int) -> int:
        return factor * number

    return times


@pytest.mark.parametrize(
    "body",
    [closure(2), Scaled(2).times, Scaled(2), partial(closure(2), 3)],
    ids=["closure", "method", "callable", "partial"],
)
def test_a_function_that_depends_on_more_than_its_arguments_cannot_be_cached(body: Any) -> None:
    with pytest.raises(ValueError, match="cache= needs a"):
        step(cache=True)(body)


MINE = SecretStr("mine")


def test_a_default_that_cannot_be_part_of_the_key_is_refused() -> None:
    """Else a step would return what another user's key gave."""

    async def inbox(number: int, key: SecretStr = MINE) -> str:
        return f"{number} for {key.get_secret_value()}"

    with pytest.raises(ResultNotSerialisable, match="argument key"):
        cache_key(inbox, (1,), {}, model="m")
