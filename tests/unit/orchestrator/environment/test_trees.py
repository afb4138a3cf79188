"""Laws of both trees, of overlays and of copies: random changes, odd files, rewinds."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.sandbox.messages import Kind
from orchestrator.environment.trees.copy_tree import CopyTree
from orchestrator.environment.trees.tree import Confinement
from tests.unit.orchestrator.environment.conftest import NO_FILES, Place, files_of, said
from tests.unit.orchestrator.environment.tree_samples import (
    Content,
    change,
    contents,
    difference,
    fill,
    scanned,
    view_of,
)

KINDS: list[Kind] = ["namespaces", "landlock"]
both = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.slow
@both
@pytest.mark.parametrize("seed", range(8))
async def test_a_manifest_is_the_difference_to_the_base_and_restores_the_tree(
    place: Place, seed: int, kind: Kind
) -> None:
    """Over several states, with links, folders in place of files, and odd names."""
    chance = random.Random(seed)
    fill(place.base, seed)
    async with place.tree(kind) as tree, place.tree(kind) as fresh:
        for step in range(4):
            async with place.shell(tree) as shell:
                await change(shell, 100 * seed + step, chance.randint(1, 15))
                view = await view_of(shell, place.folder / f"view{step}")
                manifest = (await place.seen(tree)).manifest
                assert contents(manifest) == difference(place.base, view)
            await fresh.mount(files_of(manifest))
            assert contents((await place.seen(fresh)).manifest) == contents(manifest)
            async with place.shell(fresh) as other:
                restored = await view_of(other, place.folder / f"restored{step}")
                await change(other, 1000 * seed + step, 5)  # which the next mount takes back
            assert contents(scanned(restored).entries) == contents(scanned(view).entries)
            await tree.mount(files_of(manifest))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 24))
async def test_both_trees_have_the_same_manifest_after_the_same_changes(
    place: Place, seed: int
) -> None:
    """But for moves of folders, which an overlay refuses and Python then does piece by piece."""
    fill(place.base, seed)
    found: list[list[dict[str, Content]]] = []
    for kind in KINDS:
        manifests = []
        async with place.tree(kind) as tree, place.shell(tree) as shell:
            for step in range(4):
                await change(shell, 100 * seed + step, 10, moves=False)
                manifests.append(contents((await place.seen(tree)).manifest))
        found.append(manifests)
    assert found[0] == found[1]


@both
async def test_a_state_and_the_base_can_be_shown_again_and_again(place: Place, kind: Kind) -> None:
    (place.base / "kept").write_text("base")
    (place.base / "folder").mkdir()
    (place.base / "folder" / "inner").write_text("inner")
    async with place.tree(kind) as tree:
        async with place.shell(tree) as shell:
            await said(shell, "echo changed > kept; rm -r folder; ln -s kept folder; mkdir -p n/m")
        state = files_of((await place.seen(tree)).manifest)
        for _ in range(2):
            await tree.mount(files_of({}))
            assert (await place.seen(tree)).manifest == {}
            async with place.shell(tree) as shell:
                assert await said(shell, "ls; cat kept folder/inner") == "folder\nkept\nbaseinner"
                await said(shell, "rm -rf *; mkdir -p kept/new; chmod 000 kept")
            await tree.mount(state)
            assert contents((await place.seen(tree)).manifest) == contents(state.manifest)
            async with place.shell(tree) as shell:
                assert await said(shell, "ls; cat folder") == "folder\nkept\nn\nchanged\n"


@both
async def test_hard_links_are_files_of_their_own_once_a_state_was_shown(
    place: Place, kind: Kind
) -> None:
    (place.base / "kept").write_text("base")
    async with place.tree(kind) as tree:
        async with place.shell(tree) as shell:
            await said(shell, "ln kept again; echo new > one; ln one two; mkfifo a; ln a b")
        state = files_of((await place.seen(tree)).manifest)
        await tree.mount(state)
        async with place.shell(tree) as shell:
            await said(shell, ": > again; : > one; chmod 600 a")
            assert await said(shell, "cat kept two; stat -c %a b") == "basenew\n644\n"
        await tree.mount(state)
        assert contents((await place.seen(tree)).manifest) == contents(state.manifest)


@both
async def test_a_closed_workspace_leaves_nothing_open(place: Place, kind: Kind) -> None:
    async with place.tree(kind) as tree, place.shell(tree) as shell:
        await said(shell, "mkdir -p x/y; touch x/y/z; chmod 500 x/y; chmod 000 x")
        assert len(os.listdir(place.root.live)) == 1
        await tree.close()
        await tree.close()
        assert os.listdir(place.root.live) == []
    assert os.listdir(place.base) == []


@both
async def test_a_state_whose_content_is_missing_changes_nothing(place: Place, kind: Kind) -> None:
    async with place.tree(kind) as tree:
        async with place.shell(tree) as shell:
            await said(shell, "echo one > file")
            state = files_of((await place.seen(tree)).manifest)
            await said(shell, "echo two > file")
        place.root.blobs.remove(state.manifest["file"].content)
        with pytest.raises(FileNotFoundError):
            await tree.mount(state)
        async with place.shell(tree) as shell:
            assert await said(shell, "cat file") == "two\n"


@both
async def test_odd_names_deep_folders_and_holes_are_kept(place: Place, kind: Kind) -> None:
    names = ["two\nlines", "-rf", " space ", "quote'\"", "back\\slash", os.fsdecode(b"\xff\xfe")]
    for name in names:
        (place.base / name).write_text(name, errors="surrogateescape")
    deep = Path(*["d"] * 300)
    (place.base / deep).mkdir(parents=True)
    (place.base / deep / "bottom").write_text("deep")
    async with place.tree(kind) as tree:
        assert (await place.seen(tree)).manifest == {}
        async with place.shell(tree) as shell:
            await said(shell, f'for each in *; do mv -- "$each" "$each.new"; done; mkdir -p {deep}')
            await said(shell, "truncate -s 64M sparse; echo end >> sparse")
        manifest = (await place.seen(tree)).manifest
        assert all(manifest[name].kind == "gone" for name in names)
        assert all(manifest[f"{name}.new"].size > 0 for name in names)
        assert manifest[f"d.new/{deep}/bottom".replace("d/", "", 1)].size == 4
        state = files_of(manifest)
        await tree.mount(files_of({}))
        await tree.mount(state)
        async with place.shell(tree) as shell:
            assert int(await said(shell, "du -k sparse | cut -f1")) < 1000
            assert await said(shell, "tail -c 4 sparse") == "end\n"
        assert contents((await place.seen(tree)).manifest) == contents(manifest)


@both
async def test_a_file_that_is_written_in_memory_is_read_again(place: Place, kind: Kind) -> None:
    """A mapping whose descriptor is closed: neither open files nor times need show the write."""
    writes = (
        "import mmap, os, signal, sys\n"
        "file = os.open('mapped', os.O_RDWR | os.O_CREAT); os.truncate(file, 4096)\n"
        "memory = mmap.mmap(file, 4096); os.close(file)\n"
        "memory[:5] = b'first'\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (memory.__setitem__(slice(0, 5), b'later'),"
        " open('done', 'w').close()))\n"
        "open('ready', 'w').close()\n"
        "while True: signal.pause()\n"
    )
    (place.base / "write.py").write_text(writes)
    async with place.tree(kind) as tree, place.shell(tree) as shell:
        await said(shell, "python3 write.py & while ! test -e ready; do sleep 0.01; done")
        first = await place.seen(tree)
        assert [Path(each.path).name for each in first.mapped] == ["mapped"]
        assert "write.py" in first.mapped[0].command
        await said(shell, "kill -USR1 $!; while ! test -e done; do sleep 0.01; done")
        second = await place.seen(tree)
        await said(shell, "kill $!; wait $! 2>/dev/null; true")
        third = await place.seen(tree)
        contents_seen = [
            place.root.blobs.read(seen.manifest["mapped"].content)[:5]
            for seen in (first, second, third)
        ]
        assert contents_seen == [b"first", b"later", b"later"]
        assert list(third.mapped) == []


@both
async def test_sockets_are_left_out_by_name(place: Place, kind: Kind) -> None:
    async with place.tree(kind) as tree, place.shell(tree) as shell:
        bind = "import socket; socket.socket(socket.AF_UNIX).bind('s')"
        await said(shell, f'python3 -c "{bind}"; touch file')
        seen = await place.seen(tree)
        assert list(seen.left_out) == ["s"]
        assert list(seen.manifest) == ["file"]
        if kind == "landlock":
            await tree.mount(files_of(seen.manifest))
            assert os.listdir(tree.place) == ["file"]


@both
async def test_a_socket_in_place_of_a_file_is_a_file_less(place: Place, kind: Kind) -> None:
    (place.base / "folder").mkdir()
    (place.base / "folder" / "file").touch()
    (place.base / "s").touch()
    async with place.tree(kind) as tree, place.shell(tree) as shell:
        bind = (
            "import socket; [socket.socket(socket.AF_UNIX).bind(each) for each in ('s', 'folder')]"
        )
        await said(shell, f'rm -r s folder; python3 -c "{bind}"')
        seen = await place.seen(tree)
        assert {path: entry.kind for path, entry in seen.manifest.items()} == {
            "s": "gone", "folder": "gone"
        }  # fmt: skip


def test_a_folder_is_removed_however_deep_it_is(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.getcwd()
    try:
        os.chdir(top)
        for _ in range(3000):  # a path of 6,000 bytes is longer than any call takes
            os.mkdir("d")
            os.chdir("d")
        Path("file").touch()
    finally:
        os.chdir(here)
    remove_folder(top)
    assert os.listdir(tmp_path) == []


@both
async def test_files_and_folders_of_mode_0_are_read_and_keep_their_mode(
    place: Place, kind: Kind
) -> None:
    async with place.tree(kind) as tree, place.shell(tree) as shell:
        await said(shell, "mkdir -p a/b; echo inner > a/b/file; echo closed > file; mkdir c")
        await said(shell, "chmod 000 a/b/file file; chmod 000 a/b c; chmod 200 a")
        for _ in range(2):
            manifest = (await place.seen(tree)).manifest
            modes = {path: entry.mode for path, entry in manifest.items()}
            assert modes == {"a": 0o200, "a/b": 0, "a/b/file": 0, "file": 0, "c": 0}
            assert place.root.blobs.read(manifest["a/b/file"].content) == b"inner\n"
        assert await said(shell, "stat -c %a file a c") == "0\n200\n0\n"
        await tree.mount(files_of({}))
        await tree.mount(files_of(manifest))
        assert contents((await place.seen(tree)).manifest) == contents(manifest)


async def test_what_cannot_be_read_of_a_base_is_empty_in_a_copy_and_is_named_when_changed(
    place: Place,
) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (place.base / "closed").write_text("secret")
    (place.base / "folder").mkdir()
    (place.base / "folder" / "inner").write_text("secret")
    (place.base / "removed").write_text("secret")
    for name in ("closed", "folder", "removed"):
        (place.base / name).chmod(0)
    try:
        async with place.tree("landlock") as tree, place.shell(tree) as shell:
            assert isinstance(tree, CopyTree)
            assert tree.closed == {"closed", "folder", "removed"}
            assert (await place.seen(tree)).manifest == {}
            await said(
                shell, "chmod 600 closed; chmod 700 folder; echo x > folder/new; rm -f removed"
            )
            seen = await place.seen(tree)
            assert contents(seen.manifest) == {"removed": ("gone", 0, "")}
            assert list(seen.left_out) == ["closed", "folder", "folder/new"]
            await tree.mount(files_of(seen.manifest))
            assert await said(shell, "ls; stat -c %a closed folder") == "closed\nfolder\n0\n0\n"
    finally:
        (place.base / "folder").chmod(0o700)


async def test_a_copy_hashes_only_what_was_changed_since_it_was_made(place: Place) -> None:
    for number in range(20):
        (place.base / f"f{number}").write_text(str(number))
    async with place.tree("landlock") as tree, place.shell(tree) as shell:
        kept: list[int] = []

        def keep(file: int, size: int) -> str:
            kept.append(file)
            return place.root.blobs.add_file(file, size)

        assert (await tree.read(keep)).manifest == {}
        assert kept == []
        await said(shell, "touch f1; chmod 600 f2; echo more >> f3; cp f4 f4.new")
        assert sorted((await tree.read(keep)).manifest) == ["f2", "f3", "f4.new"]
        assert len(kept) == 4
        state = files_of((await tree.read(keep)).manifest)
        assert len(kept) == 4
        inode = os.stat(f"{tree.place}/f10").st_ino
        await tree.mount(files_of({}))
        await tree.mount(state)
        assert os.stat(f"{tree.place}/f10").st_ino == inode  # it was not touched


async def test_a_copy_that_is_cancelled_leaves_nothing(place: Place) -> None:
    for number in range(3000):
        (place.base / f"f{number}").write_text(str(number))
    tree = place.unopened("landlock", Confinement())
    opening = asyncio.create_task(tree.open(place.zygote, NO_FILES))
    while not os.path.exists(f"{tree.place}/f1"):
        await asyncio.sleep(0.001)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert len(os.listdir(tree.place)) < 3000
    await tree.close()
    assert os.listdir(place.root.live) == []
