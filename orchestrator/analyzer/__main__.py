"""The analyzer's process: messages of a server on its input, answers on its output.

    python -P -m orchestrator.analyzer MODEL...

It ends with its input. What is known about the models' calls is in the store that the setting
`analyzer_store` names; all else is in the messages, which the server repeats to a new process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

from orchestrator.analyzer.advisor import Advisor, Finished
from orchestrator.analyzer.programs import MAX_PROGRAMS
from orchestrator.analyzer.recording import application_of, record
from orchestrator.errors import OrchestrateError
from orchestrator.learning.background_fit import BackgroundFit
from orchestrator.learning.knowledge import Knowledge, Learner
from orchestrator.learning.model_files import models_folder
from orchestrator.settings import Settings, read_settings
from serving.analyzer.messages import Advice, Arrival, Ended, Message, Recorded, decode, encode
from store.errors import StoreError
from store.session import Store, open_store

logger = logging.getLogger("orchestrate")

TICK_S = 1.0
"""Pause between two looks for programs that have ended, and for what others have recorded."""

FIT_PAUSE_S = 60.0
"""Shortest time between two fits of a model's calls, each of which takes a core for seconds."""

KEPT = timedelta(days=7)
"""How long programs are kept; what was learned from them stays."""

CLEANING_S = 6 * 3600.0

NICE = 5
"""How far it steps back behind the engine, which needs the same cores."""

_MAX_LINE_BYTES = 1 << 20


class RareFit:
    """Background fits, with FIT_PAUSE_S between two of the same application."""

    def __init__(self, fit: BackgroundFit) -> None:
        self._fit = fit
        self._started_s: dict[str, float] = {}

    def start(self, application: str) -> None:
        """Start a fit, unless one was started less than FIT_PAUSE_S ago."""
        now_s = time.monotonic()
        if now_s - self._started_s.get(application, -FIT_PAUSE_S) >= FIT_PAUSE_S:
            self._started_s[application] = now_s
            self._fit.start(application)


class Process:
    """The process's state: what is known, the open programs, and where answers go."""

    def __init__(self, store: Store, settings: Settings, answers: BinaryIO) -> None:
        url = settings.analyzer_store
        self._store = store
        self._answers = answers
        self._known: dict[str, Knowledge | None] = {}
        self._advisor = Advisor(self._known.get, idle_s=settings.program_idle_s)
        self._finished: deque[Finished] = deque(maxlen=MAX_PROGRAMS)  # not recorded yet
        self._learner = Learner(
            store,
            models=models_folder(url),
            fit=RareFit(BackgroundFit(url)),
            fit_every=settings.fit_every,
        )

    async def load(self, models: Sequence[str]) -> None:
        """Load what is known about the calls to these models."""
        for model in models:
            self._known[model] = await self._learner.knowledge_of(application_of(model))

    def take(self, line: bytes) -> None:
        """A message of the server arrives; an error in it is logged, and answered by nothing."""
        try:
            message = decode(line)
        except ValueError as error:
            logger.error("%s", error)
            return
        try:
            if isinstance(message, Arrival):
                self.say(self._advisor.arrived(message))
            elif isinstance(message, Ended):
                self._advisor.ended(message)
        except Exception:  # of one call: the others are still to be advised on
            logger.exception("no advice on a call")
            if isinstance(message, Arrival):
                self.say(Advice(call=message.call))

    async def keep_learning(self) -> None:
        """Record programs as they end, and take up what was recorded since."""
        cleaned_s = -CLEANING_S
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self._finished.extend(self._advisor.finished(time.monotonic()))
                await self._record()
                await self.load(list(self._known))
                if time.monotonic() - cleaned_s >= CLEANING_S:
                    cleaned_s = time.monotonic()
                    await self._clean()
            except StoreError as error:
                logger.warning("the analyzer's store: %s", error)

    async def close(self) -> None:
        """Record the open programs as they are."""
        self._finished.extend(self._advisor.close())
        await self._record()

    async def _record(self) -> None:
        """Record what has ended; what the store does not take is recorded later."""
        now_s, now = time.monotonic(), datetime.now(UTC)
        while self._finished:
            first = self._finished[0]
            program = first.program
            began_at = now - timedelta(seconds=now_s - program.began_s)
            if await record(self._store, program, began_at=began_at):
                model = program.calls[0].arrival.model
                # Loaded with the next tick. Not before: requests may name any model.
                self._known.setdefault(model, None)
                await self._learner.run_ended(application_of(model), used=first.uses, at=now)
            self._finished.popleft()
            self.say(Recorded(calls=tuple(call.arrival.call for call in program.calls)))

    async def _clean(self) -> None:
        now = datetime.now(UTC)
        async with self._store.transaction() as tx:
            await tx.retention.remove(ended_before=now - KEPT, now=now)

    def say(self, message: Message) -> None:
        """Send a message to the server."""
        self._answers.write(encode(message))
        self._answers.flush()


async def analyze(models: Sequence[str], answers: BinaryIO) -> None:
    """Answer messages until the input ends.

    Raises:
        InvalidSettings, StoreError: it cannot begin.
    """
    settings = read_settings()
    async with await open_store(settings.analyzer_store) as store:
        process = Process(store, settings, answers)
        await process.load(models)
        process.say(Recorded(calls=()))  # it is ready
        lines = await _lines()
        learning = asyncio.create_task(process.keep_learning())
        while True:
            try:
                line = await lines.readline()
            except ValueError as error:  # too long: it is dropped
                logger.error("a message was not read: %s", error)
                continue
            if not line:
                break
            process.take(line)
        learning.cancel()
        await asyncio.wait([learning])
        await process.close()


async def _lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def main() -> int:
    """Run until the input ends; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which closes the input
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    with suppress(OSError):
        os.nice(NICE)
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # whatever else is printed is no message
        try:
            asyncio.run(analyze(sys.argv[1:], answers))
        except (OrchestrateError, StoreError) as error:
            sys.stderr.write(f"the analyzer ended: {error}\n")
            return 1
        except BrokenPipeError:  # the server is gone
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
