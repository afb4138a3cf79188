"""Worker: takes runs from queues and executes them in its runtime, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.durability.liveness import process_identity
from orchestrator.durability.outcomes import message_of, text_of
from orchestrator.durations import Duration
from orchestrator.errors import InvalidQueueOption, RunCancelled, RunInterrupted, RuntimeDraining
from orchestrator.execution.flow_spec import FlowSpec
from orchestrator.execution.queue_options import DEFAULT_QUEUE, check_queue_name
from orchestrator.runtime.code_versions import versions_of
from orchestrator.runtime.schedules import submit_scheduled
from store.errors import StoreError, StoreLocked, StoreUnreachable
from store.queue.records import Claim, Claimant
from store.records import RunRecord, Status

if TYPE_CHECKING:
    from orchestrator.runtime.runtime import Runtime

logger = logging.getLogger("orchestrate")

LOOK_S = 1.0
"""Seconds between two looks for runs, even if nothing said that there are some: one may be allowed
to begin now, or a limit of its queue may have become free."""

RECLAIM_S = 5.0
"""Seconds between two looks for lost runs, at most; of a short lease a quarter."""

AGAIN_S = 1.0
"""Seconds until a store that failed is tried again."""

_NOT_ITS_FAULT = (RunInterrupted, RuntimeDraining, StoreUnreachable, StoreLocked)
"""Errors that say nothing about a run: it loses no attempt by them."""


@dataclass(frozen=True, slots=True)
class _Left:
    """An attempt that ended here, perhaps without a recorded end.

    Attributes:
        is_counted: the run loses an attempt by it.
    """

    attempts: int
    is_counted: bool
    error_type: str
    error_message: str | None


class Worker:
    """Executes the runs of queues in a runtime.

    Args:
        flows: those of which it takes runs.
        queues: their names; the first one that has a run is served first.
        concurrency: runs that it executes at once.
        any_version: also take runs that were submitted with another version of a flow's code.
    Raises:
        InvalidQueueOption: there are two flows of one name or no flow, or the concurrency or a
            queue's name cannot be used.
    """

    def __init__(
        self,
        runtime: Runtime,
        flows: Sequence[FlowSpec[..., Any]],
        *,
        queues: Sequence[str] = (DEFAULT_QUEUE,),
        concurrency: int = 4,
        any_version: bool = False,
    ) -> None:
        self._flows = {flow.name: flow for flow in flows}
        if not flows or len(self._flows) != len(flows):
            names = ", ".join(flow.name for flow in flows)
            raise InvalidQueueOption("flows", names, "at least one flow, each with another name")
        if not queues:
            raise InvalidQueueOption("queues", queues, "at least one queue")
        if concurrency < 1:
            raise InvalidQueueOption("concurrency", concurrency, "a number of runs, at least 1")
        self.queues = tuple(dict.fromkeys(map(check_queue_name, queues)))
        self.concurrency = concurrency
        self.versions = versions_of(flows, runtime.code_version)
        self._any_version = any_version
        self._runtime = runtime
        self._store = runtime.store
        self._running: dict[asyncio.Task[None], RunRecord] = {}
        self._left: dict[str, _Left] = {}
        self._news = asyncio.Event()
        self._is_stopping = False

    @property
    def num_running(self) -> int:
        """Runs that it executes now."""
        return len(self._running)

    def stop(self) -> None:
        """Take no more runs: `run` returns. May be called by a signal's handler."""
        self._is_stopping = True
        self._news.set()

    async def run(self, *, grace: Duration | None = None) -> list[str]:
        """Take runs and execute them until `stop` is called; then end those in progress.

        Args:
            grace: how long to wait for runs in progress ("30s"; 0: not at all); None: to their
                ends. Those that are left wait in their queue again, for any worker.
        Returns:
            The ids of the runs that were handed back.
        Raises:
            ServingError: the engine cannot be started.
        """
        await self._runtime.engines.start()
        work = (self._listen(), self._look_after_lost_runs(), self._submit_scheduled())
        helpers = [asyncio.create_task(each) for each in work]
        try:
            await self._take_until_stopped()
            return await self._finish(grace)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _take_until_stopped(self) -> None:
        while not self._is_stopping:
            self._news.clear()
            num_free = self.concurrency - len(self._running)
            claimed: list[RunRecord] = []
            pause_s = LOOK_S
            if num_free:
                try:
                    claimed = await self._claim(num_free)
                except StoreError as error:
                    logger.warning("could not look for runs: %s", error)
                    pause_s = AGAIN_S
            for record in claimed:
                self._begin(record)
            if not claimed or len(self._running) >= self.concurrency:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._news.wait()

    async def _claim(self, num: int) -> list[RunRecord]:
        info = self._runtime.engines.info()
        claimant = Claimant(
            process_id=os.getpid(),
            host=socket.gethostname(),
            process=process_identity(),
            engine=info.name,
            model=info.model,
            policy=info.policy or "",
            random_weights=info.random_weights,
        )
        claim = Claim(
            claimant, self.queues, self.versions, self._runtime.lease_s, self._any_version
        )
        async with self._store.transaction() as tx:
            return await tx.claims.take(claim, num=num, wall=self._runtime.wall())

    def _begin(self, record: RunRecord) -> None:
        task = asyncio.create_task(self._execute(record))
        self._running[task] = record
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._news.set()

    async def _execute(self, record: RunRecord) -> None:
        """Execute a run; whatever happens, it is not left as if this worker went on with it."""
        try:
            await self._runtime.execute_claimed(record, self._flows[record.flow])
        except RunCancelled:
            pass
        except (Exception, asyncio.CancelledError) as error:
            is_counted = not isinstance(error, _NOT_ITS_FAULT)
            if is_counted:
                logger.warning("run %s of %s: %s", record.id, record.flow, _described(error))
            # If its end is recorded, nothing is left to hand back.
            message = message_of(error, may_quote=False)
            self._left[record.id] = _Left(
                record.attempts, is_counted, type(error).__name__, message
            )
            await self._hand_back()

    async def _hand_back(self) -> None:
        """Queue the runs again that ended here without a recorded end."""
        for run_id, left in list(self._left.items()):
            try:
                async with self._store.transaction() as tx:
                    await tx.claims.hand_back(
                        {run_id: left.attempts},
                        wall=self._runtime.wall(),
                        is_counted=left.is_counted,
                        error=(left.error_type, left.error_message),
                    )
            except StoreError as error:
                logger.warning("could not hand back run %s, will try again: %s", run_id, error)
                return
            if self._left.get(run_id) is left:
                del self._left[run_id]

    async def _listen(self) -> None:
        while True:
            try:
                await self._store.listen(self._news.set)
            except StoreError as error:
                logger.warning("not told of submitted runs for now: %s", error)
            await asyncio.sleep(AGAIN_S)

    async def _look_after_lost_runs(self) -> None:
        """Queue the runs of lost workers again, of any queue and flow."""
        period_s = min(RECLAIM_S, self._runtime.lease_s / 4)
        while True:
            try:
                await self._reclaim()
            except StoreError as error:
                logger.warning("could not look for lost runs: %s", error)
            except Exception:  # whatever it is: without this task lost runs would stay lost
                logger.exception("could not look for lost runs")
            await asyncio.sleep(period_s * random.uniform(0.8, 1.2))  # noqa: S311 - not all at once

    async def _submit_scheduled(self) -> None:
        """Submit the runs that are due by their schedules, of this worker's flows and queues."""
        while True:
            try:
                async with self._store.transaction() as tx:
                    await submit_scheduled(
                        tx,
                        self._flows,
                        self.versions,
                        queues=self.queues,
                        wall=self._runtime.wall(),
                    )
            except StoreError as error:
                logger.warning("could not look for schedules: %s", error)
            except Exception:  # whatever it is: without this task nothing scheduled would begin
                logger.exception("could not look for schedules")
            await asyncio.sleep(LOOK_S)

    async def _reclaim(self) -> None:
        if self._left:
            await self._hand_back()
        async with self._store.transaction() as tx:
            lost = await tx.claims.reclaim(wall=self._runtime.wall())
            for each in lost:
                await tx.calls.interrupt(each.run_id)
        for each in lost:
            logger.warning("run %s has lost its worker: it is %s", each.run_id, each.status)
        if any(each.status is Status.QUEUED for each in lost):
            self._news.set()

    async def _finish(self, grace: Duration | None) -> list[str]:
        handed_back: list[str] = []
        while self._running:
            mine = {record.id for record in self._running.values()}
            handed_back += await self._runtime.hand_over(mine, grace)
            # One that was still being loaded is not in progress yet.
            if self._running:
                await asyncio.wait(list(self._running), timeout=AGAIN_S)
        if self._left:
            await self._hand_back()
        return handed_back


def _described(error: BaseException) -> str:
    return text_of(error, lambda shown: f"{type(shown).__name__}: {shown}")
