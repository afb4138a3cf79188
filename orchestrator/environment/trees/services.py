"""Programs that run beside a workspace's commands, and are started again in its forks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.environment.errors import ServiceFailed
from orchestrator.environment.sandbox.messages import Limits
from orchestrator.environment.states.stored_states import Service
from orchestrator.environment.trees.output import Output, Pipe
from orchestrator.environment.trees.programs import run_program
from orchestrator.environment.trees.sandbox_client import Program, Sandbox

_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.2
_BEGINS_S = 0.05
"""A program without a `ready` that has not ended by then counts as begun."""
_KEPT_OUTPUT_BYTES = 1 << 14


@dataclass(slots=True)
class _Running:
    service: Service
    program: Program
    output: Output
    pipe: Pipe


class RunningServices:
    """The services of one workspace at work."""

    def __init__(self, variables: Mapping[str, str], limits: Limits) -> None:
        self._variables = variables
        self._limits = limits
        self._running: dict[str, _Running] = {}

    @property
    def services(self) -> tuple[Service, ...]:
        """Those that were started, sorted by name."""
        return tuple(self._running[name].service for name in sorted(self._running))

    @property
    def programs(self) -> set[int]:
        """The ids of their programs."""
        return {each.program.process for each in self._running.values()}

    async def start(self, sandbox: Sandbox, folder: str, services: Iterable[Service]) -> None:
        """Start services, each once the one before it is ready.

        Raises:
            ServiceFailed: one ended, or was not ready in time; it is ended.
        """
        for service in services:
            await self._start(sandbox, folder, service)

    async def end(self, sandbox: Sandbox) -> None:
        """End all of them."""
        running, self._running = self._running, {}
        for each in running.values():
            await _end(sandbox, each)

    async def _start(self, sandbox: Sandbox, folder: str, service: Service) -> None:
        if (former := self._running.pop(service.name, None)) is not None:
            await _end(sandbox, former)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        reading, writing = os.pipe()
        try:
            program = await sandbox.start(
                {
                    "arguments": ["/bin/bash", "-c", service.command],
                    "variables": self._variables,
                    "folder": folder,
                    "descriptors": [0, 1, 2],
                    "limits": self._limits,
                    "keeps": False,
                },
                [null, writing, writing],
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(null)
            os.close(writing)
        output = Output(_KEPT_OUTPUT_BYTES)
        pipe = Pipe(reading, lambda data: output.add("stdout", data) if data else None)
        running = _Running(service, program, output, pipe)
        try:
            async with asyncio.timeout(service.timeout_s):
                await self._until_ready(sandbox, folder, running)
        except TimeoutError:
            await _end(sandbox, running)
            reason = f"was not ready after {service.timeout_s:g} s"
            raise ServiceFailed(service.name, reason, _text(output)) from None
        except BaseException:
            await _end(sandbox, running)
            raise
        self._running[service.name] = running

    async def _until_ready(self, sandbox: Sandbox, folder: str, running: _Running) -> None:
        pause_s = _FIRST_PAUSE_S
        if running.service.ready is None:
            await asyncio.wait([running.program.ended], timeout=_BEGINS_S)
        while running.service.ready is not None:
            code = await run_program(
                sandbox,
                ["/bin/bash", "-c", running.service.ready],
                folder=folder,
                variables=self._variables,
                limits=self._limits,
                output=Output(0),
            )
            if code == 0:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            _require_running(running)
        _require_running(running)


def _require_running(running: _Running) -> None:
    if running.program.ended.done():
        running.pipe.read_available()
        reason = f"ended with exit code {running.program.ended.result()}"
        raise ServiceFailed(running.service.name, reason, _text(running.output))


async def _end(sandbox: Sandbox, running: _Running) -> None:
    if not running.program.ended.done():
        await sandbox.kill(running.program)
    running.pipe.close()


def _text(output: Output) -> str:
    return output.streams["stdout"].decode(errors="backslashreplace")
