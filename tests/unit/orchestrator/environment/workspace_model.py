"""Workspaces against plain folders: random operations in both, which must always show the same.

A long run:
    python -m tests.unit.orchestrator.environment.workspace_model --examples 2000 --steps 30 --jobs 2
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import errno
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from orchestrator.durability.values import ValueCodec
from orchestrator.environment import live_workspace
from orchestrator.environment.actions import Action, run_action
from orchestrator.environment.checkpoints import Checkpoint
from orchestrator.environment.environments import Backend, Environments, WorkspaceKind
from orchestrator.environment.files import layer_stacks
from orchestrator.environment.files.base_listing import list_base
from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.files.manifest import Files, Manifest
from orchestrator.environment.history import History, Moment
from orchestrator.environment.mounting import Mounting
from orchestrator.environment.position import Position
from orchestrator.environment.states import Base, State
from orchestrator.environment.trees.output import Output
from orchestrator.environment.trees.overlay_tree import OverlayTree
from orchestrator.environment.trees.shell_state import quoted
from orchestrator.environment.workspace import Workspace
from orchestrator.execution.step_execution import StepSpec
from store.records import Effects, StepKind
from tests.unit.orchestrator.environment.modelling.changes import (
    LONG,
    Change,
    Place,
    changes,
    commands,
    is_plain,
    numbers,
    places,
)
from tests.unit.orchestrator.environment.modelling.operators import (
    Listing,
    Operator,
    OperatorServer,
    process_in,
)
from tests.unit.orchestrator.environment.modelling.sample_base import make_base
from tests.unit.orchestrator.environment.modelling.shell_statements import PROBE, STATEMENTS

_SPEC = StepSpec("model", StepKind.STEP, ValueCodec("nothing", None), Effects.ENV)
_MOST_OPEN = 4


class Failing(Exception):
    """An action that fails on purpose."""


@dataclass(eq=False)
class Seat:
    """A workspace and the plain folder that must show the same.

    Attributes:
        mounted: what it shows, to see that something else was mounted.
        shell: what PROBE says in its shell.
        marks: checkpoints and the number of moments at each.
    """

    workspace: Workspace
    shadow: str
    origin: Seat | None = None
    operator: Operator | None = None
    sandbox: object = None
    mounted: tuple[int, int] = (0, 0)
    listing: Listing = field(default_factory=dict)
    shell: tuple[str, str] = ("", "")
    marks: list[Checkpoint] = field(default_factory=list)

    @property
    def live(self) -> live_workspace.LiveWorkspace:
        return self.workspace.position.mounting.live

    @property
    def history(self) -> History:
        return self.workspace.position.history


class Origin:
    """Names forks; the rest of what a run does for workspaces is left out."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    async def begin(self, workspace: Workspace) -> NoReturn:
        raise NotImplementedError

    def register(self, position: Position) -> None: ...

    def free_names(self, origin: str, count: int) -> list[str]:
        return [f"{origin}.{next(self._numbers)}" for _ in range(count)]

    async def end(self, position: Position) -> None:
        await position.mounting.close()


