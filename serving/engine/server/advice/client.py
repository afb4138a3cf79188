"""The analyzer beside the server: its process, and what is said to it. Nothing waits for it.

The process may die, hang or be killed at any moment. Requests then go on with the tags that they
have, and it is started again. What it had not recorded is said to the new process once more.

Source: Wu (2025), chapter 5 (control plane).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from serving.analyzer.messages import Advice, Arrival, Ended, Recorded, decode, encode
from serving.slo import TagValue

WAIT_S = 0.02
"""Longest time that a request waits for advice: that of one or two steps of the engine."""

HUNG_S, STARTING_S = 10.0, 120.0
"""A process that has not answered for so long is killed; the second, before its first message."""

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
"""The pause before a new process; it doubles with each that does not live for LONGEST_PAUSE_S."""

CLOSING_S = 3.0
"""Seconds that the process has at the end, to record what it knows."""

MAX_CALLS = 8192
"""Calls that are kept for a new process; the oldest are forgotten."""

_MAX_UNREAD_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 20

# Libraries for arrays would start a thread for each core, and the engine needs the cores.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

logger = logging.getLogger("orchestrate")


class _Event(NamedTuple):
    """An arrival or an end, numbered in the order in which they happened."""

    number: int
    line: bytes


class AnalyzerClient:
    """Starts the analyzer, talks to it, and starts it again; belongs to one event loop.

    Args:
        command: of the process; it reads messages from its input and writes them to its output.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        registry: CollectorRegistry = REGISTRY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._calls: OrderedDict[str, list[_Event]] = OrderedDict()  # those not recorded yet
        self._num_events = 0
        self._open: dict[str, asyncio.Future[Mapping[str, TagValue]]] = {}
        self._is_late = False
        self._has_begun = False
        self._is_told = False  # it knows all events so far
        self._asked_s: float | None = None  # the first arrival since its last message
        self._task: asyncio.Task[None] | None = None
        self._up = Gauge(
            "orchestrate_analyzer_up", "Whether the analyzer's process runs.", registry=registry
        )
        self._deaths = Counter(
            "orchestrate_analyzer_deaths", "Deaths of the analyzer's process.", registry=registry
        )
        self._advice = Counter(
            "orchestrate_advice",
            "Requests by what the analyzer said in time: tags, nothing; late; away.",
            ("outcome",),
            registry=registry,
        )

    @property
    def process_id(self) -> int | None:
        """The id of its process; None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process, and keep it running until `close`."""
        self._task = asyncio.create_task(self._keep_running(), name="analyzer")

    async def close(self) -> None:
        """End the process; it has CLOSING_S to record what it knows."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def arrived(self, arrival: Arrival) -> None:
        """Report an arrival; `advice` gives the answer."""
        event = self._event(encode(arrival))
        self._calls[arrival.call] = [event]
        if len(self._calls) > MAX_CALLS:
            self._calls.popitem(last=False)
        if self._write(event):
            answer: asyncio.Future[Mapping[str, TagValue]] = asyncio.Future()
            self._open[arrival.call] = answer
            self._asked_s = self._asked_s or self._clock()

    async def advice(self, call: str) -> Mapping[str, TagValue]:
        """The tags for a call that was reported as arrived; empty if there are none in WAIT_S.

        While the process is late nothing waits for it, until it answers again.
        """
        answer = self._open.get(call)
        if answer is None:
            self._advice.labels("away").inc()
            return {}
        if not (answer.done() or self._is_late):
            await asyncio.wait([answer], timeout=WAIT_S)
            self._is_late = not answer.done()
        if not answer.done():
            self._advice.labels("late").inc()
            return {}
        self._open.pop(call, None)
        tags = answer.result()
        self._advice.labels("tags" if tags else "nothing").inc()
        return tags

    def ended(self, ended: Ended) -> None:
        """Report the end of a call that was reported as arrived."""
        events = self._calls.get(ended.call)
        if events is None or len(events) > 1:
            return
        events.append(self._event(encode(ended)))
        self._open.pop(ended.call, None)
        self._write(events[-1])

    def _event(self, line: bytes) -> _Event:
        self._num_events += 1
        return _Event(self._num_events, line)

    def _write(self, event: _Event) -> bool:
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            return False
        if not self._is_told:  # `_tell` comes to it
            return False
        if process.stdin.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self._kill()  # it reads nothing; the next one is told all of it
            return False
        process.stdin.write(event.line)
        return True

    async def _tell(self, process: asyncio.subprocess.Process) -> None:
        """Report what is not recorded, in the order in which it happened, as fast as it reads."""
        assert process.stdin is not None
        told = 0
        with contextlib.suppress(ConnectionError):
            while events := self._events_after(told):
                for event in events:
                    process.stdin.write(event.line)
                    await process.stdin.drain()
                told = events[-1].number
            self._is_told = True

    def _events_after(self, number: int) -> list[_Event]:
        events = chain.from_iterable(self._calls.values())
        return sorted(event for event in events if event.number > number)

    async def _keep_running(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began_s = self._clock()
            reason = await self._run()
            self._deaths.inc()
            if self._clock() - began_s > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            if self._has_begun and pause_s >= 4 * FIRST_PAUSE_S:
                self._calls.clear()  # one of them may be what it dies of
            logger.warning(
                "the analyzer ended (%s): requests go on without its predictions;"
                " it is started again in %g s",
                reason,
                pause_s,
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _run(self) -> str:
        """One process from its start to its end; returns how it ended."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=pipe,
                stdout=pipe,
                env=dict(os.environ) | _ENVIRONMENT,
                limit=_MAX_LINE_BYTES,
            )
        except OSError as error:
            return str(error)
        self._process = process
        self._has_begun, self._is_late, self._is_told = False, True, False
        self._asked_s = self._clock()  # whether it is ready
        tasks = [
            asyncio.create_task(each) for each in (self._kill_when_hung(), self._tell(process))
        ]
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                self._take(line)
            self._kill()  # it may have closed its output only
            code = await process.wait()
            return f"signal {-code}" if code < 0 else f"exit status {code}"
        except ValueError as error:
            return str(error)
        finally:
            for task in tasks:
                task.cancel()
            self._process = None
            self._up.set(0)
            self._forget_open()
            await _end(process)

    def _take(self, line: bytes) -> None:
        """A message of the process arrives; raises ValueError for anything else."""
        message = decode(line)
        self._up.set(1)
        self._has_begun, self._is_late, self._asked_s = True, False, None
        if isinstance(message, Advice):
            answer = self._open.get(message.call)
            if answer is not None and not answer.done():
                answer.set_result(message.tags)
        elif isinstance(message, Recorded):
            for call in message.calls:
                self._calls.pop(call, None)

    async def _kill_when_hung(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            limit_s = HUNG_S if self._has_begun else STARTING_S
            if self._asked_s is not None and self._clock() - self._asked_s > limit_s:
                self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _forget_open(self) -> None:
        for answer in self._open.values():
            if not answer.done():
                answer.set_result({})
        self._open.clear()
        self._asked_s = None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close a process's input and wait for its end; kill it after CLOSING_S."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(CLOSING_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
