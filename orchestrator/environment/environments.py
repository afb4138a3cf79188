"""Opens workspaces: from waiting sandboxes, or in new ones."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.environment.errors import SandboxFailed, StateLost
from orchestrator.environment.files.base_folder import BaseFolder
from orchestrator.environment.files.layer_stacks import LayerStacks
from orchestrator.environment.files.manifest import Files
from orchestrator.environment.live_workspace import LiveWorkspace, variables_passed_on
from orchestrator.environment.managed_root import ManagedRoot
from orchestrator.environment.states import State, States
from orchestrator.environment.trees.live_folder import LiveFolder
from orchestrator.environment.trees.overlay_tree import OverlayTree
from orchestrator.environment.trees.sandbox_client import shared_zygote
from orchestrator.environment.trees.shell import Shell
from orchestrator.environment.trees.tree import Confinement, Tree

_MOST_WAITING = 8
"""Waiting sandboxes for one kind of workspace; each takes about 3 MB."""


@dataclass(frozen=True)
class WorkspaceKind:
    """What forks of one workspace have in common.

    Attributes:
        own: folders that each copies whole when it begins, so that they can be renamed.
    """

    base: str
    confinement: Confinement = field(default_factory=Confinement)
    own: tuple[str, ...] = ()


@dataclass(slots=True)
class _Waiting:
    """A mounted tree with a shell that has done nothing."""

    folder: LiveFolder
    tree: Tree
    shell: Shell

    async def close(self) -> None:
        """End it."""
        self.shell.abandon()
        await self.tree.close()


class Environments:
    """All open workspaces of one managed root, in one event loop."""

    def __init__(self, root: Path, *, durable: bool = False) -> None:
        self.root = ManagedRoot(root)
        self.states = States(self.root, durable=durable)
        self._bases: dict[str, BaseFolder] = {}
        self._stacks: dict[str, LayerStacks] = {}
        self._waiting: dict[WorkspaceKind, list[asyncio.Task[_Waiting]]] = {}

    def base_folder(self, path: str) -> BaseFolder:
        """A base, with what was read of it so far."""
        return self._bases.setdefault(path, BaseFolder(Path(path)))

    async def open(self, kind: WorkspaceKind, state: State) -> LiveWorkspace:
        """A workspace that shows a state.

        Raises:
            StateLost: a part of the state is not stored.
            SandboxFailed: the system refuses a sandbox.
            ServiceFailed: a service of the state could not be started.
        """
        files = self.states.files(state)
        try:
            held = await self._mounted(kind, files) or await self._prepare(kind, files)
        except FileNotFoundError as error:
            raise StateLost(state.id, f"{error.filename} is missing") from None
        live = LiveWorkspace(
            held.tree,
            held.shell,
            folder=held.folder,
            states=self.states,
            confinement=kind.confinement,
            own=kind.own,
        )
        try:
            await live.begin(state)
        except BaseException:
            await live.close()
            raise
        return live

    def expect(self, kind: WorkspaceKind, count: int) -> None:
        """Have up to so many sandboxes waiting for workspaces of a kind, started from now on."""
        waiting = self._waiting.setdefault(kind, [])
        while len(waiting) < min(count, _MOST_WAITING):
            waiting.append(asyncio.create_task(self._prepare(kind, Files("", {}))))

    async def close(self) -> None:
        """End waiting sandboxes."""
        waiting = [task for tasks in self._waiting.values() for task in tasks]
        self._waiting.clear()
        for held in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(held, _Waiting):
                await held.close()

    async def _mounted(self, kind: WorkspaceKind, files: Files) -> _Waiting | None:
        """A waiting sandbox that shows files now; None: none is alive."""
        waiting = self._waiting.setdefault(kind, [])
        while waiting:
            with suppress(SandboxFailed):  # it was killed while it waited
                held = await waiting.pop(0)
                try:
                    await held.tree.mount(files)
                except BaseException:
                    await held.close()
                    raise
                return held
        return None

    async def _prepare(self, kind: WorkspaceKind, files: Files) -> _Waiting:
        base = self.base_folder(kind.base)
        stacks = LayerStacks(self.root.layers, self.root.blobs, base)
        stacks = self._stacks.setdefault(kind.base, stacks)
        folder = LiveFolder(self.root)
        tree = OverlayTree(folder, base, stacks, kind.confinement)
        try:
            await tree.open(shared_zygote(), files)
            shell = Shell(tree.sandbox)
            limits = kind.confinement.limits.of_program()
            await shell.start(folder="/", variables=variables_passed_on(), limits=limits)
        except BaseException:
            await tree.close()
            raise
        return _Waiting(folder, tree, shell)
