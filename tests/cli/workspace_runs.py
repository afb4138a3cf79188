"""Runs that work in real workspaces, recorded in a store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import flow, open_runtime, workspace
from orchestrator.environment.errors import SandboxFailed
from orchestrator.settings import Settings
from orchestrator.testing import ScriptedEngine

RUN = "3f2a9c1b77de"


@flow
async def edit(folder: str) -> str:
    """Changes, adds and deletes files; a fork adds one more."""
    async with workspace(folder) as ws:
        await ws.checkpoint("start")
        await ws.write("a.txt", "one\n2\nthree\n")
        await ws.checkpoint("half way")
        await ws.run("rm old; printf new > 'new file'; chmod 755 tool; mkdir d; echo hi > d/x")
        (fork,) = await ws.fork()
        await fork.write("fork.txt", "of the fork\n")
        await ws.shell("cd d; export QUESTION=42")
    return "done"


@flow
async def edit_and_apply(folder: str) -> str:
    """Writes its changes to the folder itself."""
    async with workspace(folder) as ws:
        await ws.run("rm old; echo 2 > a.txt")
        await ws.apply()
    return "done"


@flow
async def interrupted(folder: str) -> str:
    """Fails after an action."""
    async with workspace(folder) as ws:
        await ws.run("echo 2 > a.txt")
        if "GO_ON" not in os.environ:
            raise RuntimeError("interrupted here")
        await ws.run("cat a.txt")
    return "done"


@flow
async def nothing() -> str:
    """Has no workspace."""
    return "done"


def new_base(folder: Path) -> Path:
    """A folder with the files that `edit` changes."""
    base = folder / "base"
    base.mkdir()
    (base / "a.txt").write_text("one\ntwo\nthree\n")
    (base / "old").write_text("x\n")
    (base / "tool").write_text("#!/bin/sh\n")
    (base / "tool").chmod(0o644)
    return base


def record_run(
    url: str, of: Callable[..., Any], *arguments: str, run_id: str = RUN, **settings: Any
) -> None:
    """Execute a flow; its runs, states and contents are where the commands look for them."""

    async def run() -> None:
        options = of.options(run_id=run_id)  # type: ignore[attr-defined]
        engine = ScriptedEngine(lambda *_: "word")
        async with open_runtime(Settings(store=url, **settings), engine=engine) as runtime:
            await runtime.run(options, *arguments)

    try:
        asyncio.run(run())
    except SandboxFailed as error:
        pytest.skip(f"this system refuses sandboxes: {error}")
