"""Ends a request at the deadline of its context by closing its connection.

Our server aborts a request when its connection is closed. Code that is async is cancelled, as by
any deadline. In a thread the waits for the network get shorter timeouts, and a stream's socket is
shut down from another thread.

What ends a request is raised as CancelledError, in threads too: so it is no error of the server
to whoever retries on one, and the runtime takes it for the deadline that it is.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from typing import Any

from orchestrator.cancellation import let_the_deadline_pass
from orchestrator.execution.carried_slo import CarriedSlo
from orchestrator.execution.context import CallContext
from orchestrator.execution.deadline_handling import cancel_after


@asynccontextmanager
async def until_deadline(carried: CarriedSlo) -> AsyncIterator[None]:
    """Cancel a block at the deadline."""
    if not carried.has_deadline:
        yield
        return
    context = carried.context
    try:
        async with cancel_after(context.remaining_s(), context.run) as limit:
            yield
    except (TimeoutError, asyncio.CancelledError):
        if not limit.expired():
            raise
        await let_the_deadline_pass()
        raise asyncio.CancelledError from None


@contextmanager
def until_deadline_in_thread(carried: CarriedSlo) -> Iterator[None]:
    """A block whose waits for the network end at the deadline; see `Timeouts`."""
    if has_passed(carried):
        raise asyncio.CancelledError
    try:
        yield
    except Exception:
        if has_passed(carried):
            raise asyncio.CancelledError from None
        raise


def has_passed(carried: CarriedSlo) -> bool:
    """Whether the deadline has passed."""
    return carried.context.remaining_s() <= 0


class Timeouts(dict[str, float | None]):
    """The timeouts of a request's phases, each at most what is left when the phase begins.

    httpcore looks up the timeout of each phase by `get`, when the phase begins. It cannot be made
    longer after that, also if the run's clock stops meanwhile.
    """

    def __init__(self, timeouts: dict[str, float | None], context: CallContext) -> None:
        super().__init__(timeouts)
        self._context = context

    def get(self, phase: str, default: Any = None) -> Any:
        """The timeout of a phase, in seconds."""
        left_s = max(self._context.remaining_s(), 0.0)
        timeout_s = super().get(phase, default)
        return left_s if timeout_s is None else min(timeout_s, left_s)


def limit_stream(response: Any, carried: CarriedSlo) -> Any:
    """The same response; its body, if it is still being received, ends at the deadline."""
    if not carried.has_deadline or response.is_closed or response.is_stream_consumed:
        return response
    library = sys.modules[type(response).__module__.partition(".")[0]]
    if isinstance(response.stream, library.AsyncByteStream):
        response.stream = _class_of(library.AsyncByteStream, _AsyncStream)(response, carried)
    else:
        response.stream = _class_of(library.SyncByteStream, _SyncStream)(response, carried)
    return response


@cache
def _class_of(base: type, behaviour: type) -> Any:
    """A class of the library's own kind: httpx and httpx2 check that."""
    return type(behaviour.__name__, (behaviour, base), {})


class _Stream:
    def __init__(self, response: Any, carried: CarriedSlo) -> None:
        self._stream = response.stream
        self._carried = carried

    @property
    def elapsed(self) -> Any:
        """How long the response took: httpx2 asks the stream for it."""
        return self._stream.elapsed


class _AsyncStream(_Stream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = aiter(self._stream)
        while True:
            async with until_deadline(self._carried):
                part = await anext(parts, None)
            if part is None:
                return
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


class _SyncStream(_Stream):
    def __init__(self, response: Any, carried: CarriedSlo) -> None:
        super().__init__(response, carried)
        connection = response.extensions.get("network_stream")
        self._socket = connection and connection.get_extra_info("socket")

    def __iter__(self) -> Iterator[bytes]:
        with until_deadline_in_thread(self._carried), self._shut_down_at_deadline():
            for part in self._stream:
                yield part
                if has_passed(self._carried):
                    raise asyncio.CancelledError

    def close(self) -> None:
        self._stream.close()

    @contextmanager
    def _shut_down_at_deadline(self) -> Iterator[None]:
        """Shut the socket down at the deadline: that wakes the thread that reads from it."""
        if not isinstance(self._socket, socket.socket):
            yield
            return
        ended, lock = threading.Event(), threading.Lock()

        def watch(connection: socket.socket) -> None:
            while not ended.wait(max(self._carried.context.remaining_s(), 0.0)):
                with lock:
                    if has_passed(self._carried) and not ended.is_set():
                        # An SSLSocket's own method would touch what the reading thread uses.
                        with suppress(OSError):  # its reader gave up at the same moment
                            socket.socket.shutdown(connection, socket.SHUT_RDWR)
                        return

        name = "deadline of a request"
        threading.Thread(target=watch, args=(self._socket,), name=name, daemon=True).start()
        try:
            yield
        finally:
            with lock:  # afterwards the connection may serve another request
                ended.set()
