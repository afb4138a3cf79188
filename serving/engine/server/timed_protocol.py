"""uvicorn's HTTP protocol with limits on the size of a request, and on the time it takes to arrive.

uvicorn waits for ever for the rest of a request, so each connection that sends a byte now and then
holds a socket and memory.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class TimedHttpProtocol(HttpToolsProtocol):
    """Answers 408 to a request that does not arrive in time, 413 and 431 to one that is too large.

    A connection on which no request has begun is closed without an answer. Time counts only while
    the server reads.
    """

    headers_s: ClassVar[float] = 20.0
    """From the start of a connection, or of a later request on it, to the end of the headers."""

    body_s: ClassVar[float] = 60.0
    """From the end of the headers to the end of the body."""

    max_header_bytes: ClassVar[int] = 64 * 1024
    """Of the request line and all headers, or of all trailers; as in vLLM's other protocol."""

    max_body_bytes: ClassVar[int] = 64 << 20
    """Of the body: images in a prompt take megabytes, a text of a million tokens takes five."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arriving: Literal["headers", "body"] | None = None
        self._header_bytes = 0  # as they arrive, perhaps without an end
        self._field_bytes = 0  # of the parsed headers, or trailers
        self._body_bytes = 0
        self._is_refused = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._await("headers")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._await(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; close the connection if its headers are too large."""
        self._header_bytes += len(data)
        super().data_received(data)
        if self._arriving != "headers":
            self._header_bytes = 0
        elif self._header_bytes > self.max_header_bytes:
            self._refuse(b"431 Request Header Fields Too Large")

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the protocol for websockets."""
        self._await(None)
        super().handle_websocket_upgrade()

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Wait for the headers, of the first request since the connection was made."""
        super().on_message_begin()
        self._field_bytes = self._body_bytes = 0
        if self._arriving is None:
            self._await("headers")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, or a trailer, of which uvicorn would keep any number."""
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > self.max_header_bytes:
            self._refuse(b"431 Request Header Fields Too Large")
        if not self._is_refused:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Wait for the body."""
        if not self._is_refused:
            self._field_bytes = 0
            self._await("body")
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count and pass on a part of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self.max_body_bytes:
            self._refuse(b"413 Content Too Large")
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait no longer: the request is complete."""
        if not self._is_refused:
            self._await(None)
            super().on_message_complete()

    def _await(self, part: Literal["headers", "body"] | None) -> None:
        self._arriving = part
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if part is not None:
            limit_s = self.headers_s if part == "headers" else self.body_s
            self._timer = self.loop.call_later(limit_s, self._expire)

    def _expire(self) -> None:
        has_answered = self.cycle is None or self.cycle.response_complete
        if self.flow.read_paused or (self._arriving == "headers" and not has_answered):
            self._await(self._arriving)  # it is the server which lets the request wait
            return
        can_answer = (
            self._header_bytes > 0
            if self._arriving == "headers"
            else not self.cycle.response_started
        )
        if can_answer:
            self._close_with(b"408 Request Timeout")
        else:
            self.transport.close()

    def _refuse(self, status: bytes) -> None:
        """Answer and close, unless that is done or an answer has begun: then close only."""
        if self._is_refused:
            return
        self._is_refused = True
        if self._arriving == "body" and self.cycle is not None and self.cycle.response_started:
            self._await(None)
            self.transport.close()
        else:
            self._close_with(status)

    def _close_with(self, status: bytes) -> None:
        self._await(None)
        self.transport.write(
            b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
        self.transport.close()
