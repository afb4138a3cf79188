"""A throw-away workspace at a stored state, to look around in."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cli.terminal.relay import relay
from orchestrator.environment.environments import Environments, WorkspaceKind
from orchestrator.environment.live_workspace import LiveWorkspace
from orchestrator.environment.states.stored_states import State
from orchestrator.environment.trees.tree import Confinement

_TERMINAL = ("TERM", "COLORTERM", "LINES", "COLUMNS", "NO_COLOR")


async def look_around(home: Environments, state: State, *, network: bool) -> int:
    """An interactive bash on this terminal; its exit code.

    Raises:
        StateLost, SandboxFailed, ServiceFailed: it cannot be shown.
    """
    task = asyncio.current_task()
    assert task is not None, "in an event loop"
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, task.cancel)
    variables = {name: os.environ[name] for name in _TERMINAL if name in os.environ}
    prompt = rf"[{state.id[:8]}] \w \$ "
    async with _shown(home, state, network=network) as live:
        return await relay(
            lambda terminal: live.run_terminal(terminal, prompt=prompt, variables=variables)
        )


async def run_command(home: Environments, state: State, command: str, *, network: bool) -> int:
    """Run a command in the shell of a state; its output is this process's. Its exit code.

    Raises:
        StateLost, SandboxFailed, ServiceFailed: it cannot be shown.
    """

    def show(stream: str, data: bytes) -> None:
        where = sys.stdout if stream == "stdout" else sys.stderr
        where.buffer.write(data)
        where.buffer.flush()

    async with _shown(home, state, network=network) as live:
        return (await live.run_in_shell(command, on_output=show, limit_bytes=0)).exit_code


@asynccontextmanager
async def _shown(
    home: Environments, state: State, *, network: bool
) -> AsyncIterator[LiveWorkspace]:
    kind = WorkspaceKind(state.base.path, Confinement(network=network))
    live = await home.open(kind, state)
    try:
        yield live
    finally:
        await live.close()
        await home.close()
