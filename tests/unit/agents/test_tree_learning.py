"""What Tree of Thoughts leaves for later runs: small patterns, from which they learn times."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.tree_of_thoughts.pipeline import tree_of_thoughts
from benchmarks.game24 import drawn
from orchestrator.learning.stage_deadlines import FALLBACK, LEARNED
from orchestrator.testing import ScriptedEngine
from patterns import stages_in
from patterns.condensing import MAX_PATTERN_BYTES
from tests.unit.agents.tree_of_thoughts_samples import settled
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime

RUNS = 30


@pytest.mark.slow
async def test_the_31st_run_has_learned_sub_deadlines_from_patterns_of_at_most_200_bytes(
    tmp_path: Path,
) -> None:
    flow = tree_of_thoughts.options(deadline="1h")
    *past, puzzle = drawn(RUNS + 1, seed=0)
    async with scripted_runtime(tmp_path, ScriptedEngine(settled, token_s=0.001)) as runtime:
        first = await runtime.run(flow, past[0])
        for each in past[1:]:
            await runtime.run(flow, each)
        result = await runtime.run(flow, puzzle)
        async with runtime.store.reading() as tx:
            records = await tx.patterns.of_application("tree-of-thoughts")
    assert {stage.source for stage in first.stages} == {FALLBACK}
    assert {stage.source for stage in result.stages} == {LEARNED}
    assert len(records) == RUNS + 1
    assert max(len(record.document) for record in records) <= MAX_PATTERN_BYTES == 200


@pytest.mark.slow
async def test_a_search_of_many_rounds_leaves_a_small_pattern_with_all_its_stages(
    tmp_path: Path,
) -> None:
    async with scripted_runtime(tmp_path, ScriptedEngine(settled)) as runtime:
        flow = tree_of_thoughts.options(deadline="1h")
        result = await runtime.run(flow, "7 11 12 13", beam=1, judge="values")
        async with runtime.store.reading() as tx:
            [record] = await tx.patterns.of_application("tree-of-thoughts")
            calls = await tx.calls.of_run(result.run_id)
    assert len(result.stages) > 20
    assert len(record.document) <= MAX_PATTERN_BYTES < 2 * len(calls)
    assert len(stages_in(record.document)) == len(result.stages)
