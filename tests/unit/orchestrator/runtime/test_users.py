"""The user of a run: sent to the engine with every call, and kept when the run is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import Runtime, flow, llm
from orchestrator.testing import ScriptedEngine
from serving.errors import InvalidSlo
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import answer_ok, recorded, scripted_runtime
from tests.unit.orchestrator.run_samples import ID


@flow
async def chat() -> None:
    await llm("one")


def users(runtime: Runtime) -> list[str]:
    """The user of each request that reached the engine."""
    assert isinstance(runtime.engine, ScriptedEngine)
    return [request.slo.user for request in runtime.engine.requests]


@pytest.mark.parametrize("deadline", [None, "1h"])
async def test_the_user_of_a_run_is_that_of_its_flow_or_else_of_the_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: str | None
) -> None:
    monkeypatch.setenv("ORCHESTRATE_USER", "the team")
    limited = chat.options(deadline=deadline)
    async with scripted_runtime(tmp_path) as runtime:
        for body in (limited, limited.options(user="alice"), limited.options(user="")):
            await body()
        await limited.options(user="bob").options(run_id=ID)()
        assert users(runtime) == ["the team", "alice", "", "bob"]
        assert (await recorded(runtime.store, ID)).run.slo_user == "bob"


async def test_a_resumed_run_keeps_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_once = RaiseOnce()

    @flow
    async def broken() -> None:
        await llm("one")
        raise_once()
        await llm("two")

    async with scripted_runtime(tmp_path) as runtime:
        await run_until_interrupted(runtime, broken.options(user="alice"))
    monkeypatch.setenv("ORCHESTRATE_USER", "another")
    async with scripted_runtime(tmp_path, ScriptedEngine(answer_ok)) as runtime:
        await runtime.resume(ID, broken)
        assert users(runtime) == ["alice"]


@pytest.mark.parametrize("name", ["x" * 257, "half\ud800", "nul\x00"])
def test_a_user_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises((InvalidSlo, ValueError)):
        chat.options(user=name)
