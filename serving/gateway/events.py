"""Server-sent events on their way: only whole ones are passed on, so that a stream can be ended.

A client that has half an event cannot read an error event after it.
"""

from __future__ import annotations

MAX_HELD_BYTES = 1 << 20
"""What is held of an event that does not end; larger events are passed on in parts."""


class WholeEvents:
    """The bytes of a stream, cut where events end.

    Attributes:
        num_events: number of events that were passed on.
    """

    def __init__(self) -> None:
        self.num_events = 0
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now; b"" if no event has ended."""
        if self._held:
            chunk, self._held = self._held + chunk, b""
        end = len(chunk)
        if not chunk.endswith((b"\n\n", b"\r\n\r\n")):
            end = max(_end_of(chunk, b"\n\n"), _end_of(chunk, b"\r\n\r\n"))
            if len(chunk) - end > MAX_HELD_BYTES:
                end = len(chunk)
        whole, self._held = chunk[:end], chunk[end:]
        self.num_events += whole.count(b"\n\n") + whole.count(b"\r\n\r\n")
        return whole

    def rest(self) -> bytes:
        """What is held, after the end of the stream."""
        held, self._held = self._held, b""
        return held


def _end_of(chunk: bytes, separator: bytes) -> int:
    place = chunk.rfind(separator)
    return 0 if place < 0 else place + len(separator)
