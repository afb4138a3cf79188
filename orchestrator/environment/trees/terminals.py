"""An interactive bash in a sandbox, on a terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping

from orchestrator.environment.sandbox.messages import Limits
from orchestrator.environment.trees.sandbox_client import Sandbox

_SCRIPT = 3


async def run_terminal(
    sandbox: Sandbox,
    terminal: int,
    *,
    script: str,
    folder: str,
    variables: Mapping[str, str],
    limits: Limits,
) -> int:
    """Run bash on a terminal until it ends, with all that it has left running.

    Args:
        terminal: a descriptor, which stays ours.
        script: executed before the first prompt.
    Returns:
        Its exit code.
    Raises:
        SandboxFailed: it cannot be started, or the sandbox has ended.
    """
    given = os.memfd_create("script")
    try:
        ending = f"{script}\nexec {_SCRIPT}<&-\n"
        with os.fdopen(os.dup(given), "wb") as file:
            file.write(ending.encode(errors="surrogateescape"))
        program = await sandbox.start(
            {
                "arguments": ["/bin/bash", "--noprofile", "--rcfile", f"/dev/fd/{_SCRIPT}", "-i"],
                "variables": variables,
                "folder": folder,
                "descriptors": [0, 1, 2, _SCRIPT],
                "limits": limits,
                "keeps": False,
                "terminal": True,
            },
            [terminal, terminal, terminal, given],
        )
    finally:
        os.close(given)
    return await program.ended
