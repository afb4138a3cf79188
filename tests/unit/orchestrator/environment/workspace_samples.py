"""Flows in workspaces, on scripted engines and real sandboxes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from orchestrator import Flow, Runtime
from orchestrator.environment.beginning import workspace
from orchestrator.environment.environments import Backend
from orchestrator.environment.errors import SandboxFailed
from orchestrator.environment.workspace import Workspace
from orchestrator.runtime.results import RunResult
from store.records import StepRecord
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime

T = TypeVar("T")


@asynccontextmanager
async def runtime_in(folder: Path) -> AsyncIterator[Runtime]:
    """A runtime with a store in the folder, and the states of workspaces beside it."""
    async with scripted_runtime(folder) as runtime:
        yield runtime


async def steps_of(folder: Path, run_id: str) -> list[StepRecord]:
    """The recorded steps of a run."""
    async with scripted_runtime(folder) as runtime, runtime.store.reading() as tx:
        return list(await tx.journal.of_run(run_id))


def base_in(folder: Path, **files: str) -> Path:
    """A new base with text files."""
    base = folder / "base"
    base.mkdir()
    for name, text in files.items():
        (base / name).write_text(text)
    return base


async def require_backend(folder: Path, backend: Backend) -> None:
    """Skip the test where this system refuses the backend."""
    base = folder / "probe"
    base.mkdir()
    try:
        async with workspace(base, backend=backend) as ws:
            await ws.run("true")
    except SandboxFailed as error:
        pytest.skip(f"this system refuses {backend}: {error}")


async def files_of(ws: Workspace) -> dict[str, str]:
    """The names and texts of the files in a workspace."""
    names = (await ws.run("find . -type f | sort")).stdout.split()
    return {name[2:]: await ws.read(name) for name in names}


async def resumed_after_failing(folder: Path, body: Flow[[], T], fails: list[bool]) -> RunResult[T]:
    """Run a flow that raises RuntimeError, and resume it in another runtime without that.

    Args:
        fails: its only item says whether the flow raises.
    """
    async with runtime_in(folder) as runtime:
        with pytest.raises(RuntimeError):
            await runtime.run(body.options(run_id="r"))
    fails[0] = False
    async with runtime_in(folder) as runtime:
        return await runtime.resume("r", body)
