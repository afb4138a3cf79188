"""Reads documents within limits of CPU time and memory, in another process where it is needed.

A PDF of 100 kB can hold text operators for minutes of reading and gigabytes of memory. Only the
operating system can stop a parser at any point, and only in a process of its own. That process
reads one document after the other, and is replaced when it was stopped.
"""

import math
import os
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

from agents.tools.errors import Unreadable
from agents.tools.readers import Reading, read_document

_SMALL_BYTES = 200_000
"""Text and HTML up to this size are read here: their time and memory grow with their size only."""


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """Limits for each document.

    Attributes:
        cpu_s: seconds of CPU time for a document, rounded up to whole seconds.
        cpu_s_per_mb: seconds of CPU time for each megabyte in addition.
        memory_bytes: size of the address space of the process that reads.
    """

    cpu_s: float = 10.0
    cpu_s_per_mb: float = 20.0
    memory_bytes: int = 2 << 30

    def cpu_s_of(self, num_bytes: int) -> int:
        """The seconds of CPU time for a document of this size."""
        return math.ceil(self.cpu_s + self.cpu_s_per_mb * num_bytes / 1e6)


class DocumentReader:
    """Reads documents; a context manager, which ends its process."""

    def __init__(self, limits: ReadingLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()  # it is idle, or its answer is no longer awaited
        self._end()

    def read(self, data: bytes, file: str) -> Reading:
        """The passages of one file, as `read_document`.

        Raises:
            Unreadable: as read_document; or reading the file takes more than the limits.
            OSError: no process can be started, or the system has killed it.
        """
        if len(data) <= _SMALL_BYTES and not file.lower().endswith(".pdf"):
            return read_document(data, file)
        connection = self._connection or self._start()
        cpu_s = self._limits.cpu_s_of(len(data))
        try:
            connection.send((data, file, cpu_s))
            answer: Reading | Unreadable = connection.recv()
        except (EOFError, ConnectionError):  # the process has ended
            exit_code = self._end()
            if exit_code == -signal.SIGXCPU:
                raise Unreadable(f"reading it takes more than {cpu_s} s of CPU time") from None
            if exit_code == -signal.SIGKILL:  # perhaps for want of memory on the machine
                raise OSError("the process that read it was killed") from None
            raise Unreadable(f"the process that read it failed (exit {exit_code})") from None
        if isinstance(answer, Unreadable):
            raise answer
        return answer

    def _start(self) -> Connection:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - a fixed command
                # -P: do not import a folder named agents from the working directory.
                [
                    *(sys.executable, "-P", "-m", "agents.tools.document_reader"),
                    *(str(theirs.fileno()), str(self._limits.memory_bytes)),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # so that Ctrl-C does not look like a failure to read
            )
        return self._connection

    def _end(self) -> int:
        """End the process, if there is one; returns its exit code, or minus the signal's number."""
        if self._connection is None or self._process is None:
            return 0
        self._connection.close()
        self._connection = None
        return self._process.wait()


def _serve(connection: Connection, memory_bytes: int) -> None:
    """Read documents for a DocumentReader until it closes the connection."""
    _limit(resource.RLIMIT_AS, memory_bytes)
    _limit(resource.RLIMIT_CORE, 0)
    while True:
        try:
            data, file, cpu_s = connection.recv()
        except EOFError:
            return
        times = os.times()
        _limit(resource.RLIMIT_CPU, math.ceil(times.user + times.system) + cpu_s)
        answer: Reading | Unreadable
        try:
            answer = read_document(data, file)
        except Unreadable as error:
            answer = error
        except MemoryError:
            answer = Unreadable(f"reading it takes more than {memory_bytes:,} bytes of memory")
        connection.send(answer)


def _limit(kind: int, value: int) -> None:
    """Set a limit of this process, or keep the system's if that is lower."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])), int(sys.argv[2]))
