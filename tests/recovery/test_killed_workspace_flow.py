"""kill -9 at every write of a run that works in a workspace: the resumed run has the same result.

The flow mends a git repository and runs its tests. It is killed before and after each write of the
journal and each thing that a checkpoint stores: contents, the state's document, layers, mounts.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Settings, flow, open_runtime, tool
from orchestrator.environment.beginning import workspace
from orchestrator.environment.collection import collect, verify
from orchestrator.environment.files.blob_store import BlobStore
from orchestrator.environment.files.layer_stacks import LayerStacks
from orchestrator.environment.states.location import environments_place
from orchestrator.environment.states.managed_root import ManagedRoot
from orchestrator.environment.states.stored_states import States
from orchestrator.environment.trees.live_folder import LiveFolder
from orchestrator.environment.trees.overlay_tree import OverlayTree
from orchestrator.environment.workspace import Workspace
from orchestrator.testing import ScriptedEngine
from store.session import Store
from tests.recovery.test_killed_at_every_write import (
    RUN_ID,
    Outcome,
    in_a_process,
    publish_and_look,
    published,
)
from tests.unit.orchestrator.orchestrator_samples import store_url

pytestmark = [
    pytest.mark.usefixtures("subprocesses"),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]

PYTHON = Path(sys.executable).resolve()
"""Not the virtual environment's: a checkout may lie in /tmp, and a sandbox has one of its own."""

BROKEN = "def add(a, b):\n    return a - b\n"
TEST = """
import unittest
from adding import add

class Adding(unittest.TestCase):
    def test_it(self) -> None:
        self.assertEqual(add(2, 2), 4)
"""
PARTS = 10
"""Tests over which the moments of a kill are spread."""

_AUTHOR = [
    f"GIT_{role}_{what}"
    for role in ("AUTHOR", "COMMITTER")
    for what in ("NAME=a", "EMAIL=a@b.c", "DATE=@1 +0000")
]
GIT = ["env", "GIT_CONFIG_GLOBAL=/dev/null", *_AUTHOR, "git"]


@tool(effects="env")
async def run_tests(ws: Workspace) -> bool:
    return (await ws.run([str(PYTHON), "-B", "-m", "unittest", "-q"])).ok


@tool(effects="env")
async def edit(ws: Workspace) -> None:
    await ws.write("adding.py", BROKEN.replace("-", "+"))
    (
        await ws.shell("mkdir -p notes && cd notes && export STAGE=edited && echo mended > note")
    ).check()


@tool(effects="env")
async def commit(ws: Workspace, message: str) -> str:
    git = shlex.join(GIT)
    command = f"{git} add -A && {git} commit -q -m {message} && {git} rev-parse HEAD"
    return (await ws.run(command)).check().stdout


@tool(effects="env")
async def look(ws: Workspace) -> list[str]:
    """All files but the index, which holds times, and the shell's folder and variable."""
    command = "find . -type f ! -path ./.git/index | LC_ALL=C sort | xargs md5sum"
    files = (await ws.run(command)).check().stdout.splitlines()
    return [*files, (await ws.shell('basename "$PWD"; echo $STAGE')).check().stdout]


@flow
async def mend(base: str, folder: str) -> list[Any]:
    async with workspace(base) as ws:
        results: list[Any] = [await run_tests()]
        start = await ws.checkpoint("start")
        await ws.run("rm adding.py")
        await ws.rewind(start)
        await edit()
        [fork] = await ws.fork()
        async with fork:
            results.append(await run_tests(fork))
        results.append(await publish_and_look(folder, "mended"))
        results.append(await commit(message="mended"))
        return [*results, await look()]


class Boundaries:
    """Counts the moments between two writes, and kills this process at one of them."""

    def __init__(self, kill_at: int | None, patch: pytest.MonkeyPatch) -> None:
        self._kill_at, self._patch = kill_at, patch
        self.count = 0

    def reach(self) -> None:
        if self.count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def around(self, owner: type, name: str) -> None:
        """Before and after each call of a function."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self._watched():
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def watched_async(*args: Any, **kwargs: Any) -> Any:
            with self._watched():
                return await function(*args, **kwargs)

        is_async = asyncio.iscoroutinefunction(function)
        self._patch.setattr(owner, name, watched_async if is_async else watched)

    def around_transactions(self, store: Store) -> None:
        transaction = store.transaction

        @asynccontextmanager
        async def watched(**options: Any) -> AsyncIterator[Any]:
            with self._watched():
                async with transaction(**options) as tx:
                    yield tx

        setattr(store, "transaction", watched)  # noqa: B010 - of this instance only

    @contextmanager
    def _watched(self) -> Iterator[None]:
        self.reach()
        yield
        self.reach()


async def run_once(folder: Path, base: Path, kill_at: int | None) -> Outcome:
    """Start or resume the run."""
    settings = Settings(store=store_url(folder), fit_every=0)
    with pytest.MonkeyPatch.context() as patch:
        boundaries = Boundaries(kill_at, patch)
        boundaries.around(BlobStore, "_rename")
        boundaries.around(States, "_write")
        boundaries.around(LayerStacks, "_put")
        boundaries.around(OverlayTree, "mount")
        boundaries.around(LiveFolder, "use_states")
        async with open_runtime(settings, engine=ScriptedEngine(lambda _: "")) as runtime:
            boundaries.around_transactions(runtime.store)
            result = await runtime.run(mend.options(run_id=RUN_ID), str(base), str(folder))
            return {"value": result.value, "boundaries": boundaries.count}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    base = tmp_path / "repository"
    base.mkdir()
    (base / "adding.py").write_text(BROKEN)
    (base / "test_adding.py").write_text(TEST)
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "broken"]):
        subprocess.run([*GIT, *arguments], cwd=base, check=True)
    return base


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_run_in_a_workspace_that_is_killed_at_any_write_has_the_same_result_when_resumed(
    tmp_path: Path, repository: Path, part: int
) -> None:
    def once(folder: Path, kill_at: int | None = None) -> Outcome | None:
        folder.mkdir(exist_ok=True)
        return in_a_process(lambda: asyncio.run(run_once(folder, repository, kill_at)))

    # In this process: what a first run has to build once is there for all its forks.
    whole = tmp_path / "whole"
    whole.mkdir()
    uninterrupted = asyncio.run(run_once(whole, repository, None))
    before, after, reply, head, shown = uninterrupted["value"]
    assert (before, after, reply) == (False, True, "published mended")
    assert shown[-1] == "notes\nedited\n"
    assert len(head.strip()) == 40
    assert uninterrupted["boundaries"] > 100
    for number in range(part, uninterrupted["boundaries"], PARTS):
        folder = tmp_path / str(number)
        assert once(folder, number) is None
        resumed = once(folder)
        assert resumed is not None
        assert resumed["value"] == uninterrupted["value"], number
        assert published(str(folder)) == ["mended"]
        root = ManagedRoot(environments_place(store_url(folder)).root)
        collect(root, keep=States(root).all(), grace_s=0, now=datetime.now(UTC))
        assert list(root.live.iterdir()) == []
        assert not verify(root, named=()).lost
        shutil.rmtree(folder)
