"""What the examples of one run share, and the workspaces of one example."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.environment.checkpoints import Checkpoint
from orchestrator.environment.files.base_listing import list_base
from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.files.manifest import Files
from orchestrator.environment.history import History
from orchestrator.environment.live_workspace import LiveWorkspace
from orchestrator.environment.position import Position
from orchestrator.environment.workspace import Workspace
from tests.unit.orchestrator.environment.modelling.operators import (
    Listing,
    Operator,
    OperatorServer,
)
from tests.unit.orchestrator.environment.modelling.sample_base import make_base


class World:
    """What all examples of a process share: a base, an operator for plain folders, a loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = folder / "base"
        self.base.mkdir()
        make_base(self.base, sealed=True)
        self.server = OperatorServer()
        self.plain = self.server.operator()
        self.runner = asyncio.Runner()
        self.listing = self.plain.list(str(self.base), key="base")
        self.identity = list_base(self.base).identity
        self.counts: Counter[str] = Counter()
        self.results: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.digests: dict[Any, str] = {}
        self.numbers = itertools.count()

    def close(self) -> None:
        self.plain.close()
        self.server.close()
        self.runner.close()
        remove_folder(self.folder)

    def count(self, name: str, result: object) -> None:
        outcome = "done" if result in (0, 1000) else f"{result}"
        if isinstance(result, int) and 0 < result < 1000:
            outcome = errno.errorcode.get(result, outcome)
        self.results[name][outcome] += 1


@dataclass(eq=False)
class Seat:
    """A workspace and the plain folder that must show the same.

    Attributes:
        mounted: what it shows, to see that something else was mounted.
        shell: what PROBE says in its shell.
        marks: checkpoints and the number of moments at each.
    """

    workspace: Workspace
    shadow: str
    origin: Seat | None = None
    operator: Operator | None = None
    sandbox: object = None
    mounted: int = 0
    listing: Listing = field(default_factory=dict)
    shell: tuple[str, str] = ("", "")
    marks: list[Checkpoint] = field(default_factory=list)

    @property
    def live(self) -> LiveWorkspace:
        return self.workspace.position.mounting.live

    @property
    def history(self) -> History:
        return self.workspace.position.history

    @property
    def place(self) -> str:
        """The folder in which its programs see it."""
        return self.live._tree.place

    @property
    def now_mounted(self) -> int:
        """Changes whenever it shows other files; 0 until `count_mounts` was called."""
        return getattr(self.live._tree, "mounted", 0)


class Origin:
    """Names forks; the rest of what a run does for workspaces is left out."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    async def begin(self, workspace: Workspace) -> NoReturn:
        raise NotImplementedError

    def register(self, position: Position) -> None: ...

    def free_names(self, origin: str, count: int) -> list[str]:
        return [f"{origin}.{next(self._numbers)}" for _ in range(count)]

    async def end(self, position: Position) -> None:
        await position.mounting.close()


_mounts = itertools.count(1)


def count_mounts(tree: Any) -> None:
    """Give a tree's present files, and those that it is to show later, a number each."""
    mount = tree.mount
    tree.mounted = next(_mounts)

    async def counted(files: Files, *, idle: Collection[int] = ()) -> None:
        await mount(files, idle=idle)
        tree.mounted = next(_mounts)

    tree.mount = counted
