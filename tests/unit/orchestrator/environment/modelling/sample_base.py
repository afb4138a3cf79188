"""A small base with what bases of users have, and some things that they rarely have."""

from __future__ import annotations

import os
from pathlib import Path

from tests.unit.orchestrator.environment.modelling.changes import LONG


def make_base(folder: Path, *, sealed: bool) -> None:
    """Fill a folder.

    Args:
        sealed: with files and folders that even their owner may not read.
    """
    for each in ("a/a", "a/b", "c/empty", "-rf", ".hid/objects", "two\nlines", LONG, "d/d/d/e"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    for path, text in {
        "a/a/x": "x",
        "a/x": "x",
        "a/b/long": "a longer text\n" * 100,
        "b": "base\n",
        "-rf/-rf": "-rf",
        ".hid/objects/1": "1",
        "two\nlines/two\nlines": "two\nlines",
        f"{LONG}/{LONG}": "long",
        "d/d/d/e/bottom": "deep",
        "one": "linked",
        "empty": "",
        os.fsdecode(b"\xff\xfe"): "not UTF-8",
        "run.sh": "#!/bin/sh\necho run\n",
        "ro/x": "x",
    }.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    os.link(folder / "one", folder / "same as one")
    for path, target in {"l": "a", "l2": "b", "c/l": "../nowhere", "a/l": "a/x"}.items():
        (folder / path).symlink_to(target)
    os.mkfifo(folder / "c/fifo", 0o640)
    (folder / "run.sh").chmod(0o4755)
    (folder / "empty").chmod(0o444)
    (folder / "ro").chmod(0o500)
    if sealed:
        (folder / "closed/in").mkdir(parents=True)
        for path in ("closed/in/x", "closed/x", "secret"):
            (folder / path).write_text("sealed")
        for path in ("closed/in/x", "closed/in", "closed", "secret"):
            (folder / path).chmod(0)
    for number, path in enumerate(sorted(folder.rglob("*"))):
        os.utime(path, (1_000_000_000, 1_000_000_000 + number), follow_symlinks=False)
