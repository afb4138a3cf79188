"""A server in a process of its own, as the process that started it sees it."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
from contextlib import suppress

from serving.errors import ReplicaFailed
from serving.replicas.replica_spec import ReplicaSpec
from serving.replicas.server_child import Server

_NOT_PASSED_ON = "OMP_NUM_THREADS"
"""Ray sets it to 1 in its workers; the engine's configuration has the number of threads."""


class ServerProcess:
    """A running server, which ends with this process at the latest.

    Attributes:
        url: its address, without the path of its API.
    """

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.url = url
        self._process = process

    @classmethod
    async def start(cls, spec: ReplicaSpec, host: str) -> ServerProcess:
        """Start a server; returns once it accepts requests.

        Its output goes where that of this process goes.

        Raises:
            ReplicaFailed: it ended before; the error says why.
        """
        status, childs_end = os.pipe()
        environment = {key: value for key, value in os.environ.items() if key != _NOT_PASSED_ON}
        with os.fdopen(status, "rb") as messages:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "serving.replicas.server_child", str(childs_end)),
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=(childs_end,),
                    env=environment,
                )
            finally:
                os.close(childs_end)
            try:
                assert process.stdin is not None, "it is a pipe"
                process.stdin.write(pickle.dumps(Server(spec, host)))
                line = await asyncio.to_thread(messages.readline)
            except BaseException:
                with suppress(ProcessLookupError):
                    process.kill()
                raise
        message = json.loads(line) if line else {}
        if "url" not in message:
            code = await process.wait()
            raise ReplicaFailed(message.get("error") or f"its process ended with code {code}")
        return cls(process, message["url"])

    async def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        return await self._process.wait()

    async def stop(self) -> None:
        """Let it answer its open requests, and end."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        await self._process.wait()
