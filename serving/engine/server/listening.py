"""Whether a server can listen at an address: looked up before the model loads; whether it does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from serving.errors import InvalidEngineConfig


def check_port(host: str, port: int) -> None:
    """Raise InvalidEngineConfig if nothing can listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as vLLM's own socket
            probe.bind((host, port))
            probe.listen()
    except OSError as error:
        raise cannot_listen(host, port, error) from error


def cannot_listen(host: str, port: int, error: OSError) -> InvalidEngineConfig:
    """The error for an address at which nothing can listen."""
    return InvalidEngineConfig("port", f"{host}:{port}", f"cannot listen there: {error}")


async def when_listening(listening: socket.socket, on_ready: Callable[[], None]) -> None:
    """Call `on_ready` once uvicorn listens: vLLM has no hook for that."""
    while not listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    on_ready()
