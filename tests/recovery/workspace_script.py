"""Random operations on workspaces, and a model that says what files and shell they leave."""

from __future__ import annotations

import random
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from orchestrator.environment.errors import SandboxFailed
from orchestrator.environment.workspace import Workspace

BASE = {"a/one": "1", "a/two": "2", "b/three": "3", "four": "4"}
"""The files of the base, each of one line."""

PATHS = ["a/one", "a/new", "b/three", "b/c/deep", "four", "five"]
VARIABLES = ["FIRST", "SECOND"]

Operation = tuple[Any, ...]
"""A name and its arguments; see `Model.after`."""


@dataclass(frozen=True)
class Model:
    """What a workspace must show.

    Attributes:
        files: lines of each file, by path.
        folder: of the shell, relative to the workspace.
        marks: what there was at each checkpoint since the beginning, by name.
    """

    files: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {path: (line,) for path, line in BASE.items()}
    )
    variables: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    marks: dict[str, Model] = field(default_factory=dict)

    def after(self, operation: Operation) -> Model:
        """The model after an operation that ended well."""
        match operation:
            case ("checkpoint", name):
                return replace(self, marks=self.marks | {name: self})
            case ("rewind", name):
                mark = self.marks[name]
                return replace(mark, marks=mark.marks | {name: mark})
            case ("fork", "merge", one, other):
                return self.after_all(one).after_all(other)
            case ("fork", "adopt", _, adopted):
                return self.after_all(adopted)
        return self._after_change(operation)

    def _after_change(self, operation: Operation) -> Model:
        match operation:
            case ("write", path, line):
                return replace(self, files=self.files | {path: (line,)})
            case ("append", path, line):
                return replace(self, files=self.files | {path: (*self.files.get(path, ()), line)})
            case ("remove", path):
                return replace(self, files={k: v for k, v in self.files.items() if k != path})
            case ("export", name, value):
                return replace(self, variables=self.variables | {name: value})
            case ("cd", folder):
                return replace(self, folder=folder)
        raise AssertionError(operation)

    def after_all(self, operations: Sequence[Operation]) -> Model:
        """The model after operations one after another."""
        for operation in operations:
            self = self.after(operation)
        return self

    def to_json(self) -> dict[str, Any]:
        """What can be seen of it."""
        shell = [self.folder, [self.variables.get(name, "") for name in VARIABLES]]
        return {
            "files": {path: list(self.files[path]) for path in sorted(self.files)},
            "shell": shell,
        }


def script(chance: random.Random, length: int) -> list[Operation]:
    """A random sequence of operations that all can be done."""
    operations, marks = list[Operation](), list[str]()
    while len(operations) < length:
        kind = chance.random()
        if kind < 0.2:
            marks.append(f"mark{len(operations)}")
            operations.append(("checkpoint", marks[-1]))
        elif kind < 0.3 and marks:
            place = chance.randrange(len(marks))
            del marks[place + 1 :]
            operations.append(("rewind", marks[place]))
        elif kind < 0.45:
            operations.append(_fork(chance, len(operations)))
        else:
            operations.append(_change(chance, f"line{len(operations)}"))
    return operations


def _fork(chance: random.Random, number: int) -> Operation:
    if chance.random() < 0.5:
        sides = [[_change(chance, f"{number}.{side}") for _ in range(2)] for side in range(2)]
        return ("fork", "adopt", *sides)
    texts = [
        [("append", f"side{side}", f"{number}.{side}"), ("write", f"m/{number}{side}", "merged")]
        for side in range(2)
    ]
    return ("fork", "merge", *texts)


def _change(chance: random.Random, line: str) -> Operation:
    path = chance.choice(PATHS)
    return chance.choice(
        [
            ("write", path, line),
            ("append", path, line),
            ("remove", path),
            ("export", chance.choice(VARIABLES), line),
            ("cd", chance.choice(["a", "b", "b/c"])),
        ]
    )


class Performer:
    """Does operations in a workspace, again if the sandbox was killed, and tells of each end."""

    def __init__(
        self,
        side_by_side: Callable[..., Awaitable[Any]],
        tell: Callable[[str, Model], None],
        failed: Callable[[SandboxFailed], None],
    ) -> None:
        self._side_by_side = side_by_side
        self._tell = tell
        self._failed = failed

    async def perform(self, ws: Workspace, model: Model, operations: Sequence[Operation]) -> Model:
        """Returns the model after the last of them."""
        for operation in operations:
            if operation[0] == "fork":
                model = await self._fork(ws, model, operation)
            else:
                await self._again(partial(_do, ws, operation))
                model = model.after(operation)
            self._tell(ws.state, model)
        return model

    async def _fork(self, ws: Workspace, model: Model, operation: Operation) -> Model:
        _, ending, *sides = operation
        forks = await self._again(lambda: ws.fork(2))
        await self._side_by_side(
            *(self.perform(each, model, side) for each, side in zip(forks, sides, strict=True))
        )
        if ending == "merge":
            await self._again(lambda: ws.merge(*forks, check="test -d m"))
            for fork in forks:
                await fork.close()
        else:
            await self._again(lambda: ws.adopt(forks[1]))
        return model.after(operation)

    async def _again(self, work: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await work()
            except SandboxFailed as error:
                self._failed(error)


async def _do(ws: Workspace, operation: Operation) -> None:
    place = shlex.quote(ws.base)
    match operation:
        case ("write", path, line):
            await ws.write(path, f"{line}\n")
        case ("append", path, line):
            folder = path.rpartition("/")[0] or "."
            (await ws.shell(f"mkdir -p {place}/{folder} && echo {line} >> {place}/{path}")).check()
        case ("remove", path):
            (await ws.run(["rm", "-f", path])).check()
        case ("export", name, value):
            (await ws.shell(f"export {name}={value}")).check()
        case ("cd", folder):
            (await ws.shell(f"mkdir -p {place}/{folder} && cd {place}/{folder}")).check()
        case ("checkpoint", name):
            await ws.checkpoint(name)
        case ("rewind", name):
            await ws.rewind(name)
