"""Whose a run is: told to the engine with every call, and the same after it was resumed."""

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
    """Of each call that reached the engine."""
    assert isinstance(runtime.engine, ScriptedEngine)
    return [request.slo.user for request in runtime.engine.requests]


@pytest.mark.parametrize("deadline", [None, "1h"])
async def test_a_flow_says_whose_it_is_or_else_its_runtime_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: str | None
) -> None:
    monkeypatch.setenv("ORCHESTRATE_USER", "the team")
    said = chat.options(deadline=deadline)
    async with scripted_runtime(tmp_path) as runtime:
        for flow_of in (said, said.options(user="alice"), said.options(user="")):
            await flow_of()
        await said.options(user="bob").options(run_id=ID)()
        assert users(runtime) == ["the team", "alice", "", "bob"]
        assert (await recorded(runtime.store, ID)).run.slo_user == "bob"


async def test_a_resumed_run_is_the_same_users(
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
def test_a_name_that_cannot_be_kept_is_refused(name: str) -> None:
    with pytest.raises((InvalidSlo, ValueError)):
        chat.options(user=name)
