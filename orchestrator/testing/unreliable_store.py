"""A store whose commits land when, and if, a simulation says so; the SQL below is the real one.

Each simulated process has an unreliable store of its own over one real store. A transaction waits
at its beginning for its fate. No simulated process can see whether another one is alive: each is
recorded on a host of its own, with an expired lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, cast

from orchestrator.execution.context import current_context_or_none
from store.errors import StoreError, StoreLocked, StoreUnreachable
from store.session import Store
from store.unit_of_work import Transaction

LEASE = "lease"
"""The branch of commits that renew leases."""


class Fate(StrEnum):
    """What becomes of a commit."""

    LANDED = "landed"
    UNTOLD = "landed, but its process is told that it failed"
    LAST = "landed, and its process dies before it knows"
    LATE = "landed late, from a dead process"
    LOCKED = "refused when it begins: the store is locked"
    UNREACHABLE = "refused when it commits: the store is unreachable"
    LOST = "lost with its process"

    @property
    def lands(self) -> bool:
        """Whether its records are in the store."""
        return self in (Fate.LANDED, Fate.UNTOLD, Fate.LAST, Fate.LATE)


class ProcessDied(BaseException):
    """The simulated process of this code is dead: nothing that it does has an effect any more."""


class Operation(NamedTuple):
    """A repository's method that a transaction called, such as `journal.start`."""

    name: str
    arguments: Sequence[Any]
    result: object


@dataclass(slots=True, eq=False)
class Commit:
    """A transaction that waits for its fate.

    Attributes:
        branch: the path from which the flow's code wrote it; "" for the run itself.
        number: in the order in which the commits of all processes arrived.
        task: which waits for the fate.
    """

    process: int
    branch: str
    number: int
    fate: asyncio.Future[Fate]
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    operations: list[Operation] = field(default_factory=list)

    def decide(self, fate: Fate) -> bool:
        """Let it go on with this fate, if it has none yet; returns True."""
        if not self.fate.done():
            self.fate.set_result(fate)
        return True


class UnreliableStore:
    """One simulated process' view of the store; it has the methods of Store that runtimes use.

    Args:
        arrive: called with each transaction that begins.
        ended: called when one has ended, with the error that its process gets, if any.
    """

    url = "sqlite:///simulated.db"  # not the real file, whose name differs in each execution
    codec = None
    can_write_inline = False  # each transaction waits, as with a database on another machine

    def __init__(
        self,
        real: Store,
        process: int,
        *,
        arrive: Callable[[str], Commit],
        ended: Callable[[Commit, Fate, BaseException | None], None],
    ) -> None:
        self._real = real
        self._process = process
        self._arrive = arrive
        self._ended = ended

    def reading(self) -> AbstractAsyncContextManager[Transaction]:
        """A read-only transaction of the real store."""
        return self._real.reading()

    @asynccontextmanager
    async def transaction(self, *, synced: bool = False) -> AsyncIterator[Transaction]:
        """A transaction of the real store that waits for its fate first.

        Raises:
            StoreLocked, StoreUnreachable: that is its fate.
            ProcessDied: its process is dead.
        """
        commit = self._arrive(_branch())
        fate = await commit.fate
        try:
            if fate is Fate.LOST:
                raise ProcessDied
            if fate is Fate.LOCKED:
                raise StoreLocked(self.url, "the simulation holds its lock")
            async with self._real.transaction() as tx:
                yield cast("Transaction", _Observed(tx, self._process, commit.operations))
                if fate is Fate.UNREACHABLE:
                    raise _unreachable(self.url)
            if fate is Fate.UNTOLD:
                raise _unreachable(self.url)
            if fate in (Fate.LAST, Fate.LATE):
                raise ProcessDied
        except BaseException as error:
            self._ended(commit, fate, error)
            raise
        self._ended(commit, fate, None)


def is_simulated(error: BaseException) -> bool:
    """Whether an unreliable store raised it, or its text, in a record, says so."""
    if isinstance(error, ProcessDied):
        return True
    if isinstance(error, StoreError):
        return "the simulation" in str(error)
    return any("the simulation" in str(each) for each in error.args)


def _unreachable(url: str) -> StoreUnreachable:
    return StoreUnreachable(url, "the simulation cut the connection at the commit")


def _branch() -> str:
    """The branch of the code that runs now."""
    task = asyncio.current_task()
    if task is not None and "Leases." in getattr(task.get_coro(), "__qualname__", ""):
        return LEASE
    context = current_context_or_none()
    return "" if context is None else context.step_path.key


class _Observed:
    """A transaction, or one of its repositories, that notes the calls of its methods."""

    def __init__(
        self, target: Any, process: int, operations: list[Operation], name: str = ""
    ) -> None:
        self._target = target
        self._process = process
        self._operations = operations
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not self._name:
            return _Observed(found, self._process, self._operations, name)
        return self._observed(f"{self._name}.{name}", found)

    def _observed(
        self, name: str, method: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if name in ("runs.add", "runs.resume"):
                host = f"simulated-{self._process}"
                args = (*args[:-1], replace(args[-1], host=host))
            result = await method(*args, **kwargs)
            self._operations.append(Operation(name, (*args, *kwargs.values()), result))
            return result

        return call
