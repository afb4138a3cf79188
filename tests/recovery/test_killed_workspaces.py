"""A dozen kills of processes, zygotes and sandboxes: nothing acknowledged is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recovery.killed_workspaces import killed

pytestmark = [pytest.mark.usefixtures("subprocesses"), pytest.mark.slow]


def test_what_was_acknowledged_is_there_after_kills_and_nothing_else_is_left(
    tmp_path: Path,
) -> None:
    counts = killed(12, 1, tmp_path)
    assert {name: num for name, num in counts.items() if name.startswith("WRONG")} == {}
    assert min(counts[f"kills of a {victim}"] for victim in ("process", "zygote", "sandbox")) > 0
    assert counts["compared"] > 30  # a busy machine records less between two kills
    assert counts["SandboxFailed"] > 0
