"""Effects on the outside world travel with a workspace, whatever becomes of it and of its run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orchestrator import DeadlineExceeded, flow, gather, step, tool, within
from orchestrator.environment.beginning import workspace
from orchestrator.environment.errors import NotRevertible, WorkspaceBusy, WorkspaceClosed
from orchestrator.environment.workspace import Workspace, current_workspace
from tests.unit.orchestrator.environment.workspace_samples import (
    base_in,
    resumed_after_failing,
    runtime_in,
)
from tests.unit.orchestrator.orchestrator_samples import NEVER_S

pytestmark = pytest.mark.usefixtures("subprocesses", "own_states")


@tool(effects="external")
async def publish(what: str) -> None:
    """An effect that nothing takes back."""
    if what == "bad":
        raise ValueError(what)
    if what == "slowly":
        await asyncio.sleep(NEVER_S)


@tool(effects="env")
async def work_and_publish(ws: Workspace) -> None:
    await ws.write("x", "x")
    await publish("within")


async def test_an_effect_that_failed_is_none_live_and_in_a_resumed_run(tmp_path: Path) -> None:
    base, fails = base_in(tmp_path), [True]

    @flow
    async def body() -> str:
        async with workspace(base) as ws:
            start = await ws.checkpoint("start")
            with pytest.raises(ValueError, match="bad"):
                await publish("bad")
            await ws.rewind(start)
            if fails[0]:
                raise RuntimeError
            await ws.rewind("start")
            return ws.state

    await resumed_after_failing(tmp_path, body, fails)


async def test_an_adopted_fork_brings_the_effects_of_all_along(tmp_path: Path) -> None:
    async with workspace(base_in(tmp_path)) as ws:
        start = await ws.checkpoint("start")
        first, second = await ws.fork(2)
        await publish("by the origin")
        async with second:
            await publish("by a fork that ends")
        await first.write("x", "x")
        await ws.adopt(first)
        with pytest.raises(NotRevertible) as refused:
            await ws.rewind(start)
        assert [name for name, _ in refused.value.args[1]].count("publish") >= 1


async def test_an_effect_within_a_tool_counts_live_and_in_a_resumed_run(tmp_path: Path) -> None:
    base, fails = base_in(tmp_path), [True]

    @flow
    async def body() -> None:
        async with workspace(base) as ws:
            await ws.checkpoint("start")
            await work_and_publish()
            if fails[0]:
                raise RuntimeError
            with pytest.raises(NotRevertible, match="publish"):
                await ws.rewind("start")

    await resumed_after_failing(tmp_path, body, fails)
    async with runtime_in(tmp_path) as runtime:
        await runtime.run(body)


async def test_each_effect_is_taken_back_once_if_a_rewind_fails_half_way(tmp_path: Path) -> None:
    taken_back: list[str] = []

    async def undo(what: str) -> None:
        if what == "a" and "fails" not in taken_back:
            taken_back.append("fails")
            raise OSError("once")
        taken_back.append(what)

    @tool(effects="external", compensate=undo)
    async def send(what: str) -> None: ...

    base = base_in(tmp_path)

    @flow
    async def body() -> None:
        async with workspace(base) as ws:
            start = await ws.checkpoint("start")
            await send("a")
            await send("b")
            with pytest.raises(OSError, match="once"):
                await ws.rewind(start)
            await ws.rewind(start)

    async with runtime_in(tmp_path) as runtime:
        await runtime.run(body)
    assert taken_back == ["b", "fails", "a"]


async def test_checkpoints_of_a_step_that_is_replayed_whole_keep_their_names(
    tmp_path: Path,
) -> None:
    base, fails = base_in(tmp_path), [True]

    @step
    async def prepare() -> None:
        ws = current_workspace()
        assert ws is not None
        await ws.write("ready", "yes")
        await ws.checkpoint("ready")

    @flow
    async def body() -> str:
        async with workspace(base) as ws:
            await prepare()
            await ws.run("rm ready")
            if fails[0]:
                raise RuntimeError
            await ws.rewind("ready")
            return await ws.read("ready")

    assert (await resumed_after_failing(tmp_path, body, fails)).value == "yes"


async def test_workspaces_that_begin_side_by_side_have_names_of_their_own(tmp_path: Path) -> None:
    base = base_in(tmp_path)

    @flow
    async def body() -> list[str]:
        async def named() -> str:
            async with workspace(base) as ws:
                await ws.run("true")
                return ws.name

        return await gather(*(named() for _ in range(4)))

    async with runtime_in(tmp_path) as runtime:
        assert len(set((await runtime.run(body)).value)) == 4


async def test_tools_that_only_happen_beside_a_workspace_may_do_so_at_once(
    tmp_path: Path,
) -> None:
    base = base_in(tmp_path)

    @flow
    async def body() -> str:
        async with workspace(base) as ws:
            await gather(publish("a"), publish("b"), ws.run("sleep 0.1; echo x > x"))
            return await ws.read("x")

    async with runtime_in(tmp_path) as runtime:
        assert (await runtime.run(body)).value == "x\n"


async def test_a_cached_step_cannot_work_in_a_workspace(tmp_path: Path) -> None:
    base = base_in(tmp_path)

    @step(cache=True)
    async def cached(name: str) -> None:
        async with workspace(name) as ws:
            await ws.run("true")

    @flow
    async def body() -> None:
        await cached(str(base))

    async with runtime_in(tmp_path) as runtime:
        with pytest.raises(TypeError, match="step cached is cached"):
            await runtime.run(body)


async def test_an_ended_workspace_says_so(tmp_path: Path) -> None:
    async with workspace(base_in(tmp_path)) as ws:
        first, second = await ws.fork(2)
        await ws.adopt(first)
        with pytest.raises(WorkspaceClosed):
            await second.run("true")
    with pytest.raises(WorkspaceClosed):
        await ws.run("true")


async def test_a_fork_at_work_is_not_merged(tmp_path: Path) -> None:
    async with workspace(base_in(tmp_path)) as ws:
        [fork] = await ws.fork()
        running = asyncio.create_task(fork.run("sleep 0.3; echo 1 > new"))
        await asyncio.sleep(0.05)
        for take in (ws.merge, ws.adopt):
            with pytest.raises(WorkspaceBusy):
                await take(fork)
        await running
        await ws.merge(fork)
        assert await ws.read("new") == "1\n"


async def test_a_task_that_outlives_its_tool_is_no_part_of_the_next(tmp_path: Path) -> None:
    tasks: list[asyncio.Task[object]] = []

    @tool(effects="env")
    async def leaves_a_task(ws: Workspace) -> None:
        async def later() -> None:
            await asyncio.sleep(0.2)
            await ws.run("echo sneaky > sneaky")

        tasks.append(asyncio.create_task(later()))

    async with workspace(base_in(tmp_path)) as ws:
        await leaves_a_task(ws)
        await ws.run("sleep 0.5")
        with pytest.raises(WorkspaceBusy):
            await tasks[0]


async def test_a_rewind_past_an_apply_is_refused(tmp_path: Path) -> None:
    base = base_in(tmp_path, a="a")
    async with workspace(base) as ws:
        start = await ws.checkpoint("start")
        await ws.write("a", "b")
        await ws.apply()
        with pytest.raises(NotRevertible, match=r"ws\.apply"):
            await ws.rewind(start, allow=True)
        await ws.write("a", "c")
        await ws.discard()
        assert await ws.read("a") == "b"


async def test_an_effect_that_was_cut_off_may_have_happened_live_and_in_a_resumed_run(
    tmp_path: Path,
) -> None:
    base, fails = base_in(tmp_path), [True]

    @flow
    async def body() -> None:
        async with workspace(base) as ws:
            start = await ws.checkpoint("start")
            with pytest.raises(DeadlineExceeded):
                async with within("2s"):
                    await publish("slowly")
            if fails[0]:
                raise RuntimeError
            with pytest.raises(NotRevertible, match="publish"):
                await ws.rewind(start)
            await ws.rewind(start, allow=["publish"])

    await resumed_after_failing(tmp_path, body, fails)
    async with runtime_in(tmp_path) as runtime:
        await runtime.run(body)


async def test_what_a_step_did_before_it_was_cut_off_is_there_in_a_resumed_run(
    tmp_path: Path,
) -> None:
    base, fails = base_in(tmp_path), [True]

    @step
    async def work_on() -> None:
        ws = current_workspace()
        assert ws is not None
        await ws.write("done", "yes")
        await asyncio.sleep(NEVER_S)

    @flow
    async def body() -> str:
        async with workspace(base) as ws:
            with pytest.raises(DeadlineExceeded):
                async with within("2s"):
                    await work_on()
            if fails[0]:
                raise RuntimeError
            return await ws.read("done")

    assert (await resumed_after_failing(tmp_path, body, fails)).value == "yes"
