"""One program in a sandbox: started, read, killed with all that it started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from orchestrator.environment.errors import SandboxFailed
from orchestrator.environment.sandbox.messages import Limits
from orchestrator.environment.trees.output import Output, Pipe
from orchestrator.environment.trees.sandbox_client import Sandbox


async def run_program(
    sandbox: Sandbox,
    arguments: Sequence[str],
    *,
    folder: str,
    variables: Mapping[str, str],
    limits: Limits,
    output: Output,
    given: bytes = b"",
    timeout_s: float | None = None,
) -> int | None:
    """Run a program to its end.

    Args:
        given: its standard input.
    Returns:
        Its exit code; None: it was killed with all its descendants, as the time was over.
    Raises:
        SandboxFailed: it cannot be started, or the sandbox has ended.
    """
    source = _standard_input(given)
    ends = {name: os.pipe() for name in ("stdout", "stderr")}
    theirs = [source, ends["stdout"][1], ends["stderr"][1]]
    pipes: list[Pipe] = []
    try:
        try:
            program = await sandbox.start(
                {
                    "arguments": arguments,
                    "variables": variables,
                    "folder": folder,
                    "descriptors": [0, 1, 2],
                    "limits": limits,
                    "keeps": False,
                },
                theirs,
            )
        finally:
            for descriptor in theirs:
                os.close(descriptor)
            closed = [asyncio.get_running_loop().create_future() for _ in ends]
            pipes += [
                Pipe(ends[name][0], _adder(output, name, ended))
                for name, ended in zip(ends, closed, strict=True)
            ]
        try:
            async with asyncio.timeout(timeout_s):
                code = await asyncio.shield(program.ended)
        except TimeoutError:
            await sandbox.kill(program)
            code = None
        except BaseException:
            with suppress(SandboxFailed):
                await asyncio.shield(sandbox.kill(program))
            raise
        await asyncio.gather(*closed)  # all that held the pipes has ended
        return code
    finally:
        for pipe in pipes:
            pipe.close()


def _adder(output: Output, stream: str, ended: asyncio.Future[None]) -> Any:
    def add(data: bytes) -> None:
        if data:
            output.add(stream, data)
        elif not ended.done():
            ended.set_result(None)

    return add


def _standard_input(given: bytes) -> int:
    if not given:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    descriptor = os.memfd_create("stdin")
    view = memoryview(given)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