class World:
    """What all examples of a process share: a base, an operator for plain folders, a loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = folder / "base"
        self.base.mkdir()
        make_base(self.base, sealed=os.geteuid() == 0)
        self.server = OperatorServer()
        self.plain = self.server.operator()
        self.runner = asyncio.Runner()
        self.listing = self.plain.list(str(self.base), key="base")
        self.identity = list_base(self.base).identity
        self.counts: Counter[str] = Counter()
        self.results: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.digests: dict[Any, str] = {}
        self.numbers = itertools.count()

    def close(self) -> None:
        self.plain.close()
        self.server.close()
        self.runner.close()
        remove_folder(self.folder)

    def count(self, name: str, result: object) -> None:
        outcome = "done" if result in (0, 1000) else f"{result}"
        if isinstance(result, int) and 0 < result < 1000:
            outcome = errno.errorcode.get(result, outcome)
        self.results[name][outcome] += 1


class WorkspaceMachine(RuleBasedStateMachine):
    """One example: a workspace, its forks, and what was done with them."""

    world: ClassVar[World]
    backend: ClassVar[Backend] = "overlay"
    own: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        world = self.world
        world.counts["examples"] += 1
        self.folder = world.folder / f"example{next(world.numbers)}"
        self.root = self.folder / "root"
        (self.folder / "shadows").mkdir(parents=True)
        self.shadows = itertools.count()
        self.listings: dict[str, Listing] = {}
        self.probes: dict[str, tuple[str, str]] = {}
        self.times: defaultdict[str, defaultdict[str, set[int]]]
        self.times = defaultdict(lambda: defaultdict(set))
        self.trace: list[str] = []
        self.seats: list[Seat] = []
        self.home = Environments(self.root)
        self.kind = WorkspaceKind(str(world.base), own=self.own, backend=self.backend)
        self.run(self._begin)

    # ---- rules

    @rule(at=numbers, what=st.lists(changes, min_size=1, max_size=6))
    def change(self, at: int, what: list[Change]) -> None:
        self.run(self._change, self._seat(at), what)

    @rule(at=numbers, what=st.lists(changes, min_size=1, max_size=3))
    def change_little(self, at: int, what: list[Change]) -> None:
        self.run(self._change, self._seat(at), what)

    @rule(at=numbers, what=commands, way=st.sampled_from(["run", "shell"]))
    def command(self, at: int, what: Change, way: str) -> None:
        self.run(self._command, self._seat(at), what, way)

    @rule(
        at=numbers,
        where=places,
        text=st.sampled_from(["", "w", "written\n"]),
        mode=st.none() | st.sampled_from([0o600, 0o4755]),
    )
    def write(self, at: int, where: Place, text: str, mode: int | None) -> None:
        self.run(self._write, self._seat(at), where, text, mode)

    @rule(at=numbers, where=places)
    def read(self, at: int, where: Place) -> None:
        self.run(self._read, self._seat(at), where)

    @rule(
        at=numbers, what=st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=4), where=places
    )
    def shell(self, at: int, what: list[str], where: Place) -> None:
        self.run(self._shell, self._seat(at), what, where)

    @rule(at=numbers, what=st.lists(changes, min_size=1, max_size=4))
    def fail(self, at: int, what: list[Change]) -> None:
        self.run(self._fail, self._seat(at), what)

    @rule(at=numbers)
    def checkpoint(self, at: int) -> None:
        self.run(self._checkpoint, self._seat(at))

    @rule(at=numbers, to=numbers)
    def rewind(self, at: int, to: int) -> None:
        self.run(self._rewind, self._seat(at), to)

    @precondition(lambda self: len(self.seats) < _MOST_OPEN)
    @rule(at=numbers, count=st.integers(1, 2))
    def fork(self, at: int, count: int) -> None:
        self.run(self._fork, self._seat(at), count)

    @precondition(lambda self: len(self.seats) > 1)
    @rule(at=numbers)
    def adopt(self, at: int) -> None:
        self.run(self._adopt, self._fork_at(at))

    @precondition(lambda self: len(self.seats) > 1)
    @rule(at=numbers, also=st.booleans())
    def merge(self, at: int, also: bool) -> None:
        self.run(self._merge, self._fork_at(at), also)

    @precondition(lambda self: len(self.seats) > 1)
    @rule(at=numbers)
    def close_fork(self, at: int) -> None:
        self.run(self._close_fork, self._fork_at(at))

    @rule(how=st.sampled_from(["reopened", "layers lost", "a layer lost", "discarded"]), at=numbers)
    def begin_again(self, how: str, at: int) -> None:
        if how == "discarded":
            self.run(self._discard, self._seat(at))
        else:
            self.run(self._reopen, how)

    # ---- the beginning and the end

    async def _begin(self) -> None:
        base = Base(str(self.world.base), self.world.identity)
        state = self.home.states.add(base, {}, "", ())
        workspace = Workspace(Origin())
        mounting = Mounting(self.home, self.kind, is_trusted=True)
        workspace.place("w", mounting, History([Moment("begin", "workspace", state.id)]))
        self.seats.append(Seat(workspace, self._new_shadow()))
        self.world.plain.do(self.seats[0].shadow, "restore", key="base")
        await self._acted(self.seats[0], self._nothing)
        self.seats[0].shell = await self._probe(self.seats[0])
        await self._compare(self.seats[0])

    def teardown(self) -> None:
        self.run(self._end)
        assert os.listdir(self.root / "live") == []
        assert self.world.plain.list(str(self.world.base)) == self.world.listing, "the base changed"
        remove_folder(self.folder)

    async def _end(self) -> None:
        first = self._first
        for seat in list(self.seats):
            self._drop(seat)
        await first.workspace.close()
        await self.home.close()

    # ---- what the rules do

    async def _change(self, seat: Seat, what: Sequence[Change]) -> None:
        operations = [each.operation(seat.listing) for each in what]
        results = await self._acted(seat, lambda: self._operate(seat, operations))
        self._mirror(seat, operations, results)
        await self._compare(seat)

    async def _operate(self, seat: Seat, operations: list[list[Any]]) -> list[Any]:
        operator = await self._operator(seat)
        results = operator.operate(self._place(seat), operations)
        for operation, result in zip(operations, results, strict=True):
            self.world.count(operation[0], result)
            self.trace.append(f"{operation!r:.300} -> {errno.errorcode.get(result, result)}")
        return results

    def _mirror(self, seat: Seat, operations: list[list[Any]], results: Sequence[Any]) -> None:
        """Do the same in the plain folder: there all folders can be renamed."""
        refused = [
            operation[0] in ("rename", "exchange") and result == errno.EXDEV
            for operation, result in zip(operations, results, strict=True)
        ]
        done = [
            each for each, is_refused in zip(operations, refused, strict=True) if not is_refused
        ]
        expected = self.world.plain.operate(seat.shadow, done)
        found = [each for each, is_refused in zip(results, refused, strict=True) if not is_refused]
        assert found == expected, self._told(f"{done}: {found} instead of {expected}")

    async def _command(self, seat: Seat, what: Change, way: str) -> None:
        one, other = what.paths(seat.listing)
        is_in_itself = other == one or other.startswith(f"{one}/")
        if what.name in ("mv", "cp", "tar") and (
            is_in_itself or not is_plain(seat.listing, one) or not is_plain(seat.listing, other)
        ):
            return
        script = what.command(seat.listing)
        if way == "run":
            code = (await seat.workspace.run(script)).exit_code
        else:
            inner = f"(umask 022; cd -- {quoted(self._place(seat))} && bash -c {quoted(script)})"
            code = (await seat.workspace.shell(inner)).exit_code
        self.world.count(what.name, 1000 + code)
        self.trace.append(f"{way} {script!r:.300} -> {code}")
        [expected] = self.world.plain.operate(seat.shadow, [["bash", script]])
        assert code == expected - 1000, self._told(f"{script}: {code} instead of {expected - 1000}")
        await self._compare(seat, is_copied=what.name == "mv")

    async def _write(self, seat: Seat, where: Place, text: str, mode: int | None) -> None:
        path, code = where.in_tree(seat.listing), 0
        try:
            await seat.workspace.write(path, text, mode=mode)
        except OSError as error:
            code = error.errno or -1
        self.trace.append(
            f"write {path!r:.200} {text!r} {mode} -> {errno.errorcode.get(code, code)}"
        )
        self.world.count("ws.write", code)
        arguments = {"path": path, "data": text, "mode": mode}
        expected = self.world.plain.do(seat.shadow, "write_as_host", **arguments)
        if code:  # what a failed action has done is taken back
            self.world.plain.do(seat.shadow, "restore", key=seat.workspace.state)
        assert code == expected, self._told(f"write {path}: {code} instead of {expected}")
        await self._compare(seat, is_shown=bool(code))

    async def _read(self, seat: Seat, where: Place) -> None:
        path = where.in_tree(seat.listing)
        found: object
        try:
            data = await seat.workspace.read_bytes(path)
            found = seat.listing[path].size if path in seat.listing else len(data)
            assert len(data) == found or seat.listing[path].kind != "file", self._told(path)
        except OSError as error:
            found = error.errno
        expected = self.world.plain.do(seat.shadow, "read_as_host", path=path)
        is_failed = isinstance(expected, int)
        self.world.count("ws.read", found if is_failed else 0)
        assert not is_failed or found == expected, self._told(f"{path}: {found} not {expected}")
        self.trace.append(f"read {path!r:.200} -> {expected}")
        if is_failed:  # so the action is taken back
            self.world.plain.do(seat.shadow, "restore", key=seat.workspace.state)
        await self._compare(seat, is_shown=is_failed)

    async def _shell(self, seat: Seat, what: list[str], where: Place) -> None:
        folder = where.in_tree(seat.listing)
        for each in what:
            statement = each.replace("FOLDER", quoted(f"{self._place(seat)}/{folder}"))
            completed = await seat.workspace.shell(f"{statement}\n{PROBE}")
            self.trace.append(f"shell {statement!r:.300} -> {completed.exit_code}")
            if each.startswith("exit"):
                assert completed.exit_code == 3
            else:
                seat.shell = _probed(completed.stdout)
            self.world.count("shell", 0)
            await self._compare(seat)
            if each.startswith("exit"):
                await self._require_shell(seat, self.listings[seat.workspace.state])

    async def _fail(self, seat: Seat, what: Sequence[Change]) -> None:
        operations = [each.operation(seat.listing) for each in what]

        async def work() -> None:
            await self._operate(seat, operations)
            raise Failing

        try:
            await self._acted(seat, work)
        except Failing:
            self.trace.append("-> rolled back")
        self.world.plain.do(seat.shadow, "restore", key=seat.workspace.state)
        await self._compare(seat, is_shown=True)

    async def _checkpoint(self, seat: Seat) -> None:
        before = seat.workspace.state
        mark = await seat.workspace.checkpoint(f"c{len(seat.marks)}")
        assert mark.state == before, self._told("captured twice, with two ids")
        seat.marks.append(mark)
        self.trace.append(f"checkpoint {len(seat.marks) - 1}")
        await self._compare(seat)

    async def _rewind(self, seat: Seat, to: int) -> None:
        if not seat.marks:
            return
        index = to % len(seat.marks)
        await seat.workspace.rewind(seat.marks[index])
        self.trace.append(f"rewind to {index}")
        assert seat.workspace.state == seat.marks[index].state, self._told("rewound to another")
        del seat.marks[index + 1 :]
        await self._was_shown(seat)

    async def _was_shown(self, seat: Seat) -> None:
        """Its state was shown, which is another one than its plain folder has."""
        self.world.plain.do(seat.shadow, "restore", key=seat.workspace.state)
        seat.shell = self.probes[seat.workspace.state]
        await self._compare(seat, is_shown=True)

    async def _fork(self, seat: Seat, count: int) -> None:
        forks = await seat.workspace.fork(min(count, _MOST_OPEN - len(self.seats)))
        self.trace.append(f"fork {seat.workspace.name}: {[each.name for each in forks]}")
        await self._compare(seat)
        for each in forks:
            fork = Seat(each, self._new_shadow(), seat)
            fork.marks = list(seat.marks)
            self.seats.append(fork)
            await self._acted(fork, self._nothing)
            assert fork.workspace.state == seat.workspace.state, self._told("a fork differs")
            await self._was_shown(fork)

    async def _adopt(self, fork: Seat) -> None:
        origin = fork.origin
        assert origin is not None
        state, marks = fork.workspace.state, list(fork.marks)
        await origin.workspace.adopt(fork.workspace)
        self.trace.append(f"{origin.workspace.name} adopts {fork.workspace.name}")
        assert origin.workspace.state == state, self._told("adopted another state")
        origin.marks = marks
        self._drop_below(origin)
        await self._was_shown(origin)

    async def _merge(self, fork: Seat, also: bool) -> None:
        origin = fork.origin
        assert origin is not None
        others = [fork]
        if also:
            others += [s for s in self.seats if s.origin is origin and s is not fork][:1]
        try:
            ancestor = origin.history.common_with(*(each.history for each in others))
        except ValueError:
            return
        states = [ancestor, *(each.workspace.state for each in (origin, *others))]
        before, *sides = (_by_top(self.listings[state]) for state in states)
        merged = _merged(before, sides)
        if merged is None:
            return
        result = await origin.workspace.merge(*(each.workspace for each in others))
        self.trace.append(f"merge {[each.workspace.name for each in others]}")
        assert not result.merged_paths
        scripts = [self.home.states.get(state).shell for state in states]
        shells = [self.probes[state] for state in states]
        shell, script = shells[1], scripts[1]
        for number in range(2, len(states)):
            if script == scripts[0]:
                shell, script = shells[number], scripts[number]
        seat, sources = origin, [ancestor, *states[1:]]
        self._assemble(seat, merged, sources)
        seat.shell = shell
        await self._compare(seat, is_shown=True)

    def _assemble(self, seat: Seat, merged: dict[str, int], sources: list[str]) -> None:
        self.world.plain.do(
            seat.shadow, "assemble", parts=[[name, sources[at]] for name, at in merged.items()]
        )

    async def _close_fork(self, fork: Seat) -> None:
        self.trace.append(f"close {fork.workspace.name}")
        self._drop_below(fork)
        self._drop(fork)
        await fork.workspace.close()
        if fork.origin is not None:
            fork.origin.workspace._forks.remove(fork.workspace)

    async def _reopen(self, layers: str) -> None:
        """As a new process would: nothing is known but what is stored."""
        seat = self._first
        self._drop_below(seat)
        history = seat.history
        await seat.workspace.close()
        await self.home.close()
        self._drop(seat)
        self._lose_layers(layers)
        self.home = Environments(self.root)
        workspace = Workspace(Origin())
        mounting = Mounting(self.home, self.kind, is_trusted=False)
        workspace.place("w", mounting, History(list(history.moments)))
        seat.workspace = workspace
        self.seats.append(seat)
        self.trace.append(f"reopen: {layers}")
        before = workspace.state
        await self._acted(seat, self._nothing)
        assert workspace.state == before, self._told("reopened with another state")
        await self._was_shown(seat)

    def _lose_layers(self, layers: str) -> None:
        folder = self.root / "layers"
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        if layers == "a layer lost":
            found = found[:1]
        for each in found if layers != "reopened" else []:
            remove_folder(each)

    async def _discard(self, seat: Seat) -> None:
        self._drop_below(seat)
        await seat.workspace.discard()
        self.trace.append(f"discard {seat.workspace.name}")
        seat.marks = []
        await self._was_shown(seat)

    # ---- comparing

    async def _compare(
        self,
        seat: Seat,
        *,
        is_shown: bool = False,
        is_copied: bool = False,
    ) -> None:
        """A workspace and its plain folder show the same, and its state is exactly that.

        Args:
            is_shown: the state was mounted anew.
            is_copied: names of one file may have become files of their own.
        """
        state = self.home.states.get(seat.workspace.state)
        expected = self.world.plain.list(seat.shadow, key=state.id)
        is_remounted = self._is_remounted(seat)
        assert is_remounted or not is_shown or not seat.mounted[0], self._told("not mounted anew")
        if is_remounted and not is_shown:  # it was settled
            self.world.counts["settled"] += 1
            self.world.plain.do(seat.shadow, "restore", key=state.id)
            expected = self.world.plain.list(seat.shadow, key=state.id)
        found = (await self._operator(seat)).list(self._place(seat))
        self._require_equal(found, expected)
        seat.mounted, seat.listing = _mounted(seat.live._tree), expected
        if not is_remounted:
            self._require_links(seat, expected, is_copied=is_copied)
        kept = {path: each for path, each in expected.items() if each.kind != "socket"}
        manifest = self.home.states.manifest(state)
        self._require_manifest(manifest, kept)
        self._require_identity(state.files, kept)
        self._require_times(state, manifest, found, is_remounted=is_remounted)
        if is_remounted:
            await self._require_shell(seat, kept)
        self.listings[state.id] = kept
        self.probes.setdefault(state.id, seat.shell)
        self.world.counts["steps"] += 1

    def _require_equal(self, found: Listing, expected: Listing) -> None:
        wrong = [
            f"{path!r:.100}: {found.get(path)} instead of {expected.get(path)}"
            for path in sorted(found.keys() | expected.keys())
            if path not in found
            or path not in expected
            or found[path].shown != expected[path].shown
        ]
        assert not wrong, self._told("\n".join(["the view is wrong:", *wrong[:10]]))

    def _require_links(self, seat: Seat, expected: Listing, *, is_copied: bool) -> None:
        """Names of one file are that in the workspace too, but that copying may separate them."""
        tree = seat.live._tree
        below = tree.place
        if isinstance(tree, OverlayTree):
            below = str(self.root / tree._upper)
        for paths in _links(expected):
            by_inode = defaultdict(list)
            inodes = self.world.plain.do(below, "inodes", paths=paths)
            for path, inode in zip(paths, inodes, strict=True):
                by_inode[inode].append(path)
            first, *others = by_inode.values()
            assert is_copied or not others, self._told(f"{paths} are not one file any more")
            for part in others:
                self.world.plain.do(seat.shadow, "separate", paths=part)

    def _require_manifest(self, manifest: Manifest, expected: Listing) -> None:
        wanted = _difference(self.world.listing, expected)
        wrong = [
            f"{path!r:.100}: {manifest.get(path)} instead of {wanted.get(path)}"
            for path in sorted(wanted.keys() | manifest.keys())
            if path not in manifest
            or path not in wanted
            or (manifest[path].kind, manifest[path].mode, manifest[path].size) != wanted[path][:3]
            or not self._is_content(manifest[path].content, wanted[path][3], manifest[path].kind)
        ]
        assert not wrong, self._told("\n".join(["the manifest is wrong:", *wrong[:10]]))

    def _is_content(self, stored: str, listed: str, kind: str) -> bool:
        if kind != "file":
            return stored == listed
        return self.world.digests.setdefault(("content", listed), stored) == stored

    def _require_identity(self, digest: str, expected: Listing) -> None:
        tree = hash(tuple((path, *each.shown) for path, each in sorted(expected.items())))
        known = self.world.digests.setdefault(("tree", tree), digest)
        assert known == digest, self._told("equal trees have two ids")
        known = self.world.digests.setdefault(("digest", digest), str(tree))
        assert known == str(tree), self._told("different trees have one id")

    def _require_times(
        self, state: State, manifest: Manifest, found: Listing, *, is_remounted: bool
    ) -> None:
        """Files and links have a time with which they were captured: of any state with the files."""
        is_first = state.id not in self.listings and not is_remounted
        for path, entry in manifest.items():
            if entry.kind in ("file", "link"):
                times = self.times[state.files][path]
                times.add(entry.mtime_ns)
                now = found[path].mtime_ns
                assert not is_first or now == entry.mtime_ns, self._told(f"{path}: a wrong time")
                assert is_remounted <= (now in times), self._told(f"{path} has another time")

    async def _require_shell(self, seat: Seat, kept: Listing) -> None:
        """A new shell has the state that was captured; its folder, unless that is gone."""
        folder, rest = seat.shell
        found = await self._probe(seat)
        is_there = folder == self._place(seat) or self._is_entered(seat, folder)
        expected = (folder if is_there else self._place(seat), rest)
        if found != expected:
            texts = [f"{each[0]}\n{each[1]}".splitlines() for each in (expected, found)]
            raise AssertionError(self._told("\n".join(difflib.unified_diff(*texts, n=0))))

    async def _probe(self, seat: Seat) -> tuple[str, str]:
        output = Output(1 << 20)
        await seat.live._shell.run(PROBE, output)
        return _probed(output.streams["stdout"].decode(errors="backslashreplace"))

    def _is_entered(self, seat: Seat, folder: str) -> bool:
        """Whether a shell can change to a folder."""
        if not folder.startswith(self._place(seat)):
            return True
        relative = folder[len(self._place(seat)) + 1 :]
        name = _bytes_of(relative)
        [result] = self.world.plain.operate(seat.shadow, [["enter", name]])
        return bool(result == 0)

    # ---- small things

    @property
    def _first(self) -> Seat:
        [seat] = [each for each in self.seats if each.origin is None]
        return seat

    def run(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(60):
                await work(*arguments)

        self.world.counts[f"rule {work.__name__[1:]}"] += 1
        self.world.runner.run(limited())

    def _seat(self, at: int) -> Seat:
        return self.seats[at % len(self.seats)]

    def _fork_at(self, at: int) -> Seat:
        forks = [each for each in self.seats if each.origin is not None]
        return forks[at % len(forks)]

    def _new_shadow(self) -> str:
        folder = self.folder / "shadows" / str(next(self.shadows))
        folder.mkdir()
        return str(folder)

    def _place(self, seat: Seat) -> str:
        return seat.live._tree.place

    async def _operator(self, seat: Seat) -> Operator:
        tree = seat.live._tree
        if seat.sandbox is not tree:
            if seat.operator is not None:
                seat.operator.close()
            seat.operator = self.world.server.operator(await process_in(seat.live))
            seat.sandbox = tree
            _count_mounts(tree)
        assert seat.operator is not None
        return seat.operator

    def _is_remounted(self, seat: Seat) -> bool:
        return seat.mounted != _mounted(seat.live._tree)

    async def _acted(self, seat: Seat, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do something as an action of a workspace."""
        return await run_action(None, seat.workspace.position, Action(_SPEC), work)

    async def _nothing(self) -> None: ...

    def _drop(self, seat: Seat) -> None:
        if seat.operator is not None:
            seat.operator.close()
            seat.operator = seat.sandbox = None
        self.seats.remove(seat)

    def _drop_below(self, origin: Seat) -> None:
        """Forget forks that are closed with their origin."""
        for seat in list(self.seats):
            if seat.origin is origin:
                self._drop_below(seat)
                self._drop(seat)

    def _told(self, text: str) -> str:
        return "\n".join([text, "after:", *self.trace]).replace(LONG, "LONG")


