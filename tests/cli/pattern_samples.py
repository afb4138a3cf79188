"""Shared by the tests of `orchestrate patterns`: sample patterns, plans and runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrator import Settings, flow, llm, open_runtime, step
from orchestrator.testing import ScriptedEngine
from patterns.codec import CODEC_VERSION, encode
from patterns.graph import PatternGraph
from patterns.nodes import LlmNode, ToolNode
from serving.analyzer.features import CallFeatures
from store.records import (
    CallKind,
    CallRecord,
    FitRecord,
    MatchRecord,
    PatternRecord,
    StageRecord,
)
from store.session import open_store
from tests.cli.cli_samples import a_call, a_run, research_calls

NOW = datetime.now(UTC)
RUN = "3f2a9c1b77de"


def research_graph(*, plan_s: float = 1.0, rounds: int = 1, reads: int = 2) -> PatternGraph:
    """plan, then rounds of two searches and `reads` reads, then write: 2 + 2 * rounds stages."""
    nodes: list[LlmNode | ToolNode] = [LlmNode("demo:plan", 100, 60, plan_s)]
    edges: list[tuple[int, int]] = []
    frontier = [0]
    for _ in range(rounds):
        for layer in (
            [ToolNode("search", 0.5)] * 2,
            [LlmNode("demo:read", 800, 120, 4.0)] * reads,
        ):
            first = len(nodes)
            nodes += layer
            members = range(first, len(nodes))
            edges += [(parent, child) for parent in frontier for child in members]
            frontier = list(members)
    edges += [(parent, len(nodes)) for parent in frontier]
    nodes.append(LlmNode("demo:write", 900, 500, 4.5))
    return PatternGraph(tuple(nodes), tuple(edges))


def a_pattern(graph: PatternGraph, run_id: str | None = None, **changes: Any) -> PatternRecord:
    defaults: dict[str, Any] = {
        "application": "deep-research",
        "document": encode(graph.canonical()),
        "codec_version": CODEC_VERSION,
        "created_at": NOW,
        "run_id": run_id,
    }
    return PatternRecord(**defaults | changes)


def answered(run_id: str, node: int, name: str, tokens: int, **changes: Any) -> CallRecord:
    """A completed LLM call with features, from which lengths can be learned."""
    features = CallFeatures(identity=f"demo:{name}", prompt_tokens=100, position=node)
    defaults: dict[str, Any] = {
        "run_id": run_id,
        "output_tokens": tokens,
        "features": features.encode(),
        "bound_source": "limit",
    }
    return a_call(node, 0, name, **defaults | changes)


def fill(
    url: str,
    *,
    runs: Iterable[str] = (),
    patterns: Iterable[PatternRecord] = (),
    calls: Iterable[CallRecord] = (),
    fits: Iterable[FitRecord] = (),
    stages: Iterable[StageRecord] = (),
) -> None:
    """Add runs with these ids, and the given records, to a store."""

    async def record() -> None:
        async with await open_store(url) as store, store.transaction() as tx:
            for run_id in runs:
                await tx.runs.add(a_run(run_id))
            for pattern in patterns:
                await tx.patterns.add(pattern)
            for call in calls:
                await tx.calls.start(call)
            for stage in stages:
                await tx.stages.start(stage)
            for fit in fits:
                await tx.fits.put(fit)

    asyncio.run(record())


def fill_library(url: str) -> None:
    """Patterns of three runs of one application; the second has a weight of five runs."""
    ids = ["aaaa00010000", "bbbb00020000", "cccc00030000"]
    fill(
        url,
        runs=ids,
        patterns=[
            a_pattern(research_graph(), ids[0]),
            a_pattern(research_graph(rounds=2, reads=3), ids[1], weight=5.0, uses=2.0),
            a_pattern(research_graph(plan_s=5.5), ids[2], weight=0.0),
        ],
        calls=[
            answered(ids[0], 0, "plan", 60, length_bound=80.0, bound_source="forest"),
            answered(ids[0], 1, "plan", 100, length_bound=80.0, bound_source="forest"),
            answered(ids[0], 2, "write", 500),
        ],
        fits=[
            FitRecord(
                application="deep-research",
                fitted_at=NOW - timedelta(hours=3),
                last_pattern_id=2,
                num_patterns=2,
                kernel={
                    "version": 1,
                    "bandwidths": {
                        "output_tokens": 0.4,
                        "tool_seconds": None,
                        "input_tokens": 1.2,
                    },
                },
            )
        ],
    )


def planned(stage: int, began_s: float, due_s: float | None, **changes: Any) -> StageRecord:
    return StageRecord(RUN, stage, began_s, due_s, **{"source": "fallback"} | changes)


def learned_stages(*, dues: Sequence[float | None] = (7.5, 15.0, 15.5, 60.0)) -> list[StageRecord]:
    """The plan of `research_calls`: three learned sub-deadlines, then an even share."""
    past = ["aaaa00010000", "bbbb00020000", "bbbb00030000", None, "dddd00050000"]
    matches = [
        MatchRecord(number + 1, run_id, weight)
        for number, (run_id, weight) in enumerate(zip(past, (0.1, 0.4, 0.2, 0.2, 0.1), strict=True))
    ]
    learned: dict[str, Any] = {"source": "learned", "num_candidates": 12, "spread": 0.03}
    return [
        planned(0, 0.1, dues[0], share=0.12, matches=matches, **learned),
        planned(1, 4.2, dues[1], share=0.2, matches=matches[:2], **learned),
        planned(2, 4.5, dues[2], share=0.25, matches=matches[3:4], **learned),
        planned(3, 20.6, dues[3]),
    ]


def fill_explained_run(url: str, **changes: Any) -> None:
    """A run of four stages with plans; two LLM calls have length bounds, one is exceeded."""
    bounds = {0: (130.0, "forest"), 3: (100.0, "step"), 4: (None, "limit")}
    deadline = {"sub_deadline_s": None} if changes.get("deadline_s", 60.0) is None else {}
    calls = []
    for call in research_calls():
        bound, source = bounds.get(call.node, (None, None))
        fields = {"length_bound": bound, "bound_source": source} | deadline
        if call.kind is CallKind.TOOL:
            fields = deadline
        calls.append(replace(call, **fields))

    async def record() -> None:
        async with await open_store(url) as store, store.transaction() as tx:
            await tx.runs.add(a_run(RUN, **changes))
            for call in calls:
                await tx.calls.start(call)
            for stage in learned_stages(dues=(None,) * 4 if deadline else (7.5, 15.0, 15.5, 60.0)):
                await tx.stages.start(stage)

    asyncio.run(record())


@step
async def think() -> str:
    return await llm("what is it?")


@step
async def tell() -> str:
    return await llm("say it")


@flow(name="article", deadline="60s", stages=2)
async def article() -> str:
    await think()
    return await tell()


def run_articles(url: str, num_runs: int) -> list[str]:
    """Run a flow several times in a row on a scripted engine; the runs' ids."""

    async def run() -> list[str]:
        settings = Settings(store=url, fit_every=0)
        async with open_runtime(settings, engine=ScriptedEngine(lambda _: "a b c")) as runtime:
            return [(await runtime.run(article)).run_id for _ in range(num_runs)]

    return asyncio.run(run())
