"""Processes of a sandbox: frozen, killed and listed, also those that begin meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from orchestrator.environment.sandbox import process_tree
from orchestrator.environment.sandbox.messages import Kind
from orchestrator.environment.trees.tree import Tree
from tests.places import ROOT
from tests.unit.orchestrator.environment.conftest import Place, ran, said

KINDS: list[Kind] = ["namespaces", "landlock"]
both = pytest.mark.parametrize("kind", KINDS)

RESPAWNS = "f() { echo $RANDOM > out.$((RANDOM % 50)); (f &) ; }; f & f & f &"
"""Processes that begin others and end at once: orphans, all of them."""


async def written(tree: Tree) -> dict[str, str]:
    """What the files of the workspace hold now."""
    found = {}
    for name in [f"out.{number}" for number in range(50)]:
        with contextlib.suppress(FileNotFoundError):
            descriptor = await tree.sandbox.open(name, os.O_RDONLY, 0)
            with open(descriptor) as file:
                found[name] = file.read()
    return found


@both
async def test_a_program_writes_the_workspace_and_a_temporary_folder(
    place: Place, kind: Kind
) -> None:
    async with place.tree(kind) as tree, place.shell(tree) as shell:
        await said(shell, "echo inside > file; echo t > ${TMPDIR:-/tmp}/of-the-sandbox")
        code, _ = await ran(shell, "touch /usr/bin/of-the-sandbox")
        assert code == 1
        assert await said(shell, "cat file ${TMPDIR:-/tmp}/of-the-sandbox") == "inside\nt\n"
    assert not Path("/tmp/of-the-sandbox").exists()
    assert list(place.base.iterdir()) == []


async def test_with_namespaces_it_sees_none_of_our_processes(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        assert int(await said(shell, "ls /proc | grep -c '^[0-9]'")) < 8
        devices = (await said(shell, "tail -n +3 /proc/net/dev")).splitlines()
        assert {line.split(":")[0].strip() for line in devices} == {"lo"}


@both
async def test_a_program_that_is_killed_takes_all_its_descendants_along(
    place: Place, kind: Kind
) -> None:
    async with place.tree(kind) as tree, place.shell(tree) as shell:
        running = asyncio.create_task(
            ran(shell, "setsid sleep 1000 & (setsid sleep 1000 &) ; sleep 1000")
        )
        async with asyncio.timeout(30):
            while sum("sleep" in each.command for each in await tree.sandbox.processes()) < 3:
                await asyncio.sleep(0.01)
        await shell.close()
        assert await tree.sandbox.processes() == []
        running.cancel()
        with contextlib.suppress(BaseException):
            await running


@both
async def test_orphans_that_begin_others_are_frozen_and_killed(place: Place, kind: Kind) -> None:
    async with place.tree(kind) as tree, place.shell(tree) as shell:
        await said(shell, RESPAWNS)
        async with asyncio.timeout(30):
            while len(await written(tree)) < 10:
                await asyncio.sleep(0.01)
        for _ in range(10):
            frozen = await tree.sandbox.freeze()
            assert frozen.is_any_stopped
            before = await written(tree)
            await asyncio.sleep(0.03)
            assert await written(tree) == before
            await tree.sandbox.thaw()
            async with asyncio.timeout(30):
                while await written(tree) == before:
                    await asyncio.sleep(0.005)
        await shell.close()
        assert await tree.sandbox.processes() == []


@both
async def test_an_idle_shell_is_not_stopped_and_a_busy_one_is(place: Place, kind: Kind) -> None:
    async with place.tree(kind) as tree, place.shell(tree) as shell:
        frozen = await tree.sandbox.freeze(idle=[shell.program])
        assert (frozen.is_any_stopped, list(frozen.writers)) == (False, [])
        assert await said(shell, "echo goes on") == "goes on\n"
        await said(shell, "sleep 1000 & :")
        assert (await tree.sandbox.freeze(idle=[shell.program])).is_any_stopped
        answer = asyncio.create_task(said(shell, "echo late"))
        await asyncio.sleep(0.05)
        assert not answer.done()
        await tree.sandbox.thaw()
        assert await answer == "late\n"


@both
async def test_what_was_stopped_before_stays_so(place: Place, kind: Kind) -> None:
    async with place.tree(kind) as tree, place.shell(tree) as shell:
        for _ in range(20):
            await said(shell, "sleep 1000 & kill -STOP $!; echo $! > stopped")
            await tree.sandbox.freeze()
            await tree.sandbox.thaw()
            assert (await said(shell, "cut -d ' ' -f 3 /proc/$(cat stopped)/stat")) == "T\n"
            await said(shell, "kill -KILL $(cat stopped)")


VFORKS = """
import os
os.mkfifo("fifo")
open("ready", "w").close()
actions = [(os.POSIX_SPAWN_OPEN, 0, "fifo", os.O_RDONLY, 0)]
os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=actions), 0)
open("done", "w").close()
"""


@both
async def test_a_program_that_waits_in_vfork_is_frozen(place: Place, kind: Kind) -> None:
    """It does not count as stopped until its child executes something, and that is stopped."""
    (place.base / "vforks.py").write_text(VFORKS)
    async with place.tree(kind) as tree, place.shell(tree) as shell:
        await said(shell, "python3 vforks.py & while ! test -e ready; do sleep 0.01; done")
        await said(shell, "while ! grep -q 'State:.D' /proc/$!/status; do sleep 0.01; done")
        async with asyncio.timeout(5):
            assert (await tree.sandbox.freeze()).is_any_stopped
        await tree.sandbox.thaw()
        await said(shell, ": > fifo; wait; test -e done")


def below(branch: int, but: Sequence[int] = ()) -> list[process_tree.Process]:
    """The processes below one child of this process; a zygote of other tests is another one."""
    found = process_tree.descendants(os.getpid(), but=but).processes
    return sorted(each for each in found if each.branch == branch)


def test_descendants_are_found_without_lists_of_children(
    subprocesses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In kernels without CONFIG_PROC_CHILDREN."""
    script = "sleep 1000 & (sleep 1000 & sleep 1000) & wait"
    with subprocess.Popen(["bash", "-c", script], process_group=0) as started:
        try:
            found = []
            end = time.monotonic() + 30
            while len(found) < 5 and time.monotonic() < end:
                found = below(started.pid)
            monkeypatch.setattr(process_tree, "_lists_children", lambda: False)
            again = below(started.pid)
            assert [each.id for each in again] == [each.id for each in found]
            assert len(found) == 5
            assert len(below(started.pid, but=[started.pid])) == 4
        finally:
            os.killpg(started.pid, signal.SIGKILL)


