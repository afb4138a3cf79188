"""An overlay in a sandbox: forks see the past only, and a scan reads only what changed."""

from __future__ import annotations

import os

from orchestrator.environment.files.folder_reading import FolderReader
from orchestrator.environment.files.folder_scan import scan_folder
from orchestrator.environment.trees.overlay_tree import OverlayTree
from orchestrator.environment.trees.tree import Tree
from tests.unit.orchestrator.environment.conftest import Place, files_of, said
from tests.unit.orchestrator.environment.tree_samples import contents, scanned


def upper_of(tree: Tree) -> str:
    assert isinstance(tree, OverlayTree)
    return str(tree._live.root.path / tree._upper)


async def test_a_fork_sees_the_past_and_no_later_change_of_its_origin(place: Place) -> None:
    (place.base / "base.txt").write_text("base")
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "echo past > past.txt; rm base.txt")
        files = files_of((await place.seen(tree)).manifest)
        await said(shell, "echo later > later.txt")
        async with place.tree(files=files) as fork, place.shell(fork) as other:
            assert await said(other, "ls; echo fork > fork.txt") == "past.txt\n"
            assert await said(shell, "ls") == "later.txt\npast.txt\n"
    assert (place.base / "base.txt").read_text() == "base"
    assert os.listdir(place.base) == ["base.txt"]


async def test_a_second_scan_reads_only_what_has_changed(place: Place) -> None:
    blobs = place.root.blobs
    async with place.tree() as tree, place.shell(tree) as shell:
        await said(shell, "for i in $(seq 50); do echo $i > f$i; done")
        reader = FolderReader(upper_of(tree))
        first = scan_folder(reader, keep=blobs.add_file)
        await said(shell, "echo changed > f7; touch f8; ln f9 f9b")
        second = scan_folder(reader, keep=blobs.add_file, before=first)
        assert (first.num_hashed, second.num_hashed) == (50, 4)
        assert second.entries["f7"] != first.entries["f7"]
        assert contents(second.entries) == contents(
            scanned(place.root.path / upper_of(tree)).entries
        )
