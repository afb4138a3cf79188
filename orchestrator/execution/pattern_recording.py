"""A run that has ended -> the pattern from which later runs learn."""

from __future__ import annotations

import logging
from datetime import datetime

from orchestrator.durability.identity import is_in_wrap_up
from orchestrator.execution.context import LiveRun
from patterns.codec import CODEC_VERSION
from patterns.condensing import encode_within
from patterns.errors import PatternError
from patterns.graph import PatternGraph
from store.records import PatternRecord

logger = logging.getLogger("orchestrate")


def pattern_of(run: LiveRun) -> PatternGraph:
    """The graph of a run's calls that completed or were cut off.

    Leaving out the others loses no edge between these: calls that failed are no parents. Exceptions
    are runs that a former version began, and calls that came after one that was cut off and that a
    resumed run then completed. Calls of the run's wrap-up are left out too: with more time it would
    not have made them.
    """
    done = [call for call in run.graph_calls() if not is_in_wrap_up(call.path)]
    index_of = {call.node: index for index, call in enumerate(done)}
    edges = [
        (index_of[parent], index_of[call.node])
        for call in done
        for parent in run.causality.parents[call.node]
        if parent in index_of
    ]
    return PatternGraph(tuple(call.as_node() for call in done), tuple(edges))


def pattern_record(run: LiveRun, recorded_at: datetime) -> PatternRecord | None:
    """The stored form of a run's pattern; None if the run made no calls.

    None as well if no pattern can represent the run, as with too many calls. That is logged, since
    a run must not fail because later runs cannot learn from it.
    """
    try:
        graph = pattern_of(run)
        if not graph.nodes:
            return None
        document = encode_within(graph.canonical())
    except PatternError as error:
        logger.warning("no pattern of run %s is recorded: %s", run.id, error)
        return None
    return PatternRecord(
        application=run.flow,
        document=document,
        codec_version=CODEC_VERSION,
        created_at=recorded_at,
        uses=1.0,  # counts the run itself, so that a new pattern is not the first to be evicted
        run_id=run.id,
        is_cut_off=run.is_cut_off,
    )
