"""Sandboxes for tests; without user namespaces the tests that need them are skipped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from orchestrator.environment.environments import Environments
from orchestrator.environment.errors import SandboxFailed
from orchestrator.environment.files.base_folder import BaseFolder
from orchestrator.environment.files.layer_stacks import LayerStacks
from orchestrator.environment.files.manifest import Files, Manifest, files_digest
from orchestrator.environment.sandbox.messages import Kind, Limits
from orchestrator.environment.states.managed_root import ManagedRoot
from orchestrator.environment.trees.copy_tree import CopyTree
from orchestrator.environment.trees.live_folder import LiveFolder
from orchestrator.environment.trees.output import Output
from orchestrator.environment.trees.overlay_tree import OverlayTree
from orchestrator.environment.trees.sandbox_client import Zygote
from orchestrator.environment.trees.shell import Shell
from orchestrator.environment.trees.tree import Confinement, FilesSeen, Tree
from tests.unit.orchestrator.environment.workspace_samples import require_backend

VARIABLES = {"PATH": "/usr/local/bin:/usr/bin:/bin", "SECRET": "not to be stored"}
NO_FILES = Files("", {})


@dataclass
class Place:
    """A base, a managed folder, and the zygote that forks sandboxes for them."""

    folder: Path
    zygote: Zygote

    @property
    def base(self) -> Path:
        return self.folder / "base"

    @cached_property
    def root(self) -> ManagedRoot:
        return ManagedRoot(self.folder / "root")

    @cached_property
    def base_folder(self) -> BaseFolder:
        return BaseFolder(self.base)

    def unopened(self, kind: Kind, confinement: Confinement) -> Tree:
        live = LiveFolder(self.root)
        if kind == "landlock":
            return CopyTree(live, self.base_folder, self.root.blobs, confinement)
        stacks = LayerStacks(self.root.layers, self.root.blobs, self.base_folder)
        return OverlayTree(live, self.base_folder, stacks, confinement)

    @asynccontextmanager
    async def tree(
        self,
        kind: Kind = "namespaces",
        *,
        files: Files = NO_FILES,
        network: bool = False,
        hide: tuple[str, ...] = (),
    ) -> AsyncIterator[Tree]:
        """The base in a sandbox of its own."""
        tree = self.unopened(kind, Confinement(network, hide))
        try:
            await tree.open(self.zygote, files)
        except SandboxFailed as error:
            await tree.close()
            if kind == "landlock":
                raise
            pytest.skip(f"this system refuses namespaces: {error}")
        try:
            yield tree
        finally:
            await tree.close()

    @asynccontextmanager
    async def shell(self, tree: Tree, **limits: int) -> AsyncIterator[Shell]:
        """A shell in the tree's sandbox."""
        shell = Shell(tree.sandbox)
        given: Limits = {**limits}  # type: ignore[typeddict-item]
        await shell.start(folder=tree.place, variables=VARIABLES, limits=given)
        try:
            yield shell
        finally:
            await shell.close()

    async def seen(self, tree: Tree) -> FilesSeen:
        """What the tree shows, with its contents stored."""
        return await tree.read(self.root.blobs.add_file)


def files_of(manifest: Manifest) -> Files:
    """Files under a key of their own."""
    return Files(files_digest(manifest), manifest)


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


@pytest.fixture(params=["overlay", "copies"])
async def own_states(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every test with both backends; also workspaces outside of runs keep their states apart."""
    monkeypatch.setenv("ORCHESTRATE_STORE", f"sqlite:///{tmp_path / 'outside.db'}")
    await require_backend(tmp_path, request.param)
    monkeypatch.setattr(Environments, "backend", request.param)
