"""Sandboxes, shells and programs that were killed: clear errors, no hang, nothing left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.environment import environments
from orchestrator.environment.beginning import workspace
from orchestrator.environment.errors import SandboxFailed
from orchestrator.environment.trees.sandbox_client import Zygote, shared_zygote
from orchestrator.environment.trees.tree import WorkspaceLimits
from orchestrator.environment.workspace import Workspace

pytestmark = pytest.mark.usefixtures("subprocesses")

WRITES = "(while :; do mkdir -p d$RANDOM/x; : > f$RANDOM; done) > /dev/null 2>&1 &"


@pytest.fixture
async def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workspace]:
    monkeypatch.setenv("ORCHESTRATE_STORE", f"sqlite:///{tmp_path}/runs.db")
    (tmp_path / "base").mkdir()
    async with workspace(tmp_path / "base") as ws:
        try:
            await ws.write("kept", "kept")
        except SandboxFailed as error:
            pytest.skip(f"this system refuses sandboxes: {error}")
        yield ws
    assert list((tmp_path / "runs.environments" / "live").iterdir()) == []


def kill_zygote() -> None:
    process = shared_zygote()._process
    process.kill()
    process.wait()


async def test_an_action_fails_when_its_sandbox_is_killed_and_the_next_one_has_a_new_sandbox(
    ws: Workspace,
) -> None:
    working = asyncio.ensure_future(ws.shell("echo half > kept; sleep 60"))
    await asyncio.sleep(0.1)
    kill_zygote()
    with pytest.raises(SandboxFailed):
        await working
    assert await ws.read("kept") == "kept"
    assert (await ws.shell("cat kept")).stdout == "kept"


async def test_forks_do_not_fail_because_waiting_sandboxes_were_killed(ws: Workspace) -> None:
    forks = await ws.fork(3)
    await asyncio.sleep(0.3)  # the sandboxes wait
    kill_zygote()
    assert [await fork.read("kept") for fork in forks] == ["kept"] * 3


async def test_a_shell_that_was_killed_between_commands_is_replaced(ws: Workspace) -> None:
    await ws.shell("cd /; (sleep 0.1; kill -9 $$) > /dev/null 2>&1 &")
    while not ws.position.mounting.live._shell.has_exited:
        await asyncio.sleep(0.01)
    assert (await ws.shell("pwd", timeout="20s")).exit_code == 137
    assert (await ws.shell("pwd", timeout="20s")).stdout == "/\n"


async def test_a_shell_that_has_ended_by_itself_within_an_action_is_as_before_it(
    ws: Workspace,
) -> None:
    await ws.shell("cd /")
    live = ws.position.mounting.live
    await live.run_in_shell("cd /usr; (sleep 0.05; kill -9 $$) > /dev/null 2>&1 &")
    while not live._shell.has_exited:
        await asyncio.sleep(0.01)
    await live.capture()
    assert (await ws.shell("pwd")).stdout == "/\n"


async def test_a_system_that_allows_overlays_keeps_them_when_the_first_sandbox_was_killed(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = ws.position.mounting.home
    kind, state = ws.position.mounting.kind, home.states.get(ws.state)
    home._backends.clear()
    dead = Zygote()
    dead._process.kill()
    dead._process.wait()
    with monkeypatch.context() as patch:
        patch.setattr(environments, "shared_zygote", lambda: dead)
        with pytest.raises(SandboxFailed, match="has died"):
            await home.open(kind, state)
    dead.close()
    live = await home.open(kind, state)
    await live.close()
    assert home._backends == {kind: "overlay"}


async def test_a_shell_that_cannot_begin_is_named(tmp_path: Path, ws: Workspace) -> None:
    async with workspace(
        tmp_path / "base", limits=WorkspaceLimits(memory_bytes=1 << 20)
    ) as limited:
        with pytest.raises(SandboxFailed, match="bash ended at once"):
            await limited.run("true")


async def test_a_rewind_and_an_end_do_not_wait_for_programs_that_go_on_writing(
    ws: Workspace,
) -> None:
    start = await ws.checkpoint("start")
    for _ in range(2):
        await ws.shell(WRITES)
        await ws.run("sleep 0.05")
        await ws.rewind(start)
    assert (await ws.run("ls")).stdout == "kept\n"
    await ws.shell(WRITES)


async def test_a_program_whose_start_was_cut_off_does_not_run_on(ws: Workspace) -> None:
    live = ws.position.mounting.live
    starting = asyncio.ensure_future(live.run("sleep 60"))
    await asyncio.sleep(0)  # the order is sent
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.sleep(0.3)  # else it may not have begun
    while await live.busy():
        await asyncio.sleep(0.01)
    assert (await ws.run("cat kept")).stdout == "kept"


async def test_a_sandbox_whose_first_process_is_killed_leaves_no_descriptor_open(
    ws: Workspace,
) -> None:
    async def killed() -> None:
        [outer] = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
        os.kill(int(outer), signal.SIGKILL)
        with pytest.raises(SandboxFailed):
            await ws.run("true")
        await ws.run("true")

    zygote = shared_zygote()._process.pid
    await ws.run("true")
    await killed()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await killed()
    assert len(os.listdir("/proc/self/fd")) <= before
