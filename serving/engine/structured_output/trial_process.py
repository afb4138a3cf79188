"""The caller's side of `trial`: starts its process, gives it specifications, remembers outcomes."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from serving.engine.structured_output.specification import Specification, Tokenizer, Trial

MAX_OUTCOMES = 512
"""Outcomes that are remembered; the least recently used is forgotten first."""

MAX_WAITING = 64
"""Different specifications that wait at once: each may take half a second."""

ANSWER_S = 30.0
"""Longest wait for an outcome: a second of CPU time may take longer on a busy machine."""


class TrialNotPossible(Exception):
    """The trial's process cannot be started, or has ended or stopped: no fault of the caller."""


class TrialProcess:
    """Tries specifications, one after the other; callers may use several event loops.

    Its process starts with the first trial, and ends with this process or with `close`.

    Args:
        tokenizer: loads the tokenizer; called once, on this object's thread.
    """

    def __init__(self, tokenizer: Callable[[], Tokenizer | None]) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trial")
        self._numbers = itertools.count()
        self._outcomes: OrderedDict[bytes, Trial] = OrderedDict()
        self._outcomes_lock = threading.Lock()
        self._connection_lock = threading.Lock()  # of sending and closing
        self._connection: Connection[Any, Any] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._waiting: Counter[bytes] = Counter()  # trials of each specification

    def outcome(self, specification: Specification) -> Trial | None:
        """The outcome of an earlier trial, if it is remembered."""
        key = _digest(specification)
        with self._outcomes_lock:
            trial = self._outcomes.get(key)
            if trial is not None:
                self._outcomes.move_to_end(key)
        return trial

    async def compile(self, specification: Specification) -> Trial:
        """The outcome of a trial, or of an earlier one; cancelling ends it.

        Raises:
            TrialNotPossible: for no fault of the specification.
        """
        known = self.outcome(specification)
        if known is not None:
            return known
        key, number = _digest(specification), next(self._numbers)
        with self._outcomes_lock:
            if len(self._waiting) >= MAX_WAITING and key not in self._waiting:
                raise TrialNotPossible("too many others are being tried; try again in some seconds")
            self._waiting[key] += 1
        running = self._thread.submit(self._compile, number, specification)
        running.add_done_callback(lambda _: self._ended(key))
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            if not running.done():  # it had begun, or it would be cancelled by now
                self._send((number, None))
            raise

    def _ended(self, key: bytes) -> None:
        with self._outcomes_lock:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]

    def close(self) -> None:
        """End the process, and the trial that it runs; idempotent."""
        self._is_closed = True
        if self._process is not None:
            self._process.kill()
        self._thread.shutdown(cancel_futures=True)
        self._end()

    def _compile(self, number: int, specification: Specification) -> Trial:
        known = self.outcome(specification)  # of a request that came at the same time
        if known is not None:
            return known
        try:
            trial = self._answer(number, specification)
        except (EOFError, ConnectionError) as ended:  # it was killed, perhaps long ago
            self._end()
            if self._is_closed:
                raise self._not_possible(ended) from ended
            try:
                trial = self._answer(number, specification)
            except (EOFError, OSError) as error:
                raise self._not_possible(error) from error
        except OSError as error:
            raise self._not_possible(error) from error
        if not trial.was_stopped:
            self._remember(specification, trial)
        return trial

    def _answer(self, number: int, specification: Specification) -> Trial:
        connection = self._connection or self._start()
        self._send((number, specification))
        if not connection.poll(ANSWER_S):
            raise TimeoutError(f"no outcome after {ANSWER_S:g} s")
        trial: Trial
        answered, trial = connection.recv()
        assert answered == number, "each trial has one outcome, and they are done in order"
        return trial

    def _not_possible(self, error: Exception) -> TrialNotPossible:
        self._end()
        return TrialNotPossible(str(error) or "its process has ended")

    def _remember(self, specification: Specification, trial: Trial) -> None:
        with self._outcomes_lock:
            self._outcomes[_digest(specification)] = trial
            if len(self._outcomes) > MAX_OUTCOMES:
                self._outcomes.popitem(last=False)

    def _start(self) -> Connection[Any, Any]:
        tokenizer = self._tokenizer()
        connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - a fixed command
                # -P: do not import a folder named serving from the working directory.
                [sys.executable, "-P", "-m", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for its caller
            )
        self._connection = connection
        self._send(tokenizer)
        return connection

    def _send(self, message: object) -> None:
        with self._connection_lock:
            if self._connection is not None:
                self._connection.send(message)

    def _end(self) -> None:
        with self._connection_lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


_PROGRAM = "serving.engine.structured_output.trial"


def _digest(specification: Specification) -> bytes:
    text = repr((specification.kind, specification.any_whitespace, specification.text))
    return hashlib.sha256(text.encode(errors="backslashreplace")).digest()