DIES = """
import asyncio, sys
from pathlib import Path
from tests.unit.orchestrator.environment.conftest import Place, Zygote, said

async def main(folder, kind):
    zygote = Zygote()
    place = Place(folder, zygote)
    async with place.tree(kind) as tree, place.shell(tree) as shell:
        await said(shell, "setsid sleep 4711.5 & (setsid sleep 4711.5 &); echo up")
        print("up", zygote._process.pid, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@both
@pytest.mark.parametrize("victim", ["ours", "zygote", "first"])
async def test_kill_9_of_any_of_our_processes_ends_all_of_a_sandbox(
    place: Place, kind: Kind, victim: str
) -> None:
    async with place.tree(kind):
        pass  # skips where sandboxes are refused
    process = subprocess.Popen(
        [sys.executable, "-c", DIES, str(place.folder), kind],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    with process.stdout:
        up, zygote = process.stdout.readline().split()
        assert up == b"up"
        await _until(lambda: _running("sleep\0004711.5"))
        first = process_tree.descendants(int(zygote)).processes[0].id
        os.kill(
            {"ours": process.pid, "zygote": int(zygote), "first": first}[victim], signal.SIGKILL
        )
        await _until(lambda: not _running("sleep\0004711.5"))
        process.kill()
        process.wait()
    assert str(place.base) not in Path("/proc/self/mounts").read_text()


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


def _running(command: str) -> bool:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if command.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    return True
    return False
