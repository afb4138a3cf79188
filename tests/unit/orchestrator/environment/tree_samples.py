"""Random changes in a workspace, and what its files are afterwards by other means."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

from orchestrator.environment.files.blob_store import digest_of_file
from orchestrator.environment.files.folder_reading import FolderReader
from orchestrator.environment.files.folder_scan import FolderScan, scan_folder
from orchestrator.environment.files.manifest import Entry, Manifest
from orchestrator.environment.trees.shell import Shell
from tests.unit.orchestrator.environment.conftest import said

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


def fill(base: Path, seed: int) -> None:
    """Write a base by random changes of an empty folder."""
    command = [str(PYTHON), "-I", "-S", "-c", CHANGES, str(seed), "40"]
    subprocess.run(command, cwd=base, check=True)


async def view_of(shell: Shell, folder: Path) -> Path:
    """What the shell sees of the workspace, copied to a folder."""
    archive = folder.with_suffix(".tar")
    text = await said(shell, "tar cf - . | base64 -w 0")
    archive.write_bytes(base64.b64decode(text))
    folder.mkdir()
    subprocess.run(["tar", "xf", archive, "-C", folder], check=True)
    return folder


async def change(shell: Shell, seed: int, count: int, *, moves: bool = True) -> None:
    """Make random changes in the shell's folder."""
    changes = CHANGES if moves else CHANGES.replace(" move ", " ")
    quoted = changes.replace("'", "'\\''")
    await said(shell, f"{PYTHON} -I -S -c '{quoted}' {seed} {count}")
