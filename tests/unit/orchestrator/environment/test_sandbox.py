"""What programs in a sandbox can and cannot do, on real namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.environment.trees.overlay_tree import WorkspaceBusy
from tests.places import ROOT
from tests.unit.orchestrator.environment.conftest import Place, ran, said


async def test_a_program_writes_the_workspace_and_its_own_tmp_only(place: Place) -> None:
    outside = place.folder / "outside"
    outside.mkdir()
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "echo inside > file; echo t > /tmp/of-the-sandbox")
        code, _ = await ran(shell, "touch /usr/bin/of-the-sandbox")
        assert code == 1
        assert await said(shell, "cat file /tmp/of-the-sandbox") == "inside\nt\n"
    assert not Path("/tmp/of-the-sandbox").exists()
    assert list(place.base.iterdir()) == []
    assert list(outside.iterdir()) == []


async def test_a_program_has_no_capabilities_and_gets_none(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        status = await said(shell, "cat /proc/self/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert {fields[f"Cap{kind}"] for kind in ("Eff", "Prm", "Bnd", "Inh", "Amb")} == {"0" * 16}
        assert fields["NoNewPrivs"] == "1"
        for command in ("mount -t tmpfs none /mnt", "unshare -Urm true", "umount /proc"):
            code, _ = await ran(shell, command)
            assert code != 0, command


async def test_it_sees_neither_our_processes_nor_the_managed_folder(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        assert int(await said(shell, "ls /proc | grep -c '^[0-9]'")) < 8
        code, _ = await ran(shell, f"ls {place.root.path}/live")
        assert code != 0


async def test_hidden_folders_are_not_read(tmp_path: Path, place: Place) -> None:
    secret = Path(__file__).parent  # outside of /tmp, of which the sandbox has its own
    async with place.tree(hide=(str(secret),)) as tree, place.shell(tree) as shell:
        code, _ = await ran(shell, f"cat {secret}/*.py")
        assert code != 0


@pytest.mark.parametrize("network", [False, True])
async def test_without_network_there_is_only_loopback(place: Place, network: bool) -> None:
    async with place.tree(network=network) as tree, place.shell(tree) as shell:
        devices = (await said(shell, "tail -n +3 /proc/net/dev")).splitlines()
        names = {line.split(":")[0].strip() for line in devices}
        assert "lo" in names
        assert (names == {"lo"}) or network


async def test_a_program_that_is_killed_takes_all_its_descendants_along(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        running = asyncio.create_task(
            ran(shell, "setsid sleep 1000 & (setsid sleep 1000 &) ; sleep 1000")
        )
        async with asyncio.timeout(30):
            while sum("sleep" in each for _, each in await tree.sandbox.processes()) < 3:
                await asyncio.sleep(0.01)
        await shell.close()
        assert not any("sleep" in command for _, command in await tree.sandbox.processes())
        running.cancel()
        with contextlib.suppress(BaseException):
            await running


async def test_frozen_processes_do_nothing(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "(while :; do date +%s%N > now; done) >/dev/null 2>&1 & :")
        await tree.sandbox.freeze()
        now = tree.upper_folder / "now"
        before = now.stat().st_mtime_ns if now.exists() else 0
        await asyncio.sleep(0.2)
        assert (now.stat().st_mtime_ns if now.exists() else 0) == before
        await tree.sandbox.thaw()
        async with asyncio.timeout(30):
            while not now.exists() or now.stat().st_mtime_ns == before:
                await asyncio.sleep(0.01)


async def test_a_file_that_is_open_for_writing_keeps_a_workspace_from_being_sealed(
    place: Place,
) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "exec 7> held")
        with pytest.raises(WorkspaceBusy, match=r"writes .*/held: end it"):
            await tree.seal()
        assert tree.layers == ()
        await said(shell, "exec 7>&-; echo still > held")
        await tree.seal()
        assert await said(shell, 'cd "$PWD"; cat held') == "still\n"


DIES = """
import asyncio, sys
from pathlib import Path
from orchestrator.environment.trees.overlay_tree import ManagedRoot, OverlayTree
from orchestrator.environment.trees.sandbox_client import Zygote
from orchestrator.environment.trees.shell import Output, Shell

async def main(folder):
    tree = OverlayTree(ManagedRoot(folder / "root"), folder / "base", network=False, hide=())
    await tree.open(Zygote(), [])
    shell = Shell(tree.sandbox)
    await shell.start(folder=str(folder / "base"), variables={"PATH": "/usr/bin:/bin"}, limits={})
    await shell.run("setsid sleep 4711.5 & echo up", Output(100))
    print("up", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_kill_9_of_our_process_ends_all_sandboxes(place: Place) -> None:
    async with place.tree():
        pass  # skips where sandboxes are refused
    process = subprocess.Popen(
        [sys.executable, "-c", DIES, str(place.folder)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"up\n"
        await _until(lambda: _running("sleep\0004711.5"))
        process.send_signal(signal.SIGKILL)
        process.wait()
    await _until(lambda: not _running("sleep\0004711.5"))
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
