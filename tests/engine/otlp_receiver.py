"""A collector of spans, by OTLP over HTTP: it keeps what servers send."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.spans import SeenSpan, spans_of_message

LIMIT_S = 30.0
"""Limit on the arrival of spans; exporters send theirs every EXPORT_MS."""

EXPORT_MS = 200


class OtlpReceiver:
    """A collector.

    Attributes:
        spans: those that it was sent.
    """

    def __init__(self) -> None:
        self.spans: list[SeenSpan] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805 (`self` is the receiver)
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                self.spans += spans_of_message(body)
                handler.send_response(200)
                handler.send_header("Content-Length", "0")
                handler.end_headers()

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def variables(self) -> dict[str, str]:
        """The environment of servers that send their spans here."""
        return {
            "ORCHESTRATE_TELEMETRY": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "OTEL_BSP_SCHEDULE_DELAY": str(EXPORT_MS),
        }

    def wait_for(self, trace_id: str, *names: str) -> list[SeenSpan]:
        """The spans of a trace, once those of these names have arrived."""
        end_s = time.monotonic() + LIMIT_S
        while True:
            spans = [each for each in self.spans if each.trace_id == trace_id]
            if {each.name for each in spans} >= set(names):
                return spans
            assert time.monotonic() < end_s, f"after {LIMIT_S} s only these had arrived: {spans}"
            time.sleep(0.05)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """A collector on this machine."""
    receiver = OtlpReceiver()
    try:
        yield receiver
    finally:
        receiver.close()
