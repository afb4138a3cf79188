"""A store and a length model that version 0.1 wrote: opened, shown, resumed and learned from."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator import Runtime, Settings, open_runtime
from orchestrator.learning.stage_deadlines import LEARNED
from orchestrator.testing import ScriptedEngine, VirtualClock
from serving.references import load_reference
from store.records import Status
from tests.cli.cli_samples import exit_code
from tests.unit.orchestrator.orchestrator_samples import recorded

HERE = Path(__file__).parent / "version_0_1"
MODEL = "handbook-4703a3e1.lengths"
WRITTEN = datetime(2026, 11, 26, 12, 38, 5, tzinfo=UTC)
"""A few seconds after the runs that did not end had begun: their deadline is 60 s."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the former version."""
    (tmp_path / "store.db").write_bytes(gzip.decompress((HERE / "store.db.gz").read_bytes()))
    (tmp_path / "store.models").mkdir()
    shutil.copy(HERE / MODEL, tmp_path / "store.models" / MODEL)
    (tmp_path / "store.db").chmod(0o600)  # an opened store is made private, with a warning
    return tmp_path


@pytest.fixture
def url(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    store_url = f"sqlite:///{folder / 'store.db'}"
    monkeypatch.setenv("ORCHESTRATE_STORE", store_url)
    return store_url


@pytest.fixture
def flows(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of the flow that the runs' records name."""
    monkeypatch.syspath_prepend(str(HERE))
    import flow_of_version_0_1 as module

    yield module
    del sys.modules["flow_of_version_0_1"]


def scripted() -> ScriptedEngine:
    """An engine with the same answers as the one on which the runs were recorded."""
    return ScriptedEngine(load_reference(f"{HERE / 'make_fixture.py'}:script"))


def prompts(engine: ScriptedEngine) -> list[str]:
    return [str(request.prompt[-1].content) for request in engine.requests]  # type: ignore[union-attr]


async def resumed(url: str, run_id: str, engine: ScriptedEngine) -> Any:
    async with open_runtime(
        Settings(store=url, fit_every=0), engine=engine, clock=VirtualClock(WRITTEN)
    ) as runtime:
        return (await runtime.resume(run_id)).value


@pytest.mark.parametrize(
    "command",
    [
        ["ps"],
        ["show", "done-00"],
        ["show", "killed"],
        ["show", "failed", "--calls"],
        ["logs", "asking"],
        ["checkpoints", "killed"],
        ["patterns", "list"],
        ["patterns", "show", "handbook"],
        ["patterns", "explain", "done-35"],
    ],
    ids=" ".join,
)
def test_its_runs_and_patterns_are_shown(
    url: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*command) == 0
    shown = capsys.readouterr()
    assert "handbook" in shown.out
    assert "warning" not in shown.err


async def test_a_run_that_was_killed_is_resumed_from_its_last_outcome(
    url: str, flows: ModuleType
) -> None:
    """Its plan and one look-up had ended; the rest is executed now."""
    engine = scripted()
    value = await resumed(url, "killed", engine)
    assert value.startswith("2026: sent ")
    assert not any(prompt.startswith("Plan") for prompt in prompts(engine))
    assert sum(prompt.startswith("Draft") for prompt in prompts(engine)) == 2


async def test_a_question_of_a_run_that_ended_can_be_answered_and_the_run_resumed(
    url: str, flows: ModuleType
) -> None:
    assert await asyncio.to_thread(exit_code, "answer", "asking", "by all means") == 0
    engine = scripted()
    assert (await resumed(url, "asking", engine)).startswith("2026: sent ")
    assert prompts(engine) == []


async def test_a_run_that_failed_fails_again_if_nothing_has_changed(
    url: str, flows: ModuleType
) -> None:
    with pytest.raises(flows.Unavailable, match="no closed"):
        await resumed(url, "failed", scripted())


async def test_a_completed_run_returns_its_recorded_result(url: str, flows: ModuleType) -> None:
    engine = scripted()
    assert (await resumed(url, "done-07", engine)).startswith("2026: sent ")
    assert prompts(engine) == []


async def test_a_new_run_learns_its_deadlines_and_lengths_from_the_former_ones(
    url: str, flows: ModuleType
) -> None:
    async with open_runtime(Settings(store=url, fit_every=0), engine=scripted()) as runtime:
        result = await runtime.run(flows.handbook, "txnew")
        found = await recorded(runtime.store, result.run_id)
        sources = await stage_sources(runtime, result.run_id)
    assert found.run.status is Status.COMPLETED
    assert set(sources) == {LEARNED}
    bounds = {call.bound_source for call in found.calls if call.kind.value == "llm"}
    assert bounds == {"forest"}


async def test_a_new_run_uses_the_cached_results_of_the_former_ones(
    url: str, flows: ModuleType
) -> None:
    engine = scripted()
    async with open_runtime(Settings(store=url, fit_every=0), engine=engine) as runtime:
        await runtime.run(flows.handbook, "tx4")
    assert not any(prompt.startswith("Summarise") for prompt in prompts(engine))


async def stage_sources(runtime: Runtime, run_id: str) -> list[str]:
    async with runtime.store.reading() as tx:
        return [stage.source for stage in await tx.stages.of_run(run_id)]


def test_its_application_can_be_fitted(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("patterns", "fit", "handbook") == 0
    assert "36 patterns" in capsys.readouterr().out
