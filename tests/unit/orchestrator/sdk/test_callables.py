"""Partials, objects with `__call__` and classes as steps and tools: as functions are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

from orchestrator import flow, step, tool
from tests.unit.orchestrator.orchestrator_samples import recorded, scripted_runtime


@dataclass(frozen=True)
class Place:
    name: str
    size: int = 1


def place(name: str, size: int) -> Place:
    return Place(name, size)


async def place_soon(name: str, size: int) -> Place:
    return Place(name, size)


class Finder:
    def __call__(self, name: str, size: int) -> Place:
        return Place(name, size)


class AsyncFinder:
    async def __call__(self, name: str, size: int) -> Place:
        return Place(name, size)

    async def method(self, name: str, size: int) -> Place:
        return Place(name, size)


@wraps(place)
def decorated(*args: Any, **kwargs: Any) -> Place:
    return place(*args, **kwargs)


CALLABLES: dict[str, tuple[Callable[..., Any], str]] = {
    "function": (place, "place"),
    "partial": (partial(place, size=5), "place"),
    "async partial": (partial(place_soon, size=5), "place-soon"),
    "partial of partial": (partial(partial(place, size=4), size=5), "place"),
    "decorated": (partial(decorated, size=5), "place"),
    "object": (Finder(), "Finder"),
    "async object": (AsyncFinder(), "AsyncFinder"),
    "partial of object": (partial(Finder(), size=5), "Finder"),
    "partial of async object": (partial(AsyncFinder(), size=5), "AsyncFinder"),
    "partial of method": (partial(AsyncFinder().method, size=5), "method"),
    "class": (Place, "Place"),
    "partial of class": (partial(Place, size=5), "Place"),
}


@pytest.mark.parametrize("decorate", [step, tool])
@pytest.mark.parametrize(("body", "name"), CALLABLES.values(), ids=CALLABLES)
async def test_a_callable_is_named_and_its_result_recorded_as_a_function_is(
    tmp_path: Path, body: Callable[..., Any], name: str, decorate: Any
) -> None:
    find = decorate(body)

    @flow
    async def finding() -> Place:
        return await find("Bern", size=5)  # type: ignore[no-any-return]

    async with scripted_runtime(tmp_path) as runtime:
        result = await runtime.run(finding)
        found = await recorded(runtime.store, result.run_id)
    assert result.value == Place("Bern", 5)
    [record] = found.journal.values()
    assert record.name == name


async def test_partials_of_one_function_differ_by_the_arguments_that_they_bind(
    tmp_path: Path,
) -> None:
    small, large = step(partial(place, size=1)), step(partial(place, size=2))

    @flow
    async def finding() -> list[Place]:
        return [await small("a"), await large("a"), await step(place)("a", 1)]

    async with scripted_runtime(tmp_path) as runtime:
        result = await runtime.run(finding)
        found = await recorded(runtime.store, result.run_id)
    first, second, third = (record.arguments for record in found.journal.values())
    assert first == third != second


@pytest.mark.parametrize("decorate", [step, tool])
def test_a_generator_within_a_partial_or_an_object_is_refused(decorate: Any) -> None:
    class Yielding:
        def __call__(self) -> Any:
            yield 1

    for body in Yielding(), partial(Yielding()), partial(Yielding().__call__):
        with pytest.raises(TypeError, match="is a generator"):
            decorate(body)
