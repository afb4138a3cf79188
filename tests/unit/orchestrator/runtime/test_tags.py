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
