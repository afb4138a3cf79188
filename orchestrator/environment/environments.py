"""Opens workspaces: from waiting sandboxes, or in new ones."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from orchestrator.cancellation import run_to_completion
from orchestrator.environment.errors import SandboxFailed, StateLost
from orchestrator.environment.files.base_folder import BaseFolder
from orchestrator.environment.files.layer_stacks import LayerStacks
from orchestrator.environment.files.manifest import Files
from orchestrator.environment.live_workspace import LiveWorkspace
from orchestrator.environment.states.managed_root import ManagedRoot
from orchestrator.environment.states.stored_states import State, States
from orchestrator.environment.trees.copy_tree import CopyTree
from orchestrator.environment.trees.enforcement import GAPS
from orchestrator.environment.trees.live_folder import LiveFolder
from orchestrator.environment.trees.overlay_tree import OverlayTree
from orchestrator.environment.trees.sandbox_client import shared_zygote
from orchestrator.environment.trees.shell import Shell
from orchestrator.environment.trees.tree import Confinement, Tree
from orchestrator.environment.trees.variables import variables_for

logger = logging.getLogger("orchestrate")

Backend = Literal["overlay", "copies"]
"""Overlays in sandboxes with namespaces; or copies of the base, confined by Landlock."""

_MOST_WAITING = 8
"""Waiting sandboxes for one kind of workspace; each takes about 3 MB."""


@dataclass(frozen=True)
class WorkspaceKind:
    """What forks of one workspace have in common.

    Attributes:
        backend: None: the better one of those that work here.
        own: folders that each copies whole when it begins, so that they can be renamed.
    """

    base: str
    confinement: Confinement = field(default_factory=Confinement)
    own: tuple[str, ...] = ()
    backend: Backend | None = None


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
    """All open workspaces of one managed root, in one event loop.

    Args:
        store: the file of the store, which no base may hold; None: it is no file.
    Attributes:
        trusted: states that this process has stored or verified.
        backend: of workspaces that ask for none; None: the better one of those that work for each.
    """

    backend: Backend | None = None

    def __init__(self, root: Path, *, store: Path | None = None, durable: bool = False) -> None:
        self.store = store
        self.root = ManagedRoot(root)
        self.states = States(self.root, durable=durable)
        self._bases: dict[str, BaseFolder] = {}
        self._stacks: dict[str, LayerStacks] = {}
        self.trusted: set[str] = set()
        self._waiting: dict[WorkspaceKind, list[asyncio.Task[_Waiting]]] = {}
        self._backends: dict[WorkspaceKind, Backend] = {}  # of kinds that ask for none
        self._closing = asyncio.Lock()

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
        """End waiting sandboxes, all of them also if one fails or this is cancelled; idempotent.

        Raises:
            OSError: what one wrote cannot be removed.
        """
        await run_to_completion(self._close())

    async def _close(self) -> None:
        async with self._closing:  # a second call waits for the first
            waiting = [task for tasks in self._waiting.values() for task in tasks]
            for tasks in self._waiting.values():
                tasks.clear()  # an `open` that waits for one takes none of them
            held = await asyncio.gather(*waiting, return_exceptions=True)
            closing = [each.close() for each in held if isinstance(each, _Waiting)]
            for closed in await asyncio.gather(*closing, return_exceptions=True):
                if isinstance(closed, BaseException):
                    raise closed

    async def _mounted(self, kind: WorkspaceKind, files: Files) -> _Waiting | None:
        """A waiting sandbox that shows files now; None: none is alive."""
        waiting = self._waiting.setdefault(kind, [])
        while waiting:
            task = waiting[0]
            await asyncio.wait([task])  # at a cancellation it waits on for the next one
            if task not in waiting:  # another was faster
                continue
            waiting.remove(task)
            with suppress(SandboxFailed):  # it was killed while it waited
                held = task.result()
                try:
                    await held.tree.mount(files, idle=[held.shell.program])
                except BaseException:
                    await run_to_completion(held.close())
                    raise
                return held
        return None

    async def _prepare(self, kind: WorkspaceKind, files: Files) -> _Waiting:
        backend = kind.backend or self.backend or self._backends.get(kind)
        if backend is not None:
            return await self._prepare_by(backend, kind, files)
        try:
            held = await self._prepare_by("overlay", kind, files)
            self._backends[kind] = "overlay"
        except SandboxFailed as error:
            if error.has_died:  # it was killed: that is no reason for copies from now on
                raise
            held = await self._prepare_by("copies", kind, files)
            self._backends[kind] = "copies"
            gaps = [GAPS[each] for each in held.tree.sandbox.enforcement.not_enforced]
            logger.warning(
                "workspaces of %s are copies of it, as an overlay fails: %s%s",
                *(kind.base, error, "".join(f"; {gap}" for gap in gaps)),
            )
        return held

    async def _prepare_by(self, backend: Backend, kind: WorkspaceKind, files: Files) -> _Waiting:
        base, live = self.base_folder(kind.base), LiveFolder(self.root)
        tree: Tree | None = None
        try:
            if backend == "copies":
                tree = CopyTree(live, base, self.root.blobs, kind.confinement)
            else:
                tree = OverlayTree(live, base, self._stacks_of(base), kind.confinement)
            await tree.open(shared_zygote(), files)
            shell = Shell(tree.sandbox)
            limits = kind.confinement.limits.of_program()
            await shell.start(folder="/", variables=variables_for(tree.place), limits=limits)
        except BaseException:
            closing = tree.close() if tree is not None else asyncio.to_thread(live.close)
            await run_to_completion(closing)
            raise
        return _Waiting(live, tree, shell)

    def _stacks_of(self, base: BaseFolder) -> LayerStacks:
        stacks = LayerStacks(self.root.layers, self.root.blobs, base)
        return self._stacks.setdefault(str(base.folder), stacks)
