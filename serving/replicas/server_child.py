"""The process of one server: `python -m serving.replicas.server_child FD`.

Reads a pickled `Server` from its standard input, and writes a line of JSON to the file descriptor:
{"url": ...} when it accepts requests, or {"error": ...}. It drains and ends on SIGTERM, and when
its standard input closes: the process that started it has ended.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from serving.replicas.replica_spec import ReplicaSpec


class Server(NamedTuple):
    """What the process serves, and where."""

    spec: ReplicaSpec
    host: str


class _Say(Protocol):
    def __call__(self, **message: str) -> None: ...


def free_port(host: str) -> int:
    """A port of this address that nothing listens on, and that no outgoing connection will take.

    Those are given ports from 32,768 on (Linux), and the model loads for a while.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        port = random.randrange(20_000, 32_000)  # noqa: S311 (no secret)
        with suppress(OSError), socket.socket(family) as probe:
            probe.bind((host, port))
            return port


def main() -> int:
    """Serve until a signal; the exit code."""
    server: Server = pickle.load(sys.stdin.buffer)  # noqa: S301 (our own process wrote it)
    with os.fdopen(int(sys.argv[1]), "w") as status:
        threading.Thread(target=_end_with_parent, daemon=True).start()

        def say(**message: str) -> None:
            status.write(json.dumps(message) + "\n")
            status.flush()

        with tempfile.TemporaryDirectory(prefix="orchestrate-") as folder:
            try:
                _serve(server, Path(folder), say)
            except KeyboardInterrupt:  # a signal while it was loading
                return 0
            except Exception as error:
                say(error=f"{type(error).__name__}: {error}")
                raise
    return 0


def _serve(server: Server, folder: Path, say: _Say) -> None:
    from serving.engine.server.server import serve

    spec, host = server
    keys_file = None
    if spec.keys is not None:
        keys_file = folder / "keys.toml"
        keys_file.touch(0o600)
        keys_file.write_text(spec.keys, encoding="utf-8")
    port = free_port(host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    serve(
        spec.config,
        host=host,
        port=port,
        api_key=spec.api_key,
        keys_file=keys_file,
        vllm_flags=spec.vllm_flags,
        analyzer=spec.analyzer,
        drain_s=spec.drain_s,
        on_ready=lambda: say(url=url),
    )


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # returns when the other end is closed
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
