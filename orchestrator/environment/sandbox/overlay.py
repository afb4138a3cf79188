"""The overlay of a sandbox: the base and layers below, one upper folder that takes all changes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from . import linux
from .messages import Plan


class Overlay:
    """Mounts stacks of layers at the base's path, one after another.

    The base and the managed folder are reached by descriptors, as a private /tmp may cover both.

    Raises:
        OSError: the system refuses a mount.
    """

    def __init__(self, plan: Plan) -> None:
        self._at = plan["at"]
        self._base = os.open(plan["at"], os.O_PATH | os.O_DIRECTORY)
        self._root = os.open(plan["root"], os.O_PATH | os.O_DIRECTORY)
        self._hidden = [each for each in plan["hide"] if is_below(each, plan["at"])]
        linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("none", "/", "", linux.MS_REC | linux.MS_SHARED)
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
        flags = linux.MS_NOSUID | linux.MS_NODEV
        for folder in plan["private"]:
            linux.mount("private", folder, "tmpfs", flags, "mode=1777")
        os.makedirs(self._at, exist_ok=True)  # covered by a private folder
        self._mount(plan["layers"], plan["upper"], plan["work"])

    def replace(self, layers: Sequence[str], upper: str, work: str) -> None:
        """Mount another stack in place of the present one, which open files keep."""
        os.chdir("/")
        linux.unmount(self._at)
        self._mount(layers, upper, work)

    def _mount(self, layers: Sequence[str], upper: str, work: str) -> None:
        root, base = f"/proc/self/fd/{self._root}", f"/proc/self/fd/{self._base}"
        below = [*(f"{root}/{layer}" for layer in layers), base]
        linux.mount_overlay(below, f"{root}/{upper}", f"{root}/{work}", self._at)
        for folder in self._hidden:  # here, so that they are hidden anew with each stack
            if not os.path.islink(folder):
                hide(folder)


def hide(path: str) -> None:
    """Cover a folder by an empty one that nobody may enter, a file by nothing to read."""
    if os.path.isdir(path):
        linux.mount("hidden", path, "tmpfs", linux.MS_RDONLY, "size=4k,mode=0")
    elif os.path.exists(path):
        linux.mount("/dev/null", path, "", linux.MS_BIND)


def is_below(path: str, folder: str) -> bool:
    """Whether a path lies in a folder."""
    return path.startswith(folder + "/")
