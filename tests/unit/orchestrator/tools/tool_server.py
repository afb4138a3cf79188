"""An OpenAI-compatible server that answers with tool calls as a script says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

MODEL = "caller-7B"

Deltas = list[dict[str, Any]]
Reply = Callable[[dict[str, Any]], Deltas | str]
"""A request's body -> the deltas of its streamed answer, or the message of an error (400)."""


@dataclass
class ToolServer:
    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)


def piece(index: int | None, call_id: str | None, name: str | None, arguments: str) -> Any:
    """A delta with a part of a tool call; what is None is left out."""
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    parts: dict[str, Any] = {"index": index, "id": call_id}
    given = {key: value for key, value in parts.items() if value is not None}
    return {"tool_calls": [given | {"type": "function", "function": function}]}


@contextmanager
def tool_server(reply: Reply) -> Iterator[ToolServer]:
    """Serve on a free port."""

    class Handler(_Handler):
        answer = staticmethod(reply)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.seen = ToolServer(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Handler.seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: ClassVar[Reply]
    seen: ClassVar[ToolServer]

    def do_GET(self) -> None:
        card = {"id": MODEL, "object": "model", "owned_by": "script"}
        self._send(200, "application/json", json.dumps({"object": "list", "data": [card]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.bodies.append(body)
        deltas = type(self).answer(body)
        if isinstance(deltas, str):
            error = {"error": {"message": deltas, "type": "BadRequestError", "code": 400}}
            self._send(400, "application/json", json.dumps(error))
            return
        has_calls = any("tool_calls" in delta for delta in deltas)
        head = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append(
            {"index": 0, "delta": {}, "finish_reason": "tool_calls" if has_calls else "stop"}
        )
        usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
        parts = [head | {"choices": [choice]} for choice in choices]
        parts.append(head | {"choices": [], "usage": usage})
        events = "".join(f"data: {json.dumps(part)}\n\n" for part in parts)
        self._send(200, "text/event-stream", f"{events}data: [DONE]\n\n")

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Nothing."""

    def _send(self, status: int, media_type: str, body: str) -> None:
        content = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
