"""What the documents' code needs to run: an engine, a server, and a namespace like a notebook's."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import sys
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

import orchestrator
from orchestrator import flow, open_runtime
from serving.engine.clients.embedded import EmbeddedEngine
from tests.examples.document_blocks import Block

SERVER = "http://127.0.0.1:8000"
"""The server that the guides ask; in the tests another one answers."""


class SharedEngine:
    """The session's engine as a runtime's own, which does not end with the runtime."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def close(self) -> None:
        """The next block uses it too."""


class Answering(BaseHTTPRequestHandler):
    """Answers a chat completion, and keeps what was asked in the server's `asked`."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)  # type: ignore[attr-defined]
        message = {"role": "assistant", "content": "So."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        completion = {"id": "1", "object": "chat.completion", "created": 0, "choices": [choice]}
        body = json.dumps(completion | {"model": asked["model"]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the tests read what is printed."""


class Notebook:
    """Runs blocks of Python one after the other in one namespace."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server_url: str) -> None:
        self._module = ModuleType("__main__")
        self._tmp_path = tmp_path
        self._server_url = server_url
        self.names = vars(self._module)
        self.names |= {name: getattr(orchestrator, name) for name in orchestrator.__all__}
        self.names["input"] = lambda prompt: "yes"
        monkeypatch.setitem(sys.modules, "__main__", self._module)

    def run(self, block: Block, *, parsed_only: bool = False) -> None:
        """Run a block, and the tests that it defines."""
        before = dict(self.names)
        source = block.aligned.replace(SERVER, self._server_url)
        code = compile(source, str(block.document), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if parsed_only:
            return
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(self._in_a_flow(code))
        else:
            exec(code, self.names)
        for name, value in list(self.names.items()):
            if name.startswith("test_") and before.get(name) is not value:
                self._test(value)

    async def _in_a_flow(self, code: CodeType) -> None:
        @flow(deadline="30s")
        async def block() -> None:
            awaitable: Awaitable[None] = eval(code, self.names)
            await awaitable

        async with open_runtime():
            await block()

    def _test(self, test: Callable[..., Any]) -> None:
        known = {"tmp_path": self._tmp_path}
        given = {name: known[name] for name in inspect.signature(test).parameters}
        result = test(**given)
        if inspect.isawaitable(result):

            async def done() -> None:
                await result

            asyncio.run(done())
