"""Removes states of workspaces that nothing needs: their rows, documents, contents and layers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from cli.work.run_removal import time_before_now
from orchestrator.environment.collection import Collected, Verified, collect, verify
from orchestrator.environment.states.managed_root import ManagedRoot
from orchestrator.environment.states.root_owners import owners_of
from orchestrator.execution.context import EnvironmentsPlace
from store.database.urls import file_of, is_sqlite, normalised
from store.errors import StoreError
from store.session import Store, open_store
from store.state_records import CountDifference


@dataclass(frozen=True, slots=True)
class StateRequest:
    """What is asked of a collection of states.

    Attributes:
        grace_s: what nothing has needed for less than so long stays.
        budget_bytes: of disk for all states; None: no limit.
        verify: also count again what names each state, and read all contents.
    """

    grace_s: float
    budget_bytes: int | None = None
    verify: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class StateCleanup:
    """What was removed of states, or would be.

    Attributes:
        num_rows: states that the store no longer names.
        num_needed: states that rows of kept runs name.
        collected: None: nothing was looked for on the disk, as no states lie there, or `unread` is
            not empty.
        root_bytes: that all of them take afterwards.
        unread: other stores that keep states there too, and cannot be read.
        verified: None: it was not asked for.
        miscounted: states whose counter was wrong, which is corrected unless only counting.
    """

    num_rows: int = 0
    num_needed: int = 0
    collected: Collected | None = None
    root_bytes: int = 0
    unread: tuple[str, ...] = ()
    verified: Verified | None = None
    miscounted: tuple[CountDifference, ...] = ()


async def collect_states(
    store: Store,
    place: EnvironmentsPlace,
    request: StateRequest,
    *,
    released: Collection[str],
    progress: Callable[[str], None],
) -> StateCleanup:
    """Remove what no run that is recorded, and no open workspace, needs.

    Args:
        released: states that only the runs named that were removed, or would be, before this.
    """
    miscounted: tuple[CountDifference, ...] = ()
    if request.verify:
        progress("counting what names each state")
        async with store.transaction() as tx:
            found = await tx.states.recount(fix=not request.dry_run, at=datetime.now(UTC))
        miscounted = tuple(found)
    num_rows, needed = await _remove_rows(store, request.grace_s, released, request.dry_run)
    root = ManagedRoot(place.root)
    if not root.states.is_dir():
        return StateCleanup(num_rows, len(needed), miscounted=miscounted)
    others, unread = await _named_by_others(place)
    named = {*needed, *others}
    collected: Collected | None = None
    if not unread:
        progress("removing states and contents")
        collected = await _collect(root, named, request.grace_s, request)
    root_bytes = await asyncio.to_thread(bytes_below, root.path)
    if collected is not None and _is_over(root_bytes, collected, request):
        progress("removing states and layers within the time of grace")
        more, needed = await _remove_rows(store, 0.0, released, request.dry_run)
        num_rows = more if request.dry_run else num_rows + more
        further = await _collect(root, {*needed, *others}, 0.0, request)
        collected = further if request.dry_run else _sum(collected, further)
        root_bytes = await asyncio.to_thread(bytes_below, root.path)
    verified = None
    if request.verify:
        progress("reading all contents of states")
        verified = await asyncio.to_thread(verify, root, named=named)
    freed = collected.num_bytes if request.dry_run and collected is not None else 0
    return StateCleanup(
        num_rows,
        len(needed),
        collected,
        max(root_bytes - freed, 0),
        tuple(unread),
        verified,
        miscounted,
    )


def bytes_below(folder: Path) -> int:
    """The disk that a folder takes; a file with several names counts once."""
    sizes: dict[int, int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                status = Path(parent, name).lstat()
            except OSError:  # removed meanwhile
                continue
            sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


async def _remove_rows(
    store: Store, grace_s: float, released: Collection[str], dry_run: bool
) -> tuple[int, Collection[str]]:
    """Remove the store's unused states; returns how many, and the ids of the others."""
    async with store.transaction() as tx:
        unused = {state.id for state in await tx.states.unused(time_before_now(grace_s))}
        unused |= set(released)
        known = await tx.states.all_ids()
        removed = unused.intersection(known) if dry_run else await tx.states.remove(unused)
    return len(removed), set(known).difference(removed)


async def _named_by_others(place: EnvironmentsPlace) -> tuple[set[str], list[str]]:
    """The states that other stores name which keep theirs here, and those that cannot be read."""
    named, unread = set[str](), list[str]()
    for url in owners_of(place.root):
        try:
            address = normalised(url)
            if url == place.url or (is_sqlite(address) and not file_of(address).exists()):
                continue
            async with await open_store(url) as store, store.reading() as tx:
                named |= set(await tx.states.all_ids())
        except StoreError:
            unread.append(url)
    return named, unread


async def _collect(
    root: ManagedRoot, named: Collection[str], grace_s: float, request: StateRequest
) -> Collected:
    now = datetime.now(UTC)
    return await asyncio.to_thread(
        lambda: collect(root, keep=named, grace_s=grace_s, now=now, dry_run=request.dry_run)
    )


def _is_over(root_bytes: int, collected: Collected, request: StateRequest) -> bool:
    if request.budget_bytes is None or not request.grace_s:
        return False
    return root_bytes - (collected.num_bytes if request.dry_run else 0) > request.budget_bytes


def _sum(first: Collected, second: Collected) -> Collected:
    """Two collections, one after the other."""
    sums = {
        each.name: getattr(first, each.name) + getattr(second, each.name)
        for each in fields(Collected)
    }
    return Collected(**sums | {"num_new": second.num_new})
