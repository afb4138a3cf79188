"""The garbage collection of a managed root, and the check that what it holds is whole.

Open workspaces of all processes go on meanwhile: what is removed is looked at again and moved away
under a lock, a few pieces at a time, and deleted after that.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

from orchestrator.environment.errors import StateLost
from orchestrator.environment.files.blob_store import BlobDamaged
from orchestrator.environment.files.collection_lock import NEW_S
from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.files.layer_stacks import layers_below
from orchestrator.environment.files.manifest import contents_of, from_json
from orchestrator.environment.merging.apply_journal import contents_in_use
from orchestrator.environment.states.managed_root import ManagedRoot
from orchestrator.environment.states.stored_states import States
from orchestrator.environment.trees.live_folder import is_open, named_in

_Item = TypeVar("_Item")

_AT_ONCE = 100
"""Pieces that are removed under one lock, for which captures of other processes may wait."""


@dataclass(slots=True)
class Collected:
    """What a garbage collection has removed, or would remove.

    Attributes:
        num_states: states that nothing needs any more.
        num_blobs: contents of files and manifests that no remaining state has.
        num_layers: layers that no open workspace shows; they are built again when needed.
        num_live: folders of workspaces whose process has ended without closing them.
        num_bytes: of disk, of all that.
        num_new: states and contents that nothing needs, and that stay as they are too new.
    """

    num_states: int = 0
    num_blobs: int = 0
    num_layers: int = 0
    num_live: int = 0
    num_bytes: int = 0
    num_new: int = 0


def collect(
    root: ManagedRoot,
    *,
    keep: Collection[str],
    grace_s: float,
    now: datetime,
    dry_run: bool = False,
) -> Collected:
    """Remove what no kept state and no open workspace needs.

    What is newer than an hour stays in any case: it may be a part of a state that is being stored.

    Args:
        keep: the ids of states that the store names.
        grace_s: states and layers that were last used less than so long ago stay as well.
        dry_run: only count.
    Raises:
        OSError: something cannot be removed.
    """
    collection = _Collection(root, frozenset(keep), grace_s, now.timestamp(), dry_run)
    return collection.collect()


class _Collection:
    def __init__(
        self, root: ManagedRoot, keep: frozenset[str], grace_s: float, now_s: float, dry_run: bool
    ) -> None:
        self._root = root
        self._keep = keep
        self._before_s = now_s - max(grace_s, NEW_S)
        self._old_s = now_s - NEW_S
        self._dry_run = dry_run
        self._states = States(root)
        self._collected = Collected()

    def collect(self) -> Collected:
        """Collect. A layer shares files with contents, and to remove it makes these look new."""
        self._root.trash.mkdir(exist_ok=True)
        self._remove_dead()
        removed = self._remove_states()
        self._remove_blobs(self._needed(but=removed if self._dry_run else ()))
        self._remove_layers()
        self._remove_unfinished()
        self._empty_trash()
        return self._collected

    def _remove_dead(self) -> None:
        for piece in _pieces(_entries(self._root.live)):
            with self._root.collecting():
                for folder in piece:
                    if not is_open(folder):
                        self._collected.num_live += 1
                        self._bury(folder)

    def _remove_states(self) -> set[str]:
        """Returns the ids of those that were, or would be, removed."""
        removed = set[str]()
        unnamed = (each for each in self._states.all() if each not in self._keep)
        for piece in _pieces(unnamed):
            with self._root.collecting():
                in_use = _in_use(self._root, "states")
                for state in piece:
                    if state not in in_use and self._is_older(self._states.path_of(state)):
                        removed.add(state)
                        self._remove_file(self._states.path_of(state))
        self._collected.num_states = len(removed)
        return removed

    def _needed(self, *, but: Collection[str]) -> set[str]:
        """The digests of all that stored states, but some, and unfinished applies need."""
        needed, manifests = contents_in_use(self._root.path), set[str]()
        for each in self._states.all():
            with suppress(StateLost):
                state = self._states.read(each)
                if each not in but:
                    needed |= {state.manifest, state.base.listing}
                    manifests.add(state.manifest)
        for manifest in manifests:
            with suppress(FileNotFoundError, BlobDamaged, ValueError, TypeError):  # see `verify`
                needed |= contents_of([from_json(self._root.blobs.read(manifest))])
        return needed

    def _remove_blobs(self, needed: Collection[str]) -> None:
        blobs = self._root.blobs
        for piece in _pieces(each for each in blobs.all() if each not in needed):
            with self._root.collecting():
                for digest in piece:
                    if self._is_older(blobs.path_of(digest), self._old_s):
                        self._collected.num_blobs += 1
                        self._remove_file(blobs.path_of(digest))

    def _remove_layers(self) -> None:
        folder = self._root.layers
        kept = set[str]()
        for layer in _names(folder):
            below = layers_below(folder, layer)
            if below is not None and _ctime_s(folder / layer / "below") >= self._before_s:
                kept |= {layer, *below}
        for piece in _pieces(each for each in _names(folder) if each not in kept):
            with self._root.collecting():
                in_use = _in_use(self._root, "layers")
                for layer in piece:
                    if layer not in in_use:
                        self._collected.num_layers += 1
                        self._bury(folder / layer)

    def _remove_unfinished(self) -> None:
        """What a process wrote that has died, before it got its name."""
        for folder in (self._root.states, self._root.layers):
            for each in _entries(folder, ".new"):
                self._bury_if_old(each)
        for each in _entries(self._root.path / "new"):
            self._bury_if_old(each)

    def _bury_if_old(self, place: Path) -> None:
        if _ctime_s(place) < self._old_s:
            self._bury(place)

    def _is_older(self, place: Path, than_s: float | None = None) -> bool:
        is_older = _ctime_s(place) < (self._before_s if than_s is None else than_s)
        self._collected.num_new += not is_older
        return is_older

    def _remove_file(self, place: Path) -> None:
        self._collected.num_bytes += _bytes_of(place)
        if not self._dry_run:
            place.unlink(missing_ok=True)

    def _bury(self, place: Path) -> None:
        """Move something away at once; it is removed later."""
        if self._dry_run:
            self._collected.num_bytes += _bytes_of(place)
        else:
            with suppress(FileNotFoundError):
                place.rename(self._root.trash / os.urandom(12).hex())

    def _empty_trash(self) -> None:
        """Remove what was moved away, also by a collection that has died."""
        for place in _entries(self._root.trash):
            self._collected.num_bytes += _bytes_of(place)
            if not self._dry_run:
                _remove(place)


@dataclass(frozen=True, slots=True)
class Verified:
    """What is wrong with the states under a managed root.

    Attributes:
        num_states: those that are stored.
        lost: stored states of which something is missing or damaged, with the reason.
        missing: ids of states that the store names and that are not stored.
        unnamed: ids of stored states that the store does not name.
    """

    num_states: int
    lost: Sequence[StateLost]
    missing: Sequence[str]
    unnamed: Sequence[str]


def verify(root: ManagedRoot, *, named: Collection[str]) -> Verified:
    """Read all that is stored, and compare it with what the store names.

    Args:
        named: the ids of the states that the store names.
    """
    states, verify_once = States(root), cache(root.blobs.verify)
    stored, lost = sorted(states.all()), list[StateLost]()
    for each in stored:
        try:
            states.check(states.read(each), verify=verify_once)
        except StateLost as error:
            if states.path_of(each).exists():  # it was not removed meanwhile
                lost.append(error)
    return Verified(
        len(stored),
        lost,
        missing=sorted(set(named).difference(stored)),
        unnamed=sorted(set(stored).difference(named)),
    )


def discard(root: ManagedRoot, ids: Iterable[str]) -> list[str]:
    """Give up states: what only they need is removed by the next collection.

    Returns:
        The ids of those that stay, as open workspaces name them.
    """
    states, kept = States(root), list[str]()
    for piece in _pieces(ids):
        with root.collecting():
            in_use = _in_use(root, "states")
            kept += in_use.intersection(piece)
            for state in set(piece) - in_use:
                states.discard(state)
    return kept


def _in_use(root: ManagedRoot, kind: str) -> set[str]:
    """What open workspaces name."""
    open_ones = (each for each in _entries(root.live) if is_open(each))
    return {name for folder in open_ones for name in named_in(folder, kind)}


def _remove(place: Path) -> None:
    """Remove what was moved away, unless another collection was faster."""
    try:
        if place.is_dir() and not place.is_symlink():
            remove_folder(place)
        else:
            place.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # a dying process still writes: the next time then
            raise


def _pieces(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    left = iter(items)
    while piece := list(islice(left, _AT_ONCE)):
        yield piece


def _names(folder: Path) -> list[str]:
    """What a folder holds under its final name; nothing if it is not there."""
    with suppress(FileNotFoundError):
        return [name for name in os.listdir(folder) if not name.endswith(".new")]
    return []


def _entries(folder: Path, ending: str = "") -> list[Path]:
    with suppress(FileNotFoundError):
        return [folder / name for name in os.listdir(folder) if name.endswith(ending)]
    return []


def _ctime_s(place: Path) -> float:
    """When it was written, linked or renewed last; never, if it is not there any more."""
    try:
        return place.lstat().st_ctime
    except FileNotFoundError:
        return math.inf


def _bytes_of(place: Path) -> int:
    """How much disk its removal frees, as far as it can be seen: not what has another name too."""
    files = [place] if not place.is_dir() else _files_below(place)
    sizes = {}
    for file in files:
        with suppress(OSError):
            status = file.lstat()
            if status.st_nlink == 1:
                sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent, name)
