"""The access log: a line of JSON for each request, once its response has ended."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from serving.engine.server.access import USER_IN_SCOPE
from serving.engine.server.responses import App, Message, Receive, Scope, Send
from serving.errors import InvalidEngineConfig

STANDARD_OUTPUT = "-"

_QUIET = frozenset({"/health", "/ping", "/metrics", "/orchestrate/snapshot"})
"""Paths that are asked again and again by machines; only their errors are logged."""


class AccessLog:
    """The file of the log; "-" is the standard output.

    Raises:
        InvalidEngineConfig: the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = self._open()

    def write(self, record: dict[str, object]) -> None:
        """Append a record; a disk that is full loses the record, and never the request."""
        with suppress(OSError):
            self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
            self._file.flush()

    def reopen(self) -> None:
        """Go on in a new file after the old one was moved away (logrotate)."""
        self.close()
        self._file = self._open()

    def close(self) -> None:
        """Write nothing more."""
        if self._file is not sys.stdout:
            with suppress(OSError):  # of what could not be written
                self._file.close()

    def _open(self) -> TextIO:
        if self._path == STANDARD_OUTPUT:
            return sys.stdout
        try:
            return Path(self._path).open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise InvalidEngineConfig("access_log", self._path, str(error)) from error


class AccessLogMiddleware:
    """Logs each request: when, who, what, the status, and the seconds to first byte and end.

    It reads the log from the arguments in the state of vLLM's application. The body, the query and
    the key are not logged.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        log: AccessLog | None = (
            scope["app"].state.args.access_log if scope["type"] == "http" else None
        )
        if log is None:
            await self._app(scope, receive, send)
            return
        began_s, first_s, status, size = time.monotonic(), None, None, 0

        async def observe(message: Message) -> None:
            nonlocal first_s, status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            elif body := message.get("body"):
                first_s = first_s if first_s is not None else time.monotonic() - began_s
                size += len(body)
            await send(message)

        try:
            await self._app(scope, receive, observe)
        finally:
            if scope["path"] not in _QUIET or (status or 500) >= 400:
                client = scope.get("client")
                log.write(
                    {
                        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                        "client": client[0] if client else None,
                        "user": scope.get(USER_IN_SCOPE),
                        "method": scope["method"],
                        "path": scope["path"],
                        "status": status,  # null: the client left before there was one
                        "first_byte_s": None if first_s is None else round(first_s, 4),
                        "seconds": round(time.monotonic() - began_s, 4),
                        "bytes": size,
                    }
                )
