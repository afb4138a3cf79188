"""Random changes in a real overlay: the manifest is the difference, layers restore it exactly."""

from __future__ import annotations

import base64
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.environment.files.base_folder import BaseFolder
from orchestrator.environment.files.blob_store import BlobStore, digest_of_file
from orchestrator.environment.files.folder_reading import FolderReader
from orchestrator.environment.files.folder_scan import FolderScan, scan_folder
from orchestrator.environment.files.layer_building import build_layer
from orchestrator.environment.files.layering import layered
from orchestrator.environment.files.manifest import Entry, Manifest, files_digest
from orchestrator.environment.trees.overlay_tree import OverlayTree
from orchestrator.environment.trees.shell import Shell
from tests.unit.orchestrator.environment.conftest import Place, said

CHANGES = r"""
import os, random, shutil, sys
chance, names = random.Random(int(sys.argv[1])), ["a", "b", "c", "two\nlines", b"\xff".decode(errors="surrogateescape")]
def path(): return "/".join(chance.choice(names) for _ in range(chance.randint(1, 3)))
def is_special(place): return os.path.exists(place) and not os.path.isfile(place) and not os.path.isdir(place)
for _ in range(int(sys.argv[2])):
    one, two = path(), path()
    if is_special(one) or is_special(two): continue
    kind = chance.choice("write write append remove rmtree mkdir link mode move again hard fifo".split())
    try:
        if kind == "write": open(one, "w").write(chance.choice(["x", "y", "base\n"]))
        elif kind == "append": open(one, "a").write("z")
        elif kind == "remove": os.remove(one)
        elif kind == "rmtree": shutil.rmtree(one)
        elif kind == "mkdir": os.makedirs(one)
        elif kind == "link": os.symlink(two, one)
        elif kind == "mode" and not os.path.islink(one): os.chmod(one, chance.choice([0o755, 0o700]))
        elif kind == "move": shutil.move(one, two)
        elif kind == "again" and os.path.isdir(one): shutil.rmtree(one); os.mkdir(one); open(one + "/n", "w").write("n")
        elif kind == "hard": os.link(one, two)
        elif kind == "fifo": os.mkfifo(one)
    except (OSError, shutil.Error): pass
"""  # noqa: E501

PYTHON = Path(sys.executable).resolve()
"""Not the virtual environment's: a checkout may lie in /tmp, and a sandbox has one of its own."""

Content = tuple[str, int, str]


def content(entry: Entry) -> Content:
    return (entry.kind, 0 if entry.kind in ("link", "gone") else entry.mode, entry.content)


def contents(manifest: Manifest) -> dict[str, Content]:
    return {path: content(entry) for path, entry in manifest.items()}


def scanned(folder: Path) -> FolderScan:
    return scan_folder(FolderReader(str(folder)), keep=lambda file, _: digest_of_file(file))


def difference(base: Path, final: Path) -> dict[str, Content]:
    """The manifest by comparing two whole trees."""
    before, after = scanned(base).entries, scanned(final).entries
    found = {
        path: content(entry)
        for path, entry in after.items()
        if path not in before or content(entry) != content(before[path])
    }
    for path in before:
        parent = path.rpartition("/")[0]
        if path not in after and (
            not parent or (parent in after and after[parent].kind == "folder")
        ):
            found[path] = ("gone", 0, "")
    return found


async def view_of(shell: Shell, folder: Path) -> Path:
    """What the shell sees of the workspace, copied to a folder."""
    archive = folder.with_suffix(".tar")
    text = await said(shell, "tar cf - . | base64 -w 0")
    archive.write_bytes(base64.b64decode(text))
    folder.mkdir()
    subprocess.run(["tar", "xf", archive, "-C", folder], check=True)
    return folder


async def change(shell: Shell, seed: int, count: int) -> None:
    await said(shell, f'{PYTHON} -I -S -c "$CHANGES" {seed} {count}')


async def prepared(shell: Shell) -> None:
    quoted = CHANGES.replace("'", "'\\''")
    await said(shell, f"export CHANGES='{quoted}'")


def checkpoint(tree: OverlayTree, before: Manifest, blobs: BlobStore, base: Path) -> Manifest:
    scan = scan_folder(FolderReader(str(tree.upper_folder)), keep=blobs.add_file)
    return layered(before, scan, BaseFolder(base))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
async def test_a_manifest_is_the_difference_to_the_base_and_restores_the_tree(
    place: Place, seed: int
) -> None:
    """Over several sealed layers, with links, folders in place of files, and odd names."""
    chance, blobs = random.Random(seed), BlobStore(place.folder / "blobs")
    command = [str(PYTHON), "-I", "-S", "-c", CHANGES, str(seed), "40"]
    subprocess.run(command, cwd=place.base, check=True)
    manifest: Manifest = {}
    async with place.tree() as tree, place.shell(tree) as shell, place.tree() as fresh:
        await prepared(shell)
        for step in range(4):
            await change(shell, 100 * seed + step, chance.randint(1, 15))
            view = await view_of(shell, place.folder / f"view{step}")
            manifest = checkpoint(tree, manifest, blobs, place.base)
            assert contents(manifest) == difference(place.base, view)
            name = f"{step}-{files_digest(manifest)}"
            build_layer(place.root.layers / name, manifest, blobs, place.base)
            await fresh.mount([name])
            async with place.shell(fresh) as other:
                restored = await view_of(other, place.folder / f"restored{step}")
            assert contents(scanned(restored).entries) == contents(scanned(view).entries)
            await tree.seal()
            await said(shell, 'cd "$PWD"')


async def test_a_fork_sees_the_past_and_no_later_change_of_its_origin(place: Place) -> None:
    (place.base / "base.txt").write_text("base")
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "echo past > past.txt; rm base.txt")
        await tree.seal()
        await said(shell, 'cd "$PWD"; echo later > later.txt')
        async with place.tree(*tree.layers) as fork, place.shell(fork) as other:
            assert await said(other, "ls; echo fork > fork.txt") == "past.txt\n"
            assert await said(shell, "ls") == "later.txt\npast.txt\n"
    assert (place.base / "base.txt").read_text() == "base"
    assert os.listdir(place.base) == ["base.txt"]


async def test_a_rewind_takes_back_what_the_upper_folder_held(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "echo kept > kept")
        await tree.seal()
        await said(shell, 'cd "$PWD"; echo broken > kept; mkdir -p new/folder; chmod 000 new')
        await tree.mount(tree.layers)
        assert await said(shell, 'cd "$PWD"; ls; cat kept') == "kept\nkept\n"


async def test_a_closed_workspace_leaves_only_its_layers(place: Place) -> None:
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "mkdir -p x/y; touch x/y/z; chmod 500 x/y; chmod 000 x")
        layer = await tree.seal()
    assert os.listdir(place.root.live) == []
    assert os.listdir(place.root.layers) == [layer]
    shutil.rmtree(place.root.layers, ignore_errors=True)


async def test_a_second_scan_reads_only_what_has_changed(place: Place) -> None:
    blobs = BlobStore(place.folder / "blobs")
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "for i in $(seq 50); do echo $i > f$i; done")
        reader = FolderReader(str(tree.upper_folder))
        first = scan_folder(reader, keep=blobs.add_file)
        await said(shell, "echo changed > f7; touch f8; ln f9 f9b")
        second = scan_folder(reader, keep=blobs.add_file, before=first)
        assert (first.num_hashed, second.num_hashed) == (50, 4)
        assert second.entries["f7"] != first.entries["f7"]
        assert contents(second.entries) == contents(scanned(tree.upper_folder).entries)