def _probed(text: str) -> tuple[str, str]:
    rest, _, folder = text.rpartition("\0")
    return folder, rest


def _bytes_of(shown: str) -> str:
    """A path that was decoded with backslashes, as the file system's functions take it."""
    return os.fsdecode(
        shown.encode("latin-1", "backslashreplace").decode("unicode_escape").encode("latin-1")
    )


def _mounted(tree: Any) -> tuple[int, int]:
    """Changes whenever a tree shows other files."""
    return id(tree), getattr(tree, "num_mounts", 0)


def _count_mounts(tree: Any) -> None:
    mount = tree.mount
    tree.num_mounts = 0

    async def counted(files: Files) -> None:
        await mount(files)
        tree.num_mounts += 1

    tree.mount = counted


def _links(listing: Listing) -> list[list[str]]:
    """Names of one file."""
    by_inode = defaultdict(list)
    for path, each in listing.items():
        if each.kind != "folder":
            by_inode[each.inode].append(path)
    return [paths for paths in by_inode.values() if len(paths) > 1]


def _difference(base: Listing, tree: Listing) -> dict[str, tuple[str, int, int, str]]:
    """The canonical manifest, by comparing whole trees: kind, mode, size and content."""
    found = {
        path: (each.kind, each.mode, each.size, each.content)
        for path, each in tree.items()
        if path not in base or base[path].shown != each.shown
    }
    for path in base:
        parent = os.path.dirname(path)
        if path not in tree and (not parent or (parent in tree and tree[parent].kind == "folder")):
            found[path] = ("gone", 0, 0, "")
    return found


