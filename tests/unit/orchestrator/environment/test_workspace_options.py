"""What a workspace refuses to begin with or to do, and how it says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.environment.beginning import workspace
from orchestrator.environment.errors import BaseRefused, NotRevertible, OutsideWorkspace
from orchestrator.environment.states.stored_states import Service
from orchestrator.environment.trees.tree import WorkspaceLimits
from tests.unit.orchestrator.environment.workspace_samples import base_in

pytestmark = pytest.mark.usefixtures("subprocesses", "own_states")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"backend": "docker"}, ValueError, "backend= is one of None, 'overlay', 'copies'"),
        ({"durability": "memory"}, ValueError, "durability= is one of 'process', 'disk'"),
        ({"own": "src"}, TypeError, "own= takes a list, such as ['src']"),
        ({"hide": Path("/etc")}, TypeError, "hide= takes a list"),
        ({"services": {"": "true"}}, ValueError, "a service has a name and a command"),
        ({"own": ["nowhere"]}, BaseRefused, "own= names 'nowhere', which is no folder in it"),
        ({"own": ["file"]}, BaseRefused, "own= names 'file', which is no folder in it"),
    ],
)
async def test_an_unknown_option_is_refused_by_name(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    base = base_in(tmp_path, file="x")
    with pytest.raises(error, match=re.escape(message)):
        async with workspace(base, **options):
            pass


@pytest.mark.parametrize(
    ("limit", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_limit_that_is_none_is_refused(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="memory_bytes is"):
        WorkspaceLimits(memory_bytes=limit)


def test_a_service_without_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="a service has a name and a command"):
        Service("db", "")


async def test_a_command_that_is_too_long_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    async with workspace(base_in(tmp_path)) as ws:
        with pytest.raises(ValueError, match="Write it to a file, and run that"):
            await ws.run(": " + "x" * 200_000)
        assert (await ws.shell(": " + "x" * 200_000)).exit_code == 0


async def test_a_link_that_leads_out_is_named_as_outside(tmp_path: Path) -> None:
    base = base_in(tmp_path)
    (base / "link").symlink_to("/etc")
    async with workspace(base) as ws:
        with pytest.raises(OutsideWorkspace, match="link/hostname"):
            await ws.read("link/hostname")


async def test_a_rewind_past_an_apply_tells_how_to_undo_it(tmp_path: Path) -> None:
    async with workspace(base_in(tmp_path)) as ws:
        start = await ws.checkpoint("start")
        await ws.write("new", "x")
        await ws.apply()
        with pytest.raises(NotRevertible, match="apply the former= of its result"):
            await ws.rewind(start, allow=True)
        with pytest.raises(TypeError, match="allow= takes a list"):
            await ws.rewind(start, allow="ws.apply")
