"""Calls that arrive and end -> what is known about them, as tags.

The length is that of similar calls. Of a program with a deadline the stages to come are those of
past programs that began alike, as in a run (`orchestrator.learning.stage_deadlines`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from orchestrator.analyzer.programs import Program, Programs, ServedCall
from orchestrator.learning.knowledge import Knowledge
from orchestrator.learning.stage_deadlines import RunTimes, StageDeadline, StageDeadlines, call_slo
from patterns.library import PatternLibrary
from patterns.stages import Stage
from serving.analyzer.features import CallFeatures
from serving.analyzer.messages import Advice, Arrival, Ended
from serving.length_sketch import LengthSketch
from serving.slo import Slo, to_tags

KnowledgeOf = Callable[[str], Knowledge | None]
"""What is known about a model's calls; None before it has been loaded."""


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """The stages of a program with a deadline; `uses` are the weights of the patterns it used."""

    deadlines: StageDeadlines
    library: PatternLibrary
    uses: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """A program that has ended, and the weights with which it used past ones, by pattern key."""

    program: Program
    uses: dict[int, float]


class Advisor:
    """Advises on calls, and learns the lengths of their answers.

    Args:
        idle_s: a program without a call for so long has ended.
    """

    def __init__(self, knowledge_of: KnowledgeOf, *, idle_s: float) -> None:
        self._knowledge_of = knowledge_of
        self._programs = Programs(idle_s=idle_s)
        self._plans: dict[str, _Plan] = {}  # by program

    def arrived(self, arrival: Arrival) -> Advice:
        """The advice on a call that arrives."""
        program, call = self._programs.arrived(arrival)
        known = self._knowledge_of(arrival.model)
        if known is None:
            return Advice(call=arrival.call)
        call.features = _features(program, call)
        if call.features is not None:
            call.estimate = known.analyzer.estimate(call.features)
        sketch = None if call.estimate is None else call.estimate.sketch
        return Advice(call=arrival.call, tags=to_tags(self._slo(program, call, known, sketch)))

    def ended(self, ended: Ended) -> None:
        """Learn from a call that ended."""
        call = self._programs.ended(ended)
        if call is None or not ended.is_complete:
            return
        known = self._knowledge_of(call.arrival.model)
        if known is not None and call.features is not None and call.estimate is not None:
            known.analyzer.observe(call.features, call.estimate, ended.output_tokens)

    def finished(self, now_s: float) -> list[Finished]:
        """Take out the programs that have ended by now."""
        return [self._finish(program) for program in self._programs.idle(now_s)]

    def close(self) -> list[Finished]:
        """Take out all programs."""
        return [self._finish(program) for program in self._programs.close()]

    def _finish(self, program: Program) -> Finished:
        plan = self._plans.pop(program.id, None)
        return Finished(program, {} if plan is None else plan.uses)

    def _slo(
        self, program: Program, call: ServedCall, known: Knowledge, sketch: LengthSketch | None
    ) -> Slo:
        """What is known about a call; of a program with a deadline also its stages."""
        if program.deadline_at_s is None:
            return Slo(length=sketch)
        plan = self._plans.setdefault(program.id, _plan(program.deadline_at_s, known.library))
        now_s = call.arrival.at_s
        stage = 2 * call.stage  # every second one is what the client did
        is_first = not plan.deadlines.has(stage)
        deadline = plan.deadlines.of(
            stage,
            now_s,
            first_call=("llm", call.identity),
            summary_of=_summaries(program, now_s),
        )
        if is_first and stage:
            _count_uses(plan, deadline)
        return call_slo(
            run_id=program.name or program.id,
            run=RunTimes(program.began_s, program.deadline_at_s),
            stage=stage,
            stage_calls=1,
            stage_deadline=deadline,
            limit_at_s=program.deadline_at_s,
            now_s=now_s,
            length=sketch,
        )


def _plan(deadline_at_s: float, library: PatternLibrary) -> _Plan:
    match = library.matcher.begin() if len(library) else None
    deadlines = StageDeadlines(deadline_at_s=deadline_at_s, expected_stages=None, match=match)
    return _Plan(deadlines, library)


def _summaries(program: Program, now_s: float) -> Callable[[int], Stage | None]:
    @cache
    def stages() -> tuple[Stage, ...]:
        return program.graph(until_s=now_s).stages

    return lambda number: stages()[number] if number < len(stages()) else None


def _count_uses(plan: _Plan, deadline: StageDeadline) -> None:
    """Count the patterns behind a stage's deadline; before stage 0 every pattern matches alike."""
    for match in [] if deadline.estimate is None else deadline.estimate.heaviest():
        key = plan.library.patterns[match.row].key
        plan.uses[key] = max(match.weight, plan.uses.get(key, 0.0))


def _features(program: Program, call: ServedCall) -> CallFeatures | None:
    """The features of a call, which is the last of its program; None if it is invalid."""
    arrival = call.arrival
    ended = [each.ended for each in program.complete_calls if each.ended]
    tokens = [each.output_tokens for each in sorted(ended, key=lambda each: each.at_s)]
    try:
        return CallFeatures(
            identity=call.identity,
            prompt_tokens=arrival.prompt_tokens,
            max_tokens=arrival.max_tokens,
            temperature=arrival.temperature,
            top_p=arrival.top_p,
            structured=arrival.structured,
            stage=2 * call.stage,
            position=len(program.calls) - 1,
            previous_tokens=tokens[-1] if tokens else 0,
            run_mean_tokens=sum(tokens) / len(tokens) if tokens else 0.0,
            words=bytes.fromhex(arrival.words),
        )
    except ValueError:
        return None
