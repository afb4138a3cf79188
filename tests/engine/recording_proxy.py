"""Forwards connections to a server and keeps what the clients sent."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

_TAGS = re.compile(rb'"vllm_xargs":\s*(\{[^{}]*\})')


class RecordingProxy:
    """A TCP proxy; a connection that one side closes is closed on the other side too.

    Attributes:
        url: of the server, through the proxy.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (str(parts.hostname), parts.port or 80)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._received: list[bytearray] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def requests(self) -> list[bytes]:
        """The requests of models so far, those of each connection together in order."""
        parts = b"\r\n\r\n".join(self._received).split(b"POST /v1/")
        return parts[1:]

    def tags(self) -> list[dict[str, Any]]:
        """The tags of each request of a model that has some."""
        found = [_TAGS.search(request) for request in self.requests()]
        return [json.loads(match[1]) for match in found if match]

    def close(self) -> None:
        """Accept no more connections."""
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # closed
                return
            received = bytearray()
            self._received.append(received)
            threading.Thread(target=self._serve, args=(client, received), daemon=True).start()

    def _serve(self, client: socket.socket, received: bytearray) -> None:
        with client, socket.create_connection(self._server) as server:
            answering = threading.Thread(target=_forward, args=(server, client, bytearray()))
            answering.start()
            _forward(client, server, received)
            answering.join()


def _forward(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            kept += data
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def recording_proxy(url: str) -> Iterator[RecordingProxy]:
    """A proxy in front of the server at `url`."""
    proxy = RecordingProxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
