"""Learning from the programs of a simulation as from recorded runs, and predicting others with it.

The library, its matching, the division of deadlines, the length model and the SLO of a call are
those of production. Only what is between them differs: a program's calls instead of a flow's, and
lists instead of the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from blake3 import blake3

import patterns
from orchestrator.learning.fitting import BUDGET_BYTES, SEED, compacted
from orchestrator.learning.knowledge import REPLAYED_CALLS, Knowledge
from orchestrator.learning.stage_deadlines import RunTimes, StageDeadlines, call_slo
from patterns.codec import stages_in
from patterns.condensing import encode_within
from patterns.errors import PatternError
from patterns.graph import PatternGraph
from patterns.library import KeptPattern, PatternLibrary
from patterns.matching import LiveMatch
from patterns.nodes import LlmNode, Node, ToolNode
from patterns.stages import Stage
from serving.analyzer.analyzer import RequestAnalyzer
from serving.analyzer.features import CallFeatures
from serving.analyzer.fitted import MIN_CALLS, fit
from serving.analyzer.samples import Sample
from serving.length_sketch import LengthSketch
from serving.sim.programs.call_slos import in_parts, single_call_slo
from serving.sim.programs.programs import Program, StageCall
from serving.slo import Slo, SloKind

TOOL = "tool"
"""The identity of whatever runs between two stages of a program."""


@dataclass(frozen=True, slots=True)
class SimulatedLearning:
    """Records programs, and predicts others from them.

    Attributes:
        has_lengths: whether the lengths of answers are predicted (the request analyzer).
        has_futures: whether sub-deadlines and future work are predicted (pattern matching).
    """

    has_lengths: bool = True
    has_futures: bool = True

    def recorder(self, *, max_tokens: int) -> LearningPredictor:
        """A recorder that has seen nothing."""
        return LearningPredictor(self, max_tokens=max_tokens)

    def key(self) -> dict[str, Any]:
        """What its predictions depend on, with its code; JSON-safe."""
        return {
            "has_lengths": self.has_lengths,
            "has_futures": self.has_futures,
            "learning": _code_digest(),
        }


@cache
def _code_digest() -> str:
    """A digest of the code that is not in serving."""
    digest = blake3()
    for folder in (Path(__file__).parent, Path(patterns.__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest(16)


class _OpenRun:
    """A program as a run: its calls so far, and the division of its deadline.

    Args:
        match: compares it with past runs; None without any.
    """

    def __init__(self, program: Program, match: LiveMatch | None) -> None:
        self._program = program
        self._layers: list[list[Node]] = []  # ended calls by the run's stages, of which tools are
        self._stage_numbers: list[int] = []  # stage of the program -> stage of the run
        self._features: dict[str, CallFeatures] = {}  # by call that has begun
        self._answers: list[int] = []  # lengths, in the order in which they ended
        self._deadlines: StageDeadlines | None = None
        if program.kind is SloKind.COMPOUND:
            self._deadlines = StageDeadlines(
                deadline_at_s=_times(program).deadline_at_s, expected_stages=None, match=match
            )

    def begin(self, call: StageCall, *, max_tokens: int) -> CallFeatures:
        """The features of a call, which begins now unless it has before."""
        if call.call_id in self._features:
            return self._features[call.call_id]
        if call.stage == len(self._stage_numbers):
            self._begin_stage(call.stage)
        features = CallFeatures(
            identity=f"{self._program.application}:{call.call.step}",
            prompt_tokens=call.call.prompt_tokens,
            max_tokens=max_tokens,
            stage=self._stage_numbers[call.stage],
            position=len(self._features),
            previous_tokens=self._answers[-1] if self._answers else 0,
            run_mean_tokens=sum(self._answers) / max(len(self._answers), 1),
        )
        self._features[call.call_id] = features
        return features

    def _begin_stage(self, stage: int) -> None:
        tool_s = self._program.stages[stage].tool_s
        if tool_s:
            self._layers.append([ToolNode(TOOL, tool_s)])
        self._layers.append([])
        self._stage_numbers.append(len(self._layers) - 1)

    def compound_slo(self, call: StageCall, now_s: float, length: LengthSketch | None) -> Slo:
        """The SLO of a call that has begun."""
        assert self._deadlines is not None, "a compound program has a deadline"
        features = self._features[call.call_id]
        times = _times(self._program)
        slo = call_slo(
            run_id=self._program.id,
            run=times,
            stage=features.stage,
            stage_calls=len(self._program.stages[call.stage].calls),
            stage_deadline=self._deadlines.of(
                features.stage,
                now_s,
                first_call=("llm", features.identity),
                summary_of=self._summaries(),
            ),
            limit_at_s=times.deadline_at_s,
            now_s=now_s,
            length=length,
            user=self._program.user,
        )
        return replace(slo, weight=self._program.weight)

    def _summaries(self) -> Callable[[int], Stage | None]:
        @cache
        def stages() -> tuple[Stage, ...]:
            return self.graph().stages

        return lambda number: stages()[number] if number < len(stages()) else None

    def end(self, call: StageCall, seconds: float) -> CallFeatures:
        """A call has ended; returns its features."""
        features, tokens = self._features[call.call_id], call.call.output_tokens
        node = LlmNode(features.identity, call.call.prompt_tokens, tokens, seconds)
        self._layers[self._stage_numbers[call.stage]].append(node)
        self._answers.append(tokens)
        return features

    @property
    def is_complete(self) -> bool:
        """Whether all its calls have ended."""
        return len(self._answers) == self._program.num_calls

    def graph(self) -> PatternGraph:
        """Its calls that have ended; each depends on the whole stage before it."""
        return PatternGraph.of_layers(self._layers)


class LearningPredictor:
    """Predicts calls from what is known about their application, and records them.

    Args:
        knowledge: by application; nothing is known about others.
    """

    def __init__(
        self,
        learning: SimulatedLearning,
        *,
        max_tokens: int,
        knowledge: Mapping[str, Knowledge] | None = None,
    ) -> None:
        self._learning = learning
        self._max_tokens = max_tokens
        self._knowledge = knowledge or {}
        self._nothing = Knowledge("")
        self._open: dict[str, _OpenRun] = {}
        self._samples: defaultdict[str, list[Sample]] = defaultdict(list)  # by application
        self._patterns: defaultdict[str, list[KeptPattern]] = defaultdict(list)

    @property
    def max_tokens(self) -> int:
        """The limit of every call."""
        return self._max_tokens

    def slo_of(self, program: Program, call: StageCall, now_s: float) -> Slo:
        """The SLO of a call, as of a run with what is known about its flow."""
        known = self._knowledge.get(program.application, self._nothing)
        if program.id not in self._open:
            match = known.library.matcher.begin() if len(known.library) else None
            self._open[program.id] = _OpenRun(program, match)
        run = self._open[program.id]
        features = run.begin(call, max_tokens=self._max_tokens)
        length = None
        if self._learning.has_lengths:
            length = known.analyzer.estimate(features).sketch
        if program.kind is not SloKind.COMPOUND:
            slo = single_call_slo(program, now_s, length)
        else:
            slo = run.compound_slo(call, now_s, length)
        return in_parts(slo, program, call)

    def call_ended(
        self, program: Program, call: StageCall, *, began_s: float, now_s: float
    ) -> None:
        """Record the length of an answer; with a program's last one, its pattern."""
        run = self._open[program.id]
        features = run.end(call, now_s - began_s)
        self._samples[program.application].append(
            Sample(features, call.call.whole_tokens or call.call.output_tokens, began_s, now_s)
        )
        if not run.is_complete:
            return
        del self._open[program.id]
        kept = self._patterns[program.application]
        with suppress(PatternError):  # of a run that no pattern can represent nothing is learned
            stages = stages_in(encode_within(run.graph().canonical()))
            kept.append(KeptPattern(key=len(kept), stages=stages, recorded_at_s=now_s))

    def learned(self) -> LearningPredictor:
        """A predictor with what a fit makes of the records, as `fit_application` does."""
        knowledge = {
            application: Knowledge(
                application,
                _library(self._patterns[application]) if self._learning.has_futures else _NONE,
                _analyzer(samples),
            )
            for application, samples in self._samples.items()
        }
        return LearningPredictor(self._learning, max_tokens=self._max_tokens, knowledge=knowledge)


_NONE = PatternLibrary()


def _library(kept: Sequence[KeptPattern]) -> PatternLibrary:
    if not kept:
        return _NONE
    recent = PatternLibrary(tuple(kept)).evicted(kept[-1].recorded_at_s)
    library, _ = compacted(recent, BUDGET_BYTES, by_silhouette=False)
    return library


def _analyzer(samples: Sequence[Sample]) -> RequestAnalyzer:
    model = fit(samples, seed=SEED) if len(samples) >= MIN_CALLS else None
    return RequestAnalyzer.replay(samples[-REPLAYED_CALLS:], model)


def _times(program: Program) -> RunTimes:
    assert program.deadline_s is not None, "a compound program has a deadline"
    return RunTimes(program.arrival_s, program.arrival_s + program.deadline_s)
