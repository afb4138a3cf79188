"""A finished run -> the pattern that it leaves to later ones."""

from __future__ import annotations

from datetime import datetime

from orchestrator.context import LiveRun
from patterns.codec import CODEC_VERSION, encode
from patterns.errors import PatternTooLarge
from patterns.graph import PatternGraph
from store.records import PatternRecord


def pattern_of(run: LiveRun) -> PatternGraph:
    """The graph of a run's completed calls; what was cut off leaves no trace in it.

    Only a completed call is anybody's parent, so no edge is lost with the others.
    """
    done = [call for call in run.calls if call.ended_s is not None]
    place = {call.node: index for index, call in enumerate(done)}
    edges = [
        (place[parent], place[call.node])
        for call in done
        for parent in run.causality.parents[call.node]
    ]
    return PatternGraph(tuple(call.as_node() for call in done), tuple(edges))


def pattern_record(run: LiveRun, recorded_at: datetime) -> PatternRecord | None:
    """The stored form of a run's pattern; None if it made no calls, or too many to keep."""
    graph = pattern_of(run)
    if not graph.nodes:
        return None
    try:
        document = encode(graph.canonical())
    except PatternTooLarge:
        return None
    return PatternRecord(
        application=run.flow,
        document=document,
        codec_version=CODEC_VERSION,
        created_at=recorded_at,
        run_id=run.id,
    )
