"""Sandboxes for tests; without user namespaces the tests that need one are skipped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.environment.managed_root import ManagedRoot
from orchestrator.environment.trees.overlay_tree import OverlayTree
from orchestrator.environment.trees.sandbox_client import SandboxFailed, Zygote
from orchestrator.environment.trees.shell import Output, Shell

VARIABLES = {"PATH": "/usr/local/bin:/usr/bin:/bin", "SECRET": "not to be stored"}


@dataclass
class Place:
    """A base, a managed folder, and the zygote that forks sandboxes for them."""

    folder: Path
    zygote: Zygote

    @property
    def base(self) -> Path:
        return self.folder / "base"

    @property
    def root(self) -> ManagedRoot:
        return ManagedRoot(self.folder / "root")

    @asynccontextmanager
    async def tree(
        self, *layers: str, network: bool = False, hide: tuple[str, ...] = ()
    ) -> AsyncIterator[OverlayTree]:
        """An overlay over the base, in a sandbox of its own."""
        tree = OverlayTree(self.root, self.base, network=network, hide=hide)
        try:
            await tree.open(self.zygote, layers)
        except SandboxFailed as error:
            await tree.close()
            pytest.skip(f"this system refuses sandboxes: {error}")
        try:
            yield tree
        finally:
            await tree.close()

    @asynccontextmanager
    async def shell(self, tree: OverlayTree) -> AsyncIterator[Shell]:
        """A shell in the tree's sandbox."""
        shell = Shell(tree.sandbox)
        await shell.start(folder=str(self.base), variables=VARIABLES, limits={})
        try:
            yield shell
        finally:
            await shell.close()


@pytest.fixture
def place(tmp_path: Path, subprocesses: None) -> Iterator[Place]:
    (tmp_path / "base").mkdir()
    (tmp_path / "root").mkdir()
    zygote = Zygote()
    yield Place(tmp_path, zygote)
    zygote.close()


async def said(shell: Shell, command: str) -> str:
    """What a command that succeeds writes to stdout."""
    code, output = await ran(shell, command)
    assert code == 0, output.streams
    return output.streams["stdout"].decode(errors="surrogateescape")


async def ran(shell: Shell, command: str, limit_bytes: int = 1 << 20) -> tuple[int, Output]:
    """The exit code and the output of a command."""
    output = Output(limit_bytes)
    return await shell.run(command, output), output
