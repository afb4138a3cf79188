"""What programs write: read from pipes as it comes, and kept up to a limit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field

_PIPE_BYTES = 1 << 16
_PIECES_AT_ONCE = 64

OnOutput = Callable[[str, bytes], None]
"""Called with "stdout" or "stderr" and a piece of it."""


@dataclass(slots=True)
class Output:
    """What a command writes, as far as it is kept.

    Attributes:
        limit_bytes: of each stream.
        cut_bytes: how many bytes were left out, of both streams.
        failure: what `on_output` has raised; it is not called any more.
    """

    limit_bytes: int
    on_output: OnOutput | None = None
    streams: dict[str, bytearray] = field(
        default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()}
    )
    cut_bytes: int = 0
    failure: Exception | None = None

    def add(self, stream: str, data: bytes) -> None:
        """Add a piece of a stream."""
        kept = self.streams[stream]
        room = max(self.limit_bytes - len(kept), 0)
        kept += data[:room]
        self.cut_bytes += max(len(data) - room, 0)
        if self.on_output is not None and self.failure is None:
            try:
                self.on_output(stream, data)
            except Exception as error:
                self.failure = error

    def require_delivered(self) -> None:
        """Raise what `on_output` has raised."""
        if self.failure is not None:
            raise self.failure


class Pipe:
    """The reading end of a pipe of a program, on the event loop.

    Args:
        on_data: called with each piece that arrives; with b"" at the end.
    """

    def __init__(self, descriptor: int, on_data: Callable[[bytes], None]) -> None:
        self._descriptor = descriptor
        self._on_data = on_data
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self.read_available)

    def read_available(self) -> None:
        """Read what has been written so far; of a flood a part, so that others get their turn."""
        for _ in range(_PIECES_AT_ONCE):
            if self._descriptor < 0:
                return
            try:
                data = os.read(self._descriptor, _PIPE_BYTES)
            except BlockingIOError:
                return
            self._on_data(data)
            if not data:
                self.close()

    def close(self) -> None:
        """Stop reading; idempotent."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
