"""Tries workspaces on this machine: which backends work, what each costs, what is not confined."""

from __future__ import annotations

import asyncio
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.environment.environments import Backend
    from orchestrator.settings import Settings

BACKENDS: tuple[Backend, ...] = ("overlay", "copies")
"""The better one first."""

_ROUNDS = 3
_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds of each operation, on a tree of one file."""

    open_ms: float
    fork_ms: float
    checkpoint_ms: float
    rewind_ms: float


@dataclass(frozen=True, slots=True)
class BackendTrial:
    """What became of a trial of one backend.

    Attributes:
        costs: None: it does not work.
        problem: why not.
        gaps: what it does not confine here, in words.
    """

    costs: Costs | None = None
    problem: str = ""
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkspaceFacts:
    """How workspaces do on this machine.

    Attributes:
        root: where their states lie, or would lie.
        file_system: the type of the file system there; "" if it is not known.
        trials: by backend.
    """

    root: Path
    file_system: str
    trials: Mapping[Backend, BackendTrial]


def states_folder(settings: Settings) -> Path:
    """Where the states of the store lie, or would lie."""
    from orchestrator.environment.states.location import environments_place
    from orchestrator.settings import default_store
    from store.errors import StoreError

    try:
        return environments_place(settings.store, settings.environments).root
    except StoreError:  # the store's own check says it
        return environments_place(default_store()).root


def try_workspaces(settings: Settings) -> WorkspaceFacts:
    """Try each backend on a tiny tree, on the file system of the states; leaves nothing there."""
    root = states_folder(settings)
    place = nearest_folder(root)
    trials = {backend: _tried(place, backend) for backend in BACKENDS}
    return WorkspaceFacts(root, file_system_of(place), trials)


def nearest_folder(place: Path) -> Path:
    """A folder, or if it does not exist the one in which it would be made."""
    place = place.absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    return place


def file_system_of(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of a folder's file system, such as "ext4"; "" if it is not known."""
    best, kind = "", ""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split(" ")[4])
        is_around = folder == Path(point) or Path(point) in folder.parents
        if is_around and len(point) >= len(best):
            best, kind = point, after.split(" ")[0]
    return kind


def _tried(place: Path, backend: Backend) -> BackendTrial:
    from orchestrator.environment.errors import SandboxFailed
    from orchestrator.environment.files.layer_building import remove_folder

    try:
        folder = Path(tempfile.mkdtemp(prefix=".orchestrate-doctor-", dir=place))
    except OSError as error:
        return BackendTrial(problem=f"{place} cannot be written: {error.strerror}")
    try:
        return asyncio.run(asyncio.wait_for(_trial(folder, backend), _TIMEOUT_S))
    except SandboxFailed as error:
        return BackendTrial(problem=str(error))
    except TimeoutError:
        return BackendTrial(problem=f"it takes longer than {_TIMEOUT_S:.0f} s")
    except OSError as error:
        return BackendTrial(problem=f"{type(error).__name__}: {error}")
    finally:
        with suppress(OSError):
            remove_folder(folder)


async def _trial(folder: Path, backend: Backend) -> BackendTrial:
    from orchestrator.environment.environments import Environments, WorkspaceKind
    from orchestrator.environment.files.base_listing import list_base
    from orchestrator.environment.states.stored_states import Base
    from orchestrator.environment.trees.enforcement import GAPS
    from orchestrator.environment.trees.sandbox_client import shared_zygote

    base, root = folder / "base", folder / "root"
    for each in (base, root):
        each.mkdir()
    (base / "file").write_text("0\n")
    shared_zygote()  # takes 0.1 s, once in each process
    home = Environments(root)
    kind = WorkspaceKind(str(base), backend=backend)
    first = home.states.add(Base(str(base), list_base(base).identity), {})
    times: dict[str, list[float]] = {"open": [], "fork": [], "checkpoint": [], "rewind": []}
    gaps: tuple[str, ...] = ()
    for number in range(_ROUNDS):
        with _timed(times["open"]):
            live = await home.open(kind, first)
        try:
            gaps = tuple(GAPS[each] for each in live.enforcement.not_enforced)
            (await live.run(f"echo {number} > file")).check()
            with _timed(times["checkpoint"]):
                state = await live.capture()
            with _timed(times["fork"]):
                fork = await home.open(kind, state)
            await fork.close()
            with _timed(times["rewind"]):
                await live.show(first)
        finally:
            await live.close()
    await home.close()
    medians = {f"{name}_ms": statistics.median(each) for name, each in times.items()}
    return BackendTrial(Costs(**medians), gaps=gaps)


@contextmanager
def _timed(times_ms: list[float]) -> Iterator[None]:
    began_s = time.monotonic()
    yield
    times_ms.append((time.monotonic() - began_s) * 1000)
