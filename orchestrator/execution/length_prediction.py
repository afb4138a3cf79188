"""What is known of a stage and of a call before they happen, as it is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.execution.context import CallTrace, LiveRun, none_if_infinite
from orchestrator.learning.stage_deadlines import StageDeadline
from patterns.matching import BEST_K, Match
from serving.analyzer.analyzer import LengthEstimate, RequestAnalyzer
from serving.analyzer.calibration import BOUND_LEVEL
from serving.analyzer.features import CallFeatures
from serving.analyzer.words import count_words, estimate_prompt_tokens
from serving.generation import GenerationRequest
from serving.length_sketch import LengthSketch
from store.records import MatchRecord, StageRecord


def stage_record(run: LiveRun, stage: int, began_s: float, deadline: StageDeadline) -> StageRecord:
    """What past runs say of a stage that begins, with the heaviest of those that say it.

    Args:
        deadline: as its first call gets it, within any shorter limit around that.
    """
    estimate = deadline.estimate
    heaviest = [] if estimate is None else sorted(estimate.matches, key=_lightness)[:BEST_K]
    return StageRecord(
        run_id=run.id,
        stage=stage,
        began_s=run.since_start_s(began_s),
        sub_deadline_s=none_if_infinite(run.since_start_s(deadline.at_s)),
        source=deadline.source,
        share=None if estimate is None else estimate.outlook.share,
        spread=None if estimate is None else estimate.spread,
        num_candidates=0 if estimate is None else estimate.num_candidates,
        num_matches=0 if estimate is None else len(estimate.matches),
        matches=tuple(_match_record(run, match) for match in heaviest),
    )


def count_pattern_use(run: LiveRun, record: StageRecord) -> None:
    """Count the past runs that a stage rests on as used, as much as they weighed.

    Before the first stage every past run is alike: that none of them was chosen is no use of any.
    """
    if record.stage == 0:
        return
    for match in record.matches:
        run.pattern_uses[match.pattern_id] = max(
            match.weight, run.pattern_uses.get(match.pattern_id, 0.0)
        )


@dataclass(frozen=True, slots=True)
class LengthPrediction:
    """What is known of an answer's length before it comes; None where nothing can be."""

    analyzer: RequestAnalyzer
    features: CallFeatures | None
    length: LengthEstimate | None

    @property
    def sketch(self) -> LengthSketch | None:
        """Its quantiles."""
        return None if self.length is None else self.length.sketch

    def columns(self) -> dict[str, Any]:
        """What the call's record says of it."""
        return {
            "features": None if self.features is None else self.features.encode(),
            "length_bound": None if self.sketch is None else self.sketch.upper(BOUND_LEVEL),
            "bound_source": None if self.length is None else self.length.source,
        }

    def observe(self, output_tokens: int) -> None:
        """Learn how long it was."""
        if self.features is not None and self.length is not None:
            self.analyzer.observe(self.features, self.length, output_tokens)


def predict_length(
    run: LiveRun, trace: CallTrace, request: GenerationRequest, text: str
) -> LengthPrediction:
    """What the run's analyzer says of the length of a call's answer.

    Args:
        text: of the prompt, of which only counts remain.
    """
    analyzer = run.knowledge.analyzer
    features = _features(run, trace, request, text)
    return LengthPrediction(
        analyzer, features, None if features is None else analyzer.estimate(features)
    )


def _features(
    run: LiveRun, trace: CallTrace, request: GenerationRequest, text: str
) -> CallFeatures | None:
    """None for a request with impossible numbers, which the engine will refuse."""
    try:
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
    except (TypeError, ValueError, OverflowError):
        return None


def _match_record(run: LiveRun, match: Match) -> MatchRecord:
    key = run.knowledge.library.patterns[match.row].key
    return MatchRecord(key, run.knowledge.runs.get(key), match.weight)


def _lightness(match: Match) -> float:
    return -match.weight
