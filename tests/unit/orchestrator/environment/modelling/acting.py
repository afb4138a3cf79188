"""What is done in an example: in a workspace, and the same in its plain folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from orchestrator.durability.values import ValueCodec
from orchestrator.environment.actions import Action, run_action
from orchestrator.environment.completed import TIMED_OUT
from orchestrator.environment.environments import Environments
from orchestrator.environment.errors import OutsideWorkspace
from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.history import History, Moment
from orchestrator.environment.mounting import Mounting
from orchestrator.environment.states.stored_states import Base
from orchestrator.environment.trees.shell_state import quoted
from orchestrator.environment.workspace import Workspace
from orchestrator.execution.step_execution import StepSpec
from store.records import Effects, StepKind
from tests.unit.orchestrator.environment.modelling.changes import (
    Change,
    Place,
    is_plain,
    may_be_fifo,
)
from tests.unit.orchestrator.environment.modelling.comparing import Example
from tests.unit.orchestrator.environment.modelling.listings import by_top, merged
from tests.unit.orchestrator.environment.modelling.shell_statements import PROBE
from tests.unit.orchestrator.environment.modelling.world import Origin, Seat

MOST_OPEN = 4
"""Workspaces of one example at the same time."""

_SPEC = StepSpec("model", StepKind.STEP, ValueCodec("nothing", None), Effects.ENV)


class Failing(Exception):
    """An action that fails on purpose."""


class ActingExample(Example):
    """An example with all that can be done in it; each ends with a comparison."""

    @property
    def first(self) -> Seat:
        """The workspace that is no fork."""
        [seat] = [each for each in self.seats if each.origin is None]
        return seat

    async def begin(self) -> None:
        base = Base(str(self.world.base), self.world.identity)
        state = self.home.states.add(base, {}, "", ())
        workspace = Workspace(Origin())
        mounting = Mounting(self.home, self.kind)
        workspace.place("w", mounting, History([Moment("begin", "workspace", state.id)]))
        seat = Seat(workspace, self.new_shadow())
        self.seats.append(seat)
        self.world.plain.do(seat.shadow, "restore", key="base")
        await _acted(seat, _nothing)
        seat.shell = await self.probe(seat)
        await self.compare(seat)

    async def end(self) -> None:
        first = self.first
        for seat in list(self.seats):
            self._drop(seat)
        await first.workspace.close()
        await self.home.close()
        self.world.plain.do("/", "forget")
        assert os.listdir(self.root / "live") == []
        assert self.world.plain.list(str(self.world.base)) == self.world.listing, "the base changed"
        remove_folder(self.folder)

    async def change(self, seat: Seat, what: Sequence[Change]) -> None:
        operations = [each.operation(seat.listing) for each in what]
        results = await _acted(seat, lambda: self._operate(seat, operations))
        self._mirror(seat, operations, results)
        await self.compare(seat)

    async def fail(self, seat: Seat, what: Sequence[Change]) -> None:
        """An action that fails is taken back."""
        operations = [each.operation(seat.listing) for each in what]

        async def work() -> None:
            await self._operate(seat, operations)
            raise Failing

        try:
            await _acted(seat, work)
        except Failing:
            self.trace.append("-> rolled back")
        await self._was_shown(seat)

    async def _operate(self, seat: Seat, operations: list[list[Any]]) -> list[Any]:
        operator = await self.operator(seat)
        results = operator.operate(seat.place, operations)
        for operation, result in zip(operations, results, strict=True):
            self.world.count(operation[0], result)
            self.trace.append(f"{operation!r:.300} -> {errno.errorcode.get(result, result)}")
        return results

    def _mirror(self, seat: Seat, operations: list[list[Any]], results: Sequence[Any]) -> None:
        """Do the same in the plain folder, but what an overlay refuses."""
        done = [
            (operation, result)
            for operation, result in zip(operations, results, strict=True)
            if self.backend != "overlay" or not _is_refused(seat, operation, result)
        ]
        expected = self.world.plain.operate(seat.shadow, [operation for operation, _ in done])
        found = [result for _, result in done]
        assert found == expected, self.told(f"{done}: {found} instead of {expected}")

    async def command(self, seat: Seat, what: Change, way: str) -> None:
        """A program of the system, by `run` or by `shell`."""
        one, other = what.paths(seat.listing)
        is_in_itself = other == one or other.startswith(f"{one}/")
        if what.name in ("mv", "cp", "tar") and (
            is_in_itself or not is_plain(seat.listing, one) or not is_plain(seat.listing, other)
        ):
            return
        if what.name == "cp" and may_be_fifo(seat.listing, other):
            return
        if self.backend == "overlay" and _shows_links(seat, what.name, one, other):
            return
        script = what.command(seat.listing)
        if way == "run":
            code = (await seat.workspace.run(script)).exit_code
        else:
            inner = f"(umask 022; builtin cd -- {quoted(seat.place)} && bash -c {quoted(script)})"
            code = (await seat.workspace.shell(inner)).exit_code
        self.world.count(what.name, 1000 + code)
        self.trace.append(f"{way} {script!r:.300} -> {code}")
        [expected] = self.world.plain.operate(seat.shadow, [["bash", script]])
        assert code == expected - 1000, self.told(f"{script}: {code} instead of {expected - 1000}")
        await self.compare(seat, is_copied=what.name == "mv")

    async def write(self, seat: Seat, where: Place, text: str, mode: int | None) -> None:
        path, code = where.in_tree(seat.listing), 0
        try:
            await seat.workspace.write(path, text, mode=mode)
        except OutsideWorkspace:
            code = errno.EXDEV
        except OSError as error:
            code = error.errno or -1
        result = errno.errorcode.get(code, code)
        self.trace.append(f"write {path!r:.200} {text!r} {mode} -> {result}")
        self.world.count("ws.write", code)
        keeps_bits = self.backend == "copies" and os.geteuid() == 0
        arguments = {"path": path, "data": text, "mode": mode, "keeps_bits": keeps_bits}
        expected = self.world.plain.do(seat.shadow, "write_as_host", **arguments)
        assert code == expected, self.told(f"write {path}: {code} instead of {expected}")
        await (self._was_shown(seat) if code else self.compare(seat))

    async def read(self, seat: Seat, where: Place) -> None:
        path, code, size = where.in_tree(seat.listing), 0, 0
        try:
            size = len(await seat.workspace.read_bytes(path))
        except OutsideWorkspace:
            code = errno.EXDEV
        except OSError as error:
            code = error.errno or -1
        self.trace.append(f"read {path!r:.200} -> {errno.errorcode.get(code, code)}")
        self.world.count("ws.read", code)
        expected = self.world.plain.do(seat.shadow, "read_as_host", path=path)
        assert code == (expected if isinstance(expected, int) else 0), self.told(f"not {expected}")
        seen = seat.listing.get(path)
        assert seen is None or seen.kind != "file" or seen.size == size, self.told(f"{size} bytes")
        await (self._was_shown(seat) if code else self.compare(seat))

    async def shell(self, seat: Seat, what: Sequence[str], where: Place) -> None:
        """Statements that change the shell, or end it: then it is as it was before them."""
        folder = where.in_tree(seat.listing)
        for each in what:
            if each == "cd .." and self.backend == "copies":  # it leads into the managed root
                continue
            statement = each.replace("FOLDER", quoted(f"{seat.place}/{folder}"))
            timeout = 0.02 if each.startswith("sleep") else None
            completed = await seat.workspace.shell(f"{statement}\n{PROBE}", timeout=timeout)
            self.trace.append(f"shell {statement!r:.300} -> {completed.exit_code}")
            self.world.count("shell", 0)
            if each.startswith(("exit", "sleep")):
                assert completed.exit_code == (3 if each.startswith("exit") else TIMED_OUT)
                await self.compare(seat)
                await self.require_shell(seat)
            else:
                seat.shell = self.probed(seat, completed.stdout)
                await self.compare(seat)

    async def checkpoint(self, seat: Seat) -> None:
        before = seat.workspace.state
        mark = await seat.workspace.checkpoint(f"c{len(seat.marks)}")
        assert mark.state == before, self.told("captured twice, with two ids")
        seat.marks.append(mark)
        self.trace.append(f"checkpoint {len(seat.marks) - 1}")
        await self.compare(seat)

    async def rewind(self, seat: Seat, to: int) -> None:
        if not seat.marks:
            return
        index = to % len(seat.marks)
        await seat.workspace.rewind(seat.marks[index])
        self.trace.append(f"rewind to {index}")
        assert seat.workspace.state == seat.marks[index].state, self.told("rewound to another")
        del seat.marks[index + 1 :]
        await self._was_shown(seat)

    async def fork(self, seat: Seat, count: int) -> None:
        forks = await seat.workspace.fork(min(count, MOST_OPEN - len(self.seats)))
        self.trace.append(f"fork {seat.workspace.name}: {[each.name for each in forks]}")
        await self.compare(seat)
        for each in forks:
            fork = Seat(each, self.new_shadow(), seat, marks=list(seat.marks))
            self.seats.append(fork)
            await _acted(fork, _nothing)
            assert fork.workspace.state == seat.workspace.state, self.told("a fork differs")
            await self._was_shown(fork)

    async def adopt(self, fork: Seat) -> None:
        origin = fork.origin
        assert origin is not None
        state, marks = fork.workspace.state, list(fork.marks)
        await origin.workspace.adopt(fork.workspace)
        self.trace.append(f"{origin.workspace.name} adopts {fork.workspace.name}")
        assert origin.workspace.state == state, self.told("adopted another state")
        origin.marks = marks
        self._drop_below(origin)
        await self._was_shown(origin)

    async def merge(self, fork: Seat, also: bool) -> None:
        """Forks that have changed different names of the uppermost folder; others are left alone.

        Args:
            also: whether another fork is merged too.
        """
        origin = fork.origin
        assert origin is not None
        others = [fork]
        if also:
            others += [s for s in self.seats if s.origin is origin and s is not fork][:1]
        ancestor = origin.history.common_with(*(each.history for each in others))
        states = [ancestor, *(each.workspace.state for each in (origin, *others))]
        before, *sides = (by_top(self.listings[state]) for state in states)
        taken = merged(before, sides)
        if taken is None:
            return
        scripts = [self.home.states.get(state).shell for state in states]
        winner = next((at for at in range(1, len(states)) if scripts[at] != scripts[0]), 1)
        shell = self.probes[states[winner]]
        result = await origin.workspace.merge(*(each.workspace for each in others))
        self.trace.append(f"merge {[each.workspace.name for each in others]}")
        assert not result.merged_paths, self.told("merged by lines")
        parts = [[name, states[at]] for name, at in taken.items()]
        self.world.plain.do(origin.shadow, "assemble", parts=parts)
        origin.shell = shell
        await self.compare(origin, is_shown=True)

    async def close_fork(self, fork: Seat) -> None:
        self.trace.append(f"close {fork.workspace.name}")
        self._drop_below(fork)
        self._drop(fork)
        await fork.workspace.close()
        assert fork.origin is not None
        fork.origin.workspace._forks.remove(fork.workspace)

    async def reopen(self, layers: str) -> None:
        """As a new process would: nothing is known but what is stored.

        Args:
            layers: "reopened": as they are; "layers lost": all; "a layer lost": one.
        """
        seat = self.first
        self._drop_below(seat)
        history = seat.history
        await seat.workspace.close()
        await self.home.close()
        self._drop(seat)
        self._lose(layers)
        self.home = Environments(self.root)
        seat.workspace = Workspace(Origin())
        mounting = Mounting(self.home, self.kind)
        seat.workspace.place("w", mounting, History(list(history.moments)))
        self.seats.append(seat)
        self.trace.append(f"reopen: {layers}")
        before = seat.workspace.state
        await _acted(seat, _nothing)
        assert seat.workspace.state == before, self.told("reopened with another state")
        await self._was_shown(seat)

    async def discard(self, seat: Seat) -> None:
        self._drop_below(seat)
        await seat.workspace.discard()
        self.trace.append(f"discard {seat.workspace.name}")
        seat.marks = []
        await self._was_shown(seat)

    async def _was_shown(self, seat: Seat) -> None:
        """Its state was mounted anew: hard links are files of their own, sockets are gone."""
        self.world.plain.do(seat.shadow, "restore", key=seat.workspace.state)
        seat.shell = self.probes[seat.workspace.state]
        await self.compare(seat, is_shown=True)

    def _lose(self, layers: str) -> None:
        folder = self.root / "layers"
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        numbers = {"reopened": 0, "a layer lost": 1, "layers lost": len(found)}
        for each in found[: numbers[layers]]:
            remove_folder(each)

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


def _is_refused(seat: Seat, operation: list[Any], result: int) -> bool:
    """Whether an overlay refuses a change: to rename a folder, or a file over a link to itself."""
    if operation[0] not in ("rename", "exchange"):
        return False
    if result == errno.ESTALE:
        return _is_one_file(seat, operation[1], operation[2])
    return result == errno.EXDEV


def _shows_links(seat: Seat, program: str, one: str, other: str) -> bool:
    """Whether a program may tell that an overlay shows links otherwise than a plain folder.

    Names of one file may have inodes of their own. A file of a layer has a second link, its stored
    content: `cp -a` then removes the file that it replaces, which some folders do not allow.
    """
    folder = seat.listing.get(os.path.dirname(other))
    is_fixed = folder is not None and not folder.mode & 0o200
    return _is_one_file(seat, one, other) or (program == "cp" and is_fixed)


def _is_one_file(seat: Seat, one: str, other: str) -> bool:
    """Whether two paths are names of one file."""
    try:
        found = [os.lstat(os.path.join(seat.shadow, each)) for each in (one, other)]
    except OSError:
        return False
    return one != other and os.path.samestat(*found)


async def _acted(seat: Seat, work: Callable[[], Awaitable[Any]]) -> Any:
    """Do something as an action of a workspace."""
    return await run_action(None, seat.workspace.position, Action(_SPEC), work)


async def _nothing() -> None: ...
