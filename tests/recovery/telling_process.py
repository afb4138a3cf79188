"""A forked process that tells what it does, until it ends or is killed."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from tests.recovery.sandbox_processes import MARK

HANGS_S = 60.0

Report = dict[str, Any]
Tell = Callable[[Report], None]


class Child:
    """A forked process that tells what it does by a pipe."""

    def __init__(self, work: Callable[[Tell], Any]) -> None:
        receiving, sending = os.pipe()
        self.process = os.fork()
        if not self.process:
            os.close(receiving)
            code = 1
            try:
                _work_and_tell(work, sending)
                code = 0
            finally:
                os._exit(code)
        os.close(sending)
        self._pipe = receiving
        self._data = bytearray()

    def read(self, until_s: float) -> bool:
        """Read what it tells up to a time; returns whether it has ended."""
        while (left_s := until_s - time.monotonic()) > 0:
            if select.select([self._pipe], [], [], min(left_s, 10))[0]:
                piece = os.read(self._pipe, 1 << 16)
                if not piece:
                    return True
                self._data += piece
        return False

    def end(self, within_s: float = HANGS_S) -> list[Report]:
        """What it has told; it is killed if it has not ended in time."""
        if not self.read(time.monotonic() + within_s):
            os.kill(self.process, signal.SIGUSR1)
            self.read(time.monotonic() + 1)
            os.kill(self.process, signal.SIGKILL)
            self._data += b'{"error": "it hangs"}\n'
        os.close(self._pipe)
        os.waitpid(self.process, 0)
        return [
            json.loads(line)
            for line in self._data.splitlines(keepends=True)
            if line.endswith(b"\n")
        ]


_pipe = -1


def tell(report: Report) -> None:
    """Write to the pipe of this process."""
    os.write(_pipe, json.dumps(report).encode() + b"\n")


def _work_and_tell(work: Callable[[Tell], Any], pipe: int) -> None:
    global _pipe
    _pipe = pipe
    signal.signal(signal.SIGUSR1, _show_tasks)
    os.environ[MARK] = str(os.getpid())
    try:
        result = work(tell)
        if isinstance(result, Coroutine):
            asyncio.run(result)
        tell({"ended": True})
    except BaseException:
        tell({"error": traceback.format_exc()})


def _show_tasks(*_: object) -> None:
    """What hangs."""
    traceback.print_stack()
    for task in asyncio.all_tasks():
        waiting: Any = task.get_coro()
        sys.stderr.write(f"{task.get_name()}\n")
        while waiting is not None:
            frame = getattr(waiting, "cr_frame", None)
            where = f"{frame.f_code.co_qualname} {frame.f_lineno}" if frame else repr(waiting)
            sys.stderr.write(f"    {where}\n")
            waiting = getattr(waiting, "cr_await", None)
