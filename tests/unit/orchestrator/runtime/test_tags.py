"""The tags of a run: recorded with it, and kept when it is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator import flow
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import all_runs, recorded, scripted_runtime
from tests.unit.orchestrator.run_samples import ID


@flow
async def nothing() -> None: ...


async def test_each_run_has_the_tags_of_its_flow_s_options(tmp_path: Path) -> None:
    tagged = nothing.options(tags={"team": "search", "kind": "test"})
    async with scripted_runtime(tmp_path) as runtime:
        for body in (nothing, tagged, tagged.options(tags={"kind": "trial"}, deadline="1h")):
            await runtime.run(body)
        runs = await all_runs(runtime.store)
    assert [each.run.tags for each in runs] == [
        {},
        {"team": "search", "kind": "test"},
        {"team": "search", "kind": "trial"},
    ]


async def test_a_resumed_run_keeps_its_tags(tmp_path: Path) -> None:
    raise_once = RaiseOnce()

    @flow
    async def broken() -> None:
        raise_once()

    async with scripted_runtime(tmp_path) as runtime:
        await run_until_interrupted(runtime, broken.options(tags={"team": "search"}))
        await runtime.resume(ID, broken)
        assert (await recorded(runtime.store, ID)).run.tags == {"team": "search"}


async def test_runs_are_listed_by_their_tags_and_say_them(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path) as runtime:
        for number, tags in enumerate([{"team": "sea"}, {"team": "sea", "kind": "trial"}, {}]):
            await runtime.run(nothing.options(run_id=f"r{number}", tags=tags))
        assert [run.id for run in await runtime.runs(tags={"team": "sea"})] == ["r1", "r0"]
        [trial] = await runtime.runs(tags={"kind": "trial", "team": "sea"}, status="completed")
        assert (trial.id, trial.tags) == ("r1", {"team": "sea", "kind": "trial"})
        assert await runtime.runs(tags={"team": "sea"}, status="running") == []
        assert (await runtime.get("r2")).tags == {}


@pytest.mark.parametrize(
    ("tags", "error"),
    [
        ({"team": 5}, TypeError),
        ({5: "team"}, TypeError),
        ({"team": None}, TypeError),
        ({"team": "x" * 201}, ValueError),
        ({"x" * 201: "team"}, ValueError),
        ({"team": "\x00"}, ValueError),
        ({str(number): "" for number in range(51)}, ValueError),
    ],
    ids=lambda each: str(each)[:20],
)
def test_tags_that_cannot_be_recorded_are_refused(tags: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        nothing.options(tags=tags)


def test_a_flow_with_tags_can_be_a_key() -> None:
    tagged = nothing.options(tags={"team": "search"})
    assert {tagged: 1, nothing: 2}[tagged] == 1
