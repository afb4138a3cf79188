"""What a run's writer puts into which transaction, also if several are open at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from orchestrator.durability.journal_writer import JournalWriter
from orchestrator.testing import VirtualClock
from store.errors import AlreadyRecorded
from store.records import Status, StepKind, StepRecord
from store.session import Store

VALUE = StepRecord(
    run_id="r", path="random", name="random", started_s=0.0, kind=StepKind.VALUE, place=0,
    status=Status.COMPLETED,
)  # fmt: skip


class OpenTransactions:
    """A store with any number of open transactions, as PostgreSQL; each commits when it is told."""

    can_write_inline = False

    def __init__(self) -> None:
        self.may_commit: list[asyncio.Event] = []
        self.written: list[list[str]] = []
        self.committed: list[str] = []

    async def until_open(self, number: int) -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(self.written) == number

    @asynccontextmanager
    async def transaction(self, *, synced: bool = False) -> AsyncIterator[Any]:
        may_commit, written = asyncio.Event(), list[str]()
        self.may_commit.append(may_commit)
        self.written.append(written)
        store = self

        class Open:
            journal: Open

            async def start(self, step: StepRecord) -> None:
                if step.path in store.committed:
                    raise AlreadyRecorded(step.run_id, step.path)
                written.append(step.path)

        opened = Open()
        opened.journal = opened
        yield opened
        await may_commit.wait()
        self.committed += written


async def nothing(_: object) -> None:
    return


async def two_open_writes() -> tuple[OpenTransactions, JournalWriter, list[asyncio.Task[None]]]:
    store = OpenTransactions()
    writer = JournalWriter(cast("Store", store), "r", wall=VirtualClock().wall)
    writer.defer(VALUE)
    writes = [asyncio.create_task(writer.write(nothing)) for _ in range(2)]
    await store.until_open(2)
    return store, writer, writes


async def test_each_write_that_is_open_has_the_value_on_which_its_step_may_depend() -> None:
    """Of two commits the one without the value could land alone, and the process die."""
    store, _, writes = await two_open_writes()
    assert store.written == [["random"], ["random"]]
    for write, may_commit in zip(writes, store.may_commit, strict=True):
        may_commit.set()
        await write


@pytest.mark.parametrize("first", [0, 1])
async def test_a_value_that_was_committed_is_not_written_again(first: int) -> None:
    store, writer, writes = await two_open_writes()
    for each in (first, 1 - first):
        store.may_commit[each].set()
        await writes[each]
    later = asyncio.create_task(writer.write(nothing))
    await store.until_open(3)
    store.may_commit[2].set()
    await later
    assert store.written[2] == []
