"""A finished run -> the pattern that it leaves to later ones."""

from __future__ import annotations

import logging
from datetime import datetime

from orchestrator.execution.context import LiveRun
from patterns.codec import CODEC_VERSION, encode
from patterns.errors import PatternError
from patterns.graph import PatternGraph
from store.records import PatternRecord

logger = logging.getLogger("orchestrate")


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
    """The stored form of a run's pattern; None if it made no calls.

    None as well for one that no pattern can hold, with too many calls or impossible numbers: a
    run that is done is not to fail for the sake of later ones.
    """
    try:
        graph = pattern_of(run)
        if not graph.nodes:
            return None
        document = encode(graph.canonical())
    except PatternError as error:
        logger.warning("run %s leaves no pattern: %s", run.id, error)
        return None
    return PatternRecord(
        application=run.flow,
        document=document,
        codec_version=CODEC_VERSION,
        created_at=recorded_at,
        uses=1.0,  # by itself: a new run is not the first to be forgotten
        run_id=run.id,
    )
