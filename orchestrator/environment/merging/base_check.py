"""Which folders can be the base of a workspace."""

from __future__ import annotations

import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from orchestrator.environment.errors import BaseRefused


def checked_base(
    folder: str | Path,
    managed_root: Path,
    store: Path | None = None,
    *,
    for_writing: bool = False,
) -> Path:
    """The real path of a base.

    Args:
        folder: as the user gave it; "~" is the home folder.
        store: file or folder of the store; None: it is no file.
        for_writing: a state is to be applied onto it.
    Raises:
        BaseRefused: it is no folder of its own, or too much lies in it.
    """
    if not str(folder):
        raise BaseRefused("", "no folder is named")
    given = os.path.abspath(os.path.expanduser(folder))
    if os.path.islink(given):
        real = os.path.realpath(given)
        raise BaseRefused(given, f"it is a symbolic link; name the folder itself, {real!r}")
    try:
        status = os.stat(given)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BaseRefused(given, reason) from error
    if not stat.S_ISDIR(status.st_mode):
        raise BaseRefused(given, "it is no folder")
    base = Path(os.path.realpath(given))
    if base == Path("/"):
        raise BaseRefused(given, "it is the whole file system; name a folder in it")
    for home in _homes():
        if home.is_relative_to(base):
            raise BaseRefused(
                given, f"your home folder {str(home)!r} lies in it; name a folder in it"
            )
    _check_own_files(given, base, managed_root, store)
    if not os.access(base, os.R_OK | os.X_OK):
        raise BaseRefused(given, "you may not read it")
    if for_writing:
        _check_writable(given, base, status)
    return base


def _homes() -> set[Path]:
    homes = {os.path.expanduser("~")}
    with suppress(KeyError):  # a user without an entry, as in some containers
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    # A user without a home has "/" or a folder that does not exist there.
    return {Path(os.path.realpath(home)) for home in homes if os.path.isabs(home)} - {Path("/")}


def _check_own_files(given: str, base: Path, managed_root: Path, store: Path | None) -> None:
    root = Path(os.path.realpath(managed_root))
    if root.is_relative_to(base):
        reason = f"the files of all workspaces lie in it, in {str(root)!r}; move either elsewhere"
        raise BaseRefused(given, reason)
    if base.is_relative_to(root):
        reason = f"it lies in {str(root)!r}, where the files of all workspaces are"
        raise BaseRefused(given, reason)
    if store is not None and Path(os.path.realpath(store)).is_relative_to(base):
        reason = f"the store {str(store)!r} lies in it; set ORCHESTRATE_STORE to a file elsewhere"
        raise BaseRefused(given, reason)


def _check_writable(given: str, base: Path, status: os.stat_result) -> None:
    if os.geteuid() not in (0, status.st_uid):
        try:
            owner = pwd.getpwuid(status.st_uid).pw_name
        except KeyError:
            owner = str(status.st_uid)
        raise BaseRefused(given, f"it belongs to {owner}, so nothing is written there")
    if not os.access(base, os.W_OK):
        raise BaseRefused(given, "you may not write it; change its permissions")
