"""Predictions about a stage and about a call's answer length, in the form that is recorded."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.execution.context import CallTrace, LiveRun, none_if_infinite
from orchestrator.learning.stage_deadlines import StageDeadline
from serving.analyzer.calibration import BOUND_LEVEL
from serving.errors import CorruptFeatures, UnknownFeaturesVersion
from serving.generation import GenerationRequest
from serving.length_sketch import LengthSketch
from store.records import CallRecord, MatchRecord, StageRecord

if TYPE_CHECKING:
    from patterns.matching import Match
    from serving.analyzer.analyzer import LengthEstimate, RequestAnalyzer
    from serving.analyzer.features import CallFeatures


def stage_record(run: LiveRun, stage: int, began_s: float, deadline: StageDeadline) -> StageRecord:
    """The record of a stage that begins: its sub-deadline, and the past runs it is derived from.

    Only the matches with the largest weights are recorded.

    Args:
        began_s: when its first call begins, on the run's clock.
        deadline: of its first call, which a limit around that call may have shortened.
    """
    estimate = deadline.estimate
    best = [] if estimate is None else estimate.heaviest()
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
        matches=tuple(_match_record(run, match) for match in best),
    )


def count_pattern_use(run: LiveRun, record: StageRecord) -> None:
    """Count a use of each past run that a stage's sub-deadline is derived from, by its weight.

    Stage 0 does not count: before it every past run matches equally, so that none is selected.
    """
    if record.stage == 0:
        return
    for match in record.matches:
        run.pattern_uses[match.pattern_id] = max(
            match.weight, run.pattern_uses.get(match.pattern_id, 0.0)
        )


@dataclass(frozen=True, slots=True)
class LengthPrediction:
    """The predicted length of an answer.

    Attributes:
        features: of the call; None if the request is invalid.
        length: the estimate; None without features.
    """

    analyzer: RequestAnalyzer
    features: CallFeatures | None
    length: LengthEstimate | None

    @property
    def sketch(self) -> LengthSketch | None:
        """The quantiles of the predicted length; None without an estimate."""
        return None if self.length is None else self.length.sketch

    def columns(self) -> dict[str, Any]:
        """The columns of the call's record that hold the prediction."""
        return {
            "features": None if self.features is None else self.features.encode(),
            "length_bound": None if self.sketch is None else self.sketch.upper(BOUND_LEVEL),
            "bound_source": None if self.length is None else self.length.source,
        }

    def observe(self, output_tokens: int) -> None:
        """Learn from the answer's real length."""
        if self.features is not None and self.length is not None:
            self.analyzer.observe(self.features, self.length, output_tokens)


def predict_length(
    run: LiveRun, trace: CallTrace, request: GenerationRequest, text: str
) -> LengthPrediction:
    """The run's prediction of a call's answer length; the trace gets the prompt's estimated tokens.

    Args:
        text: the prompt; only counts of its words are kept.
    """
    analyzer = run.knowledge.analyzer
    features = _features(run, trace, request, text)
    trace.prompt_estimate = 0 if features is None else features.prompt_tokens
    return LengthPrediction(
        analyzer, features, None if features is None else analyzer.estimate(features)
    )


def recorded_prompt_estimate(call: CallRecord) -> int:
    """The estimated tokens of a recorded call's prompt; 0 if its features cannot be read."""
    from serving.analyzer.features import CallFeatures

    if call.features is None:
        return 0
    with suppress(CorruptFeatures, UnknownFeaturesVersion, ValueError):
        return CallFeatures.decode(call.identity, call.features).prompt_tokens
    return 0


def _features(
    run: LiveRun, trace: CallTrace, request: GenerationRequest, text: str
) -> CallFeatures | None:
    """The features of a call; None for invalid parameters, which the engine will refuse."""
    # They need NumPy, so they are not imported with the SDK; the run's knowledge has loaded them.
    from serving.analyzer.features import CallFeatures
    from serving.analyzer.words import count_words, estimate_prompt_tokens

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
