"""kill -9 before and after every write of a fork: there is no fork, or one that can be resumed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest

from orchestrator import Settings, open_runtime
from orchestrator.testing import ScriptedEngine, crash_at
from store.errors import RunNotFound
from tests.recovery.simulated_flows import nested
from tests.recovery.test_killed_at_every_write import in_a_process
from tests.unit.orchestrator.orchestrator_samples import recorded, store_url

pytestmark = pytest.mark.usefixtures("subprocesses")

AT = "report[0]"
"""The first of three reports; the other branch is in progress when it ends."""


async def fork_once(
    folder: Path, crash: tuple[int, Literal["before", "after"]] | None
) -> dict[str, Any]:
    """Fork the run, or resume the fork; with a crash at one of the writes."""
    settings = Settings(store=store_url(folder), fit_every=0)
    async with open_runtime(settings, engine=ScriptedEngine("yes")) as runtime:
        try:
            await runtime.get("run")
        except RunNotFound:
            await runtime.run(nested.options(run_id="run"), "one")
        was_there = "fork" in {run.id for run in await runtime.runs()}
        writes = 0
        if crash is not None:
            crash_at(runtime.store, *crash)
        else:
            transaction = runtime.store.transaction

            def counted(**options: Any) -> Any:
                nonlocal writes
                writes += 1
                return transaction(**options)

            runtime.store.transaction = counted  # type: ignore[method-assign]
        if was_there:
            result = await runtime.resume("fork", nested)
        else:
            result = await runtime.fork("run", nested, at=AT, new_id="fork")
        journal = (await recorded(runtime.store, "fork")).journal
        return {
            "value": result.value,
            "writes": writes,
            "was_there": was_there,
            "paths": sorted(journal),
            "running": (await recorded(runtime.store, "fork")).still_running(),
        }


@pytest.mark.slow
def test_a_fork_that_is_killed_at_any_write_is_whole_or_not_there(tmp_path: Path) -> None:
    def once(folder: Path, crash: Any = None) -> dict[str, Any] | None:
        folder.mkdir(exist_ok=True)
        return in_a_process(lambda: asyncio.run(fork_once(folder, crash)))

    uninterrupted = once(tmp_path / "whole")
    assert uninterrupted is not None
    assert uninterrupted["writes"] > 5
    were_there = []
    for number in range(uninterrupted["writes"]):
        for when in ("before", "after"):
            folder = tmp_path / f"{number}-{when}"
            assert once(folder, (number, when)) is None
            resumed = once(folder)
            assert resumed is not None
            were_there.append(resumed.pop("was_there"))
            assert resumed["value"] == uninterrupted["value"]
            assert (resumed["paths"], resumed["running"]) == (uninterrupted["paths"], [])
    # Only if it was killed before its first write is there none.
    assert were_there == [False] + [True] * (len(were_there) - 1)
