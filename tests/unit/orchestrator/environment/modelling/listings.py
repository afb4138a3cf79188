"""Whole trees as operators list them: compared, and merged by names."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tests.unit.orchestrator.environment.modelling.operators import Listing

Change = tuple[str, int, int, str]
"""Kind, mode, size and content of what differs from a base."""

Tops = dict[str, frozenset[Any]]
"""What there is at each name of the workspace's own folder, and below."""


def links(listing: Listing) -> list[list[str]]:
    """Names of one file."""
    by_inode = defaultdict(list)
    for path, each in listing.items():
        if each.kind != "folder":
            by_inode[each.inode].append(path)
    return [paths for paths in by_inode.values() if len(paths) > 1]


def difference(base: Listing, tree: Listing) -> dict[str, Change]:
    """The canonical manifest, by comparing whole trees."""
    found: dict[str, Change] = {
        path: (each.kind, each.mode, each.size, each.content)
        for path, each in tree.items()
        if path not in base or base[path].shown != each.shown
    }
    for path in base:
        parent = os.path.dirname(path)
        if path not in tree and (not parent or (parent in tree and tree[parent].kind == "folder")):
            found[path] = ("gone", 0, 0, "")
    return found


def by_top(listing: Listing) -> Tops:
    """See Tops."""
    found = defaultdict(set)
    for path, each in listing.items():
        found[path.split("/")[0]].add((path, each.shown))
    return {name: frozenset(each) for name, each in found.items()}


def merged(before: Tops, sides: Sequence[Tops]) -> dict[str, int] | None:
    """From which tree each name is taken, 0 being `before`; None: two have changed one name."""
    taken = {}
    for name in {name for each in (before, *sides) for name in each}:
        changed = [at for at, side in enumerate(sides) if side.get(name) != before.get(name)]
        if len({sides[at].get(name) for at in changed}) > 1:
            return None
        source = changed[0] + 1 if changed else 0
        if name in (before, *sides)[source]:
            taken[name] = source
    return taken