Tops = dict[str, frozenset[Any]]


def _by_top(listing: Listing) -> Tops:
    """What there is at each name of the workspace's own folder, and below."""
    found = defaultdict(set)
    for path, each in listing.items():
        found[path.split("/")[0]].add((path, each.shown))
    return {name: frozenset(each) for name, each in found.items()}


def _merged(before: Tops, sides: Sequence[Tops]) -> dict[str, int] | None:
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


@dataclass(frozen=True)
class Run:
    """How much is tried."""

    examples: int
    steps: int
    seed: int
    folder: Path | None = None
    is_shrunk: bool = True
    backend: Backend = "overlay"
    own: tuple[str, ...] = ()


def run_model(asked: Run) -> World:
    """Run examples; raises AssertionError with the smallest one that fails."""
    folder = Path(tempfile.mkdtemp(dir=asked.folder))
    folder.chmod(0o755)
    world = World(folder)
    attributes = {"world": world, "backend": asked.backend, "own": asked.own}
    machine = type("Machine", (WorkspaceMachine,), attributes)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(live_workspace, "_MANY_CHANGES", 12)
            patch.setattr(layer_stacks, "MAX_DEPTH", 3)
            run_state_machine_as_test(
                seed(asked.seed)(machine),
                settings=settings(
                    max_examples=asked.examples,
                    stateful_step_count=asked.steps,
                    deadline=None,
                    database=None,
                    print_blob=False,
                    phases=[phase for phase in Phase if asked.is_shrunk or phase != Phase.shrink],
                    suppress_health_check=list(HealthCheck),
                    report_multiple_bugs=False,
                ),
            )
    finally:
        world.close()
    return world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where all is written; one of its own in it")
    parser.add_argument("--backend", choices=["overlay", "copies"], default="overlay")
    parser.add_argument("--own", action="append", default=[], help="folder that is copied up")
    parser.add_argument("--no-shrink", action="store_true")
    given = parser.parse_args()
    if given.jobs > 1:
        sys.exit(_in_parallel(given))
    began_s = time.monotonic()
    world = run_model(
        Run(
            given.examples,
            given.steps,
            given.seed,
            given.folder,
            is_shrunk=not given.no_shrink,
            backend=given.backend,
            own=tuple(given.own),
        )
    )
    seconds = time.monotonic() - began_s
    counts = world.counts
    print(
        f"{counts['examples']} examples, {counts['steps']} comparisons in {seconds:.0f} s:", end=""
    )
    print(f" {counts['examples'] / seconds:.1f} examples/s; {counts['settled']} times settled")
    rules = {name[5:]: count for name, count in sorted(counts.items()) if name.startswith("rule ")}
    print("rules:", ", ".join(f"{name} {count}" for name, count in rules.items()))
    for name, results in sorted(world.results.items()):
        print(f"{name}:", ", ".join(f"{each} {count}" for each, count in results.most_common()))


def _in_parallel(given: argparse.Namespace) -> int:
    """Divide the examples over processes."""
    module = "tests.unit.orchestrator.environment.workspace_model"
    arguments = ["--examples", str(given.examples // given.jobs), "--steps", str(given.steps)]
    arguments += ["--folder", str(given.folder)] if given.folder else []
    arguments += ["--backend", given.backend, *(f"--own={each}" for each in given.own)]
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments, "--seed", str(given.seed + number)]
        )
        for number in range(given.jobs)
    ]
    return max(job.wait() for job in jobs)


if __name__ == "__main__":
    main()
