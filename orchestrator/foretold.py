"""What is known of a stage and of a call before they happen, as it is recorded."""

from __future__ import annotations

from orchestrator.context import CallTrace, LiveRun, none_if_infinite
from orchestrator.deadlines import StageDeadline
from serving.analyzer.features import CallFeatures
from serving.analyzer.words import count_words, estimate_prompt_tokens
from serving.generation import GenerationRequest
from store.records import MatchRecord, StageRecord


def stage_record(run: LiveRun, stage: int, began_s: float, deadline: StageDeadline) -> StageRecord:
    """What past runs say of a stage that begins, with the runs that say it.

    Args:
        deadline: as its first call gets it, within any shorter limit around that.
    """
    record = StageRecord(
        run_id=run.id,
        stage=stage,
        began_s=run.since_start_s(began_s),
        sub_deadline_s=none_if_infinite(run.since_start_s(deadline.at_s)),
        source=deadline.source,
    )
    estimate = deadline.estimate
    if estimate is None:
        return record
    kept = run.knowledge.library.patterns
    matches = []
    for match in estimate.matches:
        key = kept[match.row].key
        matches.append(MatchRecord(key, run.knowledge.runs[key], match.weight))
    return StageRecord(
        run_id=run.id,
        stage=stage,
        began_s=record.began_s,
        sub_deadline_s=record.sub_deadline_s,
        source=record.source,
        share=estimate.outlook.share,
        spread=estimate.spread,
        num_candidates=estimate.num_candidates,
        matches=tuple(matches),
    )


def call_features(
    run: LiveRun, trace: CallTrace, request: GenerationRequest, text: str
) -> CallFeatures:
    """What the length of an answer can be foretold from; of the prompt only counts remain."""
    return CallFeatures(
        identity=trace.identity,
        prompt_tokens=estimate_prompt_tokens(text),
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        structured=request.schema is not None,
        stage=trace.stage,
        position=trace.node,
        previous_tokens=run.answers.last_tokens,
        run_mean_tokens=run.answers.mean_tokens,
        words=count_words(text),
    )
