"""Failed steps: a caught error is raised again on replay; a step that ended its run is retried."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pytest

from orchestrator import DeadlineExceeded, Runtime, flow, gather, step
from orchestrator.durability.error_codec import (
    encode_error,
    mark_step,
    recorded_text,
    steps_ended_by,
)
from serving.errors import RequestDropped
from store.records import Status
from tests.unit.orchestrator.interrupted_runs import Failing, RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import Boom, as_coroutine, recorded
from tests.unit.orchestrator.run_samples import ID


async def test_an_error_that_the_flow_caught_is_raised_again_on_resume(runtime: Runtime) -> None:
    raise_once = RaiseOnce(asyncio.CancelledError())
    done: Counter[str] = Counter()

    @step
    async def fragile() -> str:
        done["fragile"] += 1
        raise RequestDropped("3f2a-1", "it waited too long")

    @step
    async def instead(why: str) -> str:
        done["instead"] += 1
        return why

    @flow
    async def careful() -> str:
        try:
            return await fragile()
        except RequestDropped as error:
            why = await instead(str(error))
        raise_once()
        return why

    await run_until_interrupted(runtime, careful)
    result = await runtime.resume(ID, careful)
    assert "it waited too long" in result.value
    assert done == {"fragile": 1, "instead": 1}


async def test_a_step_that_made_the_run_fail_is_executed_again_on_resume(runtime: Runtime) -> None:
    raise_once = RaiseOnce()
    done: Counter[str] = Counter()

    @step
    async def first() -> int:
        done["first"] += 1
        return 1

    @step
    async def second() -> int:
        done["second"] += 1
        raise_once()
        return 2

    @flow
    async def both() -> int:
        return await first() + await second()

    await run_until_interrupted(runtime, both)
    assert (await runtime.resume(ID, both)).value == 3
    assert done == {"first": 1, "second": 2}
    steps = (await recorded(runtime.store, ID)).steps
    assert steps["second"].attempts == 2
    assert steps["second"].status is Status.COMPLETED


async def test_a_caught_error_is_replayed_even_if_an_equal_error_ended_the_run(
    runtime: Runtime,
) -> None:
    caught, ending = Failing(1), Failing(1)

    @step
    async def optional() -> int:
        return caught()

    @step
    async def needed() -> int:
        return ending()

    @flow
    async def body() -> int:
        try:
            await optional()
        except Boom:
            return await needed()
        return 0

    with pytest.raises(Boom):
        await runtime.run(body.options(run_id=ID))
    assert (await runtime.resume(ID, body)).value == 2
    assert (caught.num_calls, ending.num_calls) == (1, 2)


async def from_another(work: Awaitable[int]) -> int:
    try:
        return await work
    except Boom as error:
        raise RuntimeError("wrapped") from error


async def from_none(work: Awaitable[int]) -> int:
    try:
        return await work
    except Boom:
        raise RuntimeError("wrapped") from None


async def while_handling(work: Awaitable[int]) -> int:
    try:
        return await work
    except Boom:
        raise RuntimeError("wrapped")  # noqa: B904 - without `from`, as users write it


async def in_one_group(work: Awaitable[int]) -> int:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(as_coroutine(work))
    result: int = task.result()
    return result


@pytest.mark.parametrize("wrapped", [from_another, from_none, while_handling, in_one_group])
@pytest.mark.parametrize("inside_a_step", [True, False])
async def test_a_step_behind_a_wrapped_error_that_ended_the_run_is_executed_again(
    runtime: Runtime, wrapped: Callable[[Awaitable[int]], Awaitable[int]], *, inside_a_step: bool
) -> None:
    failing = Failing(1)

    @step
    async def fragile() -> int:
        return failing()

    async def work() -> int:
        return await wrapped(fragile())

    @flow
    async def body() -> int:
        return await (step(work)() if inside_a_step else work())

    with pytest.raises((RuntimeError, ExceptionGroup)):
        await runtime.run(body.options(run_id=ID))
    assert (await runtime.resume(ID, body)).value == 2


class Local:
    class Refused(Exception):
        def __init__(self, code: int, *, hint: str) -> None:
            super().__init__(f"refused with {code}")
            self.code, self.hint = code, hint


def refused() -> None:
    raise Local.Refused(7, hint="later")


Local.Refused.__module__ = __name__


def called() -> None:
    subprocess.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)


def waited() -> None:
    raise subprocess.TimeoutExpired(["sleep"], 3.0, output=b"so far")


def grouped() -> None:
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


def late() -> None:
    raise DeadlineExceeded("it", 5.0)


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize(
    ("failing", "kind", "message"),
    [
        (lambda: json.loads("{"), json.JSONDecodeError, "line 1 column 2"),
        (Path("/nowhere/at/all").read_text, FileNotFoundError, "/nowhere/at/all"),
        (lambda: {}["key"], KeyError, "key"),
        (refused, Local.Refused, "refused with 7"),
        (lambda: int("x"), ValueError, "invalid literal"),
        (lambda: compile("x = (", "it.py", "exec"), SyntaxError, "it.py, line 1"),
        (lambda: b"\xff".decode(), UnicodeDecodeError, "invalid start byte"),
        (lambda: Decimal("x"), InvalidOperation, "ConversionSyntax"),
        (lambda: importlib.import_module("no_such"), ModuleNotFoundError, "no_such"),
        (lambda: {}[(1, 2)], KeyError, "(1, 2)"),
        (waited, subprocess.TimeoutExpired, "timed out"),
        (called, subprocess.CalledProcessError, "returned non-zero exit status 3"),
        (grouped, ExceptionGroup, "several (2 sub-exceptions)"),
        (late, TimeoutError, "it did not end within its 5 s"),
        (late, DeadlineExceeded, "it did not end within its 5 s"),
    ],
)
async def test_a_replayed_error_has_its_class_message_and_attributes(
    runtime: Runtime, failing: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    caught: list[Exception] = []

    @step
    async def fragile() -> None:
        failing()

    @flow
    async def body() -> None:
        try:
            await fragile()
        except kind as error:
            caught.append(error)
        if len(caught) == 1:
            raise Boom("the process dies")

    with pytest.raises(Boom):
        await runtime.run(body.options(run_id=ID))
    await runtime.resume(ID, body)
    first, second = caught
    assert message in str(second)
    assert type(second).__qualname__ == type(first).__qualname__
    assert str(second) == str(first)
    for name in ("args", "name", "lineno", "start", "stdout", "cmd", "filename", "code", "hint"):
        if not isinstance(first, ExceptionGroup | InvalidOperation):  # arguments JSON cannot hold
            assert getattr(second, name, None) == getattr(first, name, None)


def test_the_steps_behind_circular_deep_or_repeated_errors_are_found() -> None:
    def ending(path: str) -> ValueError:
        error = ValueError(path)
        mark_step(error, ID, path)
        return error

    circular = ending("circular")
    circular.__cause__ = ending("caused")
    circular.__cause__.__cause__ = circular
    assert steps_ended_by(circular, ID) == ["circular", "caused"]

    deep: BaseException = ending("deep")
    for _ in range(20_000):
        error = RuntimeError()
        error.__context__, deep = deep, error
    assert steps_ended_by(deep, ID) == ["deep"]

    group: BaseException = ending("member")
    for _ in range(40):
        outer = ExceptionGroup("several", [group, group])  # type: ignore[list-item]
        outer.__cause__, group = group, outer
    assert steps_ended_by(group, ID) == ["member"]


class Hostile(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise ZeroDivisionError


def test_the_text_before_an_error_is_recorded_with_it_even_if_its_own_code_raises() -> None:
    class Unshowable(Exception):
        def __str__(self) -> str:
            raise Boom("no text")

    for error in (Boom("x"), Unshowable()):
        assert recorded_text(encode_error(error, text="a \udcff")) == "a \udcff"
        assert recorded_text(encode_error(error)) == ""
    assert encode_error(Boom("x"), text="") == encode_error(Boom("x"))
    assert recorded_text(None) == ""


def test_an_error_is_recorded_by_its_class_even_if_its_own_code_raises() -> None:
    for error in (Hostile(), ValueError(10**6000), ValueError("\ud800")):
        assert json.loads(encode_error(error))["name"] == type(error).__name__


async def test_steps_that_handled_an_error_are_forgotten_if_the_step_succeeds_on_resume(
    runtime: Runtime,
) -> None:
    failing, notifications = Failing(1), list[str]()

    @step
    async def fragile() -> int:
        return failing()

    @step
    async def notify(why: str) -> None:
        notifications.append(why)

    @flow
    async def body() -> int:
        try:
            return await fragile()
        except Boom as error:
            await gather(notify(str(error)), notify("all"))
            await notify("it is over")
            raise

    with pytest.raises(Boom):
        await runtime.run(body.options(run_id=ID))
    assert (await runtime.resume(ID, body)).value == 2
    assert notifications == ["no", "all", "it is over"]
    assert set((await recorded(runtime.store, ID)).steps) == {"fragile"}
