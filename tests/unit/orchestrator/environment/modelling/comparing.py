"""One example: its workspaces, each compared with the plain folder that must show the same."""

from __future__ import annotations

import difflib
import itertools
import os
from collections import defaultdict

from orchestrator.environment.environments import Backend, Environments, WorkspaceKind
from orchestrator.environment.files.manifest import Entry, Manifest, parents_of
from orchestrator.environment.states.stored_states import State
from orchestrator.environment.trees.output import Output
from orchestrator.environment.trees.overlay_tree import OverlayTree
from tests.unit.orchestrator.environment.modelling.changes import LONG
from tests.unit.orchestrator.environment.modelling.listings import Change, difference, links
from tests.unit.orchestrator.environment.modelling.operators import Listing, Operator, process_in
from tests.unit.orchestrator.environment.modelling.shell_statements import PROBE
from tests.unit.orchestrator.environment.modelling.world import Seat, World, count_mounts

Probe = tuple[str, str]
"""What a shell shows: its folder, as if the workspace was at its base; the rest."""


class Example:
    """Workspaces under one managed root.

    Attributes:
        listings, probes: of the files and the shell, by state.
        times: those that a file was stored with, by the digest of all files and its path.
        trace: what was done.
    """

    def __init__(self, world: World, backend: Backend, own: tuple[str, ...]) -> None:
        world.counts["examples"] += 1
        self.world = world
        self.backend = backend
        self.folder = world.folder / f"example{next(world.numbers)}"
        self.root = self.folder / "root"
        (self.folder / "shadows").mkdir(parents=True)
        self.kind = WorkspaceKind(str(world.base), own=own, backend=backend)
        self.home = Environments(self.root)
        self.listings: dict[str, Listing] = {}
        self.probes: dict[str, Probe] = {}
        self.times: defaultdict[str, defaultdict[str, set[int]]]
        self.times = defaultdict(lambda: defaultdict(set))
        self.trace: list[str] = []
        self.seats: list[Seat] = []
        self._shadows = itertools.count()

    async def compare(self, seat: Seat, *, is_shown: bool = False, is_copied: bool = False) -> None:
        """A workspace and its plain folder show the same, and its state is exactly that.

        Args:
            is_shown: the state was mounted anew.
            is_copied: names of one file may have become files of their own.
        """
        plain = self.world.plain
        state = self.home.states.get(seat.workspace.state)
        expected = plain.list(seat.shadow, key=state.id)
        is_remounted = seat.mounted != seat.now_mounted
        assert is_remounted or not is_shown or not seat.mounted, self.told("not mounted anew")
        if is_remounted and not is_shown:  # it had many changes, which became layers
            self.world.counts["settled"] += 1
            plain.do(seat.shadow, "restore", key=state.id)
            expected = plain.list(seat.shadow, key=state.id)
        found = (await self.operator(seat)).list(seat.place)
        self._require_equal(found, expected)
        seat.mounted, seat.listing = seat.now_mounted, expected
        if not is_remounted:
            self._require_links(seat, expected, is_copied=is_copied)
        kept = {path: each for path, each in expected.items() if each.kind != "socket"}
        manifest = self.home.states.manifest(state)
        if self._require_manifest(manifest, kept):
            self._require_identity(state.files, kept)
        self._require_times(state, manifest, found, is_remounted=is_remounted)
        if is_remounted:
            await self.require_shell(seat)
        self.listings[state.id] = kept
        self.probes.setdefault(state.id, seat.shell)
        self.world.counts["comparisons"] += 1

    async def require_shell(self, seat: Seat) -> None:
        """A new shell has the state that was captured; its folder, unless that is gone."""
        folder, rest = seat.shell
        found = await self.probe(seat)
        expected = (folder if self._is_entered(seat, folder) else str(self.world.base), rest)
        if found != expected:
            texts = [f"{each[0]}\n{each[1]}".splitlines() for each in (expected, found)]
            raise AssertionError(self.told("\n".join(difflib.unified_diff(*texts, n=0))))

    async def probe(self, seat: Seat) -> Probe:
        """What the shell of a workspace shows now."""
        output = Output(1 << 20)
        await seat.live._shell._shell.run(PROBE, output)  # so that it does not count as used
        text = output.streams["stdout"].decode(errors="backslashreplace")
        return self.probed(seat, text)

    def probed(self, seat: Seat, text: str) -> Probe:
        """What PROBE has written."""
        written = text.rpartition("\1")[2].replace(seat.place, str(self.world.base))
        rest, folder, _ = written.split("\0")
        return folder, rest

    async def operator(self, seat: Seat) -> Operator:
        """The operator in a workspace's sandbox."""
        tree = seat.live._tree
        if seat.sandbox is not tree:
            if seat.operator is not None:
                seat.operator.close()
            seat.operator = self.world.server.operator(await process_in(seat.live))
            seat.sandbox = tree
            count_mounts(tree)
        assert seat.operator is not None
        return seat.operator

    def new_shadow(self) -> str:
        """A plain folder for one more workspace."""
        folder = self.folder / "shadows" / str(next(self._shadows))
        folder.mkdir()
        return str(folder)

    def told(self, text: str) -> str:
        """A message with what has led to it."""
        return "\n".join([text, "after:", *self.trace]).replace(LONG, "LONG")

    def _require_equal(self, found: Listing, expected: Listing) -> None:
        wrong = [
            f"{path!r:.100}: {found.get(path)} instead of {expected.get(path)}"
            for path in sorted(found.keys() | expected.keys())
            if path not in found
            or path not in expected
            or found[path].shown != expected[path].shown
        ]
        assert not wrong, self.told("\n".join(["the view is wrong:", *wrong[:10]]))

    def _require_links(self, seat: Seat, expected: Listing, *, is_copied: bool) -> None:
        """Names of one file are that in the workspace too, but that copying may separate them."""
        tree = seat.live._tree
        below = str(self.root / tree._upper) if isinstance(tree, OverlayTree) else tree.place
        for paths in links(expected):
            by_inode = defaultdict(list)
            inodes = self.world.plain.do(below, "inodes", paths=paths)
            for path, inode in zip(paths, inodes, strict=True):
                by_inode[inode].append(path)
            _, *others = by_inode.values()
            assert is_copied or not others, self.told(f"{paths} are not one file any more")
            for part in others:
                self.world.plain.do(seat.shadow, "separate", paths=part)

    def _require_manifest(self, manifest: Manifest, expected: Listing) -> bool:
        """A manifest is the difference to the base.

        Returns:
            Whether it is exactly that: what this user may not read in the base counts as changed.
        """
        wanted = difference(self.world.listing, expected)
        wrong = [
            f"{path!r:.100}: {manifest.get(path)} instead of {wanted.get(path)}"
            for path in sorted(wanted.keys() | manifest.keys())
            if not self._is_wanted(manifest.get(path), wanted.get(path))
            and not (path not in wanted and self._is_sealed(path))
        ]
        assert not wrong, self.told("\n".join(["the manifest is wrong:", *wrong[:10]]))
        return manifest.keys() == wanted.keys()

    def _is_wanted(self, stored: Entry | None, wanted: Change | None) -> bool:
        if stored is None or wanted is None:
            return stored is wanted
        if (stored.kind, stored.mode, stored.size) != wanted[:3]:
            return False
        if stored.kind != "file":
            return stored.content == wanted[3]
        known = self.world.digests.setdefault(("content", wanted[3]), stored.content)
        return known == stored.content

    def _is_sealed(self, path: str) -> bool:
        """Whether this user may not read a path in the base."""
        seen = self.world.listing
        closed = any(each in seen and not seen[each].mode & 0o100 for each in parents_of(path))
        return bool(os.geteuid()) and (closed or (path in seen and not seen[path].mode & 0o400))

    def _require_identity(self, digest: str, expected: Listing) -> None:
        tree = hash(tuple((path, *each.shown) for path, each in sorted(expected.items())))
        known = self.world.digests.setdefault(("tree", tree), digest)
        assert known == digest, self.told("equal trees have two ids")
        known = self.world.digests.setdefault(("digest", digest), str(tree))
        assert known == str(tree), self.told("different trees have one id")

    def _require_times(
        self, state: State, manifest: Manifest, found: Listing, *, is_remounted: bool
    ) -> None:
        """Files and links have a time that they were stored with, in any state of these files."""
        is_first = state.id not in self.listings and not is_remounted
        for path, entry in manifest.items():
            if entry.kind in ("file", "link"):
                times = self.times[state.files][path]
                times.add(entry.mtime_ns)
                now = found[path].mtime_ns
                assert not is_first or now == entry.mtime_ns, self.told(f"{path}: a wrong time")
                assert not is_remounted or now in times, self.told(f"{path} has another time")

    def _is_entered(self, seat: Seat, folder: str) -> bool:
        """Whether a shell can change to a folder."""
        base = str(self.world.base)
        if not folder.startswith(base):
            return True
        shown = folder[len(base) + 1 :].encode("latin-1", "backslashreplace")
        path = os.fsdecode(shown.decode("unicode_escape").encode("latin-1"))
        [result] = self.world.plain.operate(seat.shadow, [["enter", path or "."]])
        return bool(result == 0)
