"""The context of the code that runs now: its run, its step, its deadline (ContextVars)."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.durability.identity import StepPath, is_in_wrap_up
from orchestrator.durability.replay import RecordedSteps
from orchestrator.durability.uncertain_effects import UncertainEffects
from orchestrator.errors import OutsideRun
from orchestrator.execution.causality import CausalLog
from orchestrator.learning.stage_deadlines import StageDeadline, StageDeadlines, is_shorter
from patterns.nodes import Kind, LlmNode, Node, ToolNode
from patterns.stages import Stage, summarise
from store.records import Status

if TYPE_CHECKING:
    from orchestrator.clock import RunClock
    from orchestrator.display.run_log import RunLog
    from orchestrator.durability.recorder import RunRecorder
    from orchestrator.events import Listener
    from orchestrator.execution.budgets import Budget
    from orchestrator.execution.engines import Engines
    from orchestrator.learning.knowledge import Knowledge
    from store.records import StepRecord

Owner = asyncio.Task[Any] | threading.Thread


@dataclass(slots=True)
class CallTrace:
    """One call of a live run. Times are absolute, on the run's clock.

    Attributes:
        path: of its step.
        ended_s: None: it has not completed.
        cut_off_s: when it was cut off, by a time limit, a budget, a reader that left its answer or
            the failure of a parallel branch; None: it was not.
        prompt_estimate: tokens of an LLM call's prompt, estimated before the call; an engine counts
            them at the end of an answer only.
    """

    node: int
    kind: Kind
    identity: str
    path: str
    stage: int
    began_s: float
    deadline: StageDeadline
    ended_s: float | None = None
    cut_off_s: float | None = None
    prompt_estimate: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def as_node(self) -> Node:
        """This call as a node of its run's pattern graph, with what it had until its end."""
        end_s = self.cut_off_s if self.ended_s is None else self.ended_s
        assert end_s is not None, "only a call that completed or was cut off is a node"
        seconds = end_s - self.began_s
        if self.kind == "llm":
            prompt_tokens = self.prompt_tokens or self.prompt_estimate
            return LlmNode(self.identity, prompt_tokens, self.output_tokens, seconds)
        return ToolNode(self.identity, seconds)


@dataclass(slots=True)
class Answers:
    """Output tokens of a run's LLM calls so far."""

    count: int = 0
    total_tokens: int = 0
    last_tokens: int = 0

    @property
    def mean_tokens(self) -> float:
        """The mean over all of them; 0 before the first."""
        return self.total_tokens / self.count if self.count else 0.0

    def add(self, tokens: int) -> None:
        """One more call has ended."""
        self.count += 1
        self.total_tokens += tokens
        self.last_tokens = tokens


class EnvironmentsPlace(NamedTuple):
    """Where the states of workspaces are.

    Attributes:
        store: the file of the store; None: it is no file.
        url: of the store, without its password; "" if it is not known.
    """

    root: Path
    store: Path | None
    url: str = ""


TraceHeaders = Callable[[str, str], Mapping[str, str]]
"""Run id and step path -> the headers traceparent and tracestate, if the run is traced."""


def no_trace_headers(run_id: str, path: str) -> Mapping[str, str]:
    """The headers of a run that is not traced."""
    return {}


@dataclass(slots=True)
class LiveRun:
    """A run in progress and what its primitives need.

    Attributes:
        deadline_at_s: on its clock; infinity without one.
        knowledge: what was learned from past runs when this run began.
        pattern_uses: pattern key -> the largest weight it had in an estimate of this run.
        recorded_steps: its steps that were recorded before it was resumed.
        cut_off_calls: path of a step -> node of its call that was cut off. A resumed run may make
            such a call again: then that one counts, unless other calls came after the former.
        followed_calls: nodes that other calls came after. Those of the run's wrap-up do not count:
            a run that is resumed with more time does not wrap up.
        answers: output tokens of its LLM calls so far.
        uncertain_effects: external effects with unknown outcomes.
        loop: the event loop that it runs on; None: not bound to one.
        was_cancelled: whether the task that waits for the run was cancelled.
        user: the run's user, for policies with `fairness`.
        is_cut_off: whether its own deadline has cut it off.
        log: its events so far, for display; None: not kept.
        text_listener: gives the listener for TextGenerated; None: nobody asks for text now.
        trace_headers: gives the headers by which a server makes its spans children of that of a
            call or step here; none without telemetry.
        environments: where the states of its workspaces are; None: where the settings say.
        workspaces: its open workspaces by name; each is called with the recorded actions that are
            not done again, of which it takes over the states.
        checkpoint_names: path of a recorded step -> the name of the checkpoint that it made.
        streams: the calls that flow code reads piece by piece, until they have ended.
        left: those of them that it has left early; what it does next begins once they have ended.
    """

    id: str
    flow: str
    engines: Engines
    recorder: RunRecorder
    clock: RunClock
    emit: Listener
    started_s: float
    deadline_at_s: float
    stage_deadlines: StageDeadlines
    knowledge: Knowledge
    recorded_steps: RecordedSteps = field(default_factory=RecordedSteps)
    causality: CausalLog = field(default_factory=CausalLog)
    calls: list[CallTrace] = field(default_factory=list)
    cut_off_calls: dict[str, int] = field(default_factory=dict)
    followed_calls: set[int] = field(default_factory=set)
    pattern_uses: dict[int, float] = field(default_factory=dict)
    answers: Answers = field(default_factory=Answers)
    uncertain_effects: UncertainEffects = field(default_factory=UncertainEffects)
    loop: asyncio.AbstractEventLoop | None = None
    was_cancelled: Callable[[], bool] = lambda: False
    user: str = ""
    is_cut_off: bool = False
    log: RunLog | None = None
    text_listener: Callable[[], Listener | None] = lambda: None
    trace_headers: TraceHeaders = no_trace_headers
    environments: EnvironmentsPlace | None = None
    workspaces: dict[str, Callable[[StepRecord], None]] = field(default_factory=dict)
    checkpoint_names: Mapping[str, str] = field(default_factory=dict)
    streams: set[asyncio.Task[Any]] = field(default_factory=set)
    left: set[asyncio.Task[Any]] = field(default_factory=set)

    def since_start_s(self, at_s: float | None = None) -> float:
        """Seconds from the run's start to a moment on its clock; to now by default."""
        return (self.clock.now_s() if at_s is None else at_s) - self.started_s

    def replayed_calls_ended(self, path: str) -> None:
        """Later calls depend on the calls that a step had made which is not executed again."""
        nodes = frozenset(
            call.node
            for call in self.recorded_steps.calls_of(path)
            if call.status is Status.COMPLETED
            or self.cut_off_calls.get(call.step_path) == call.node
        )
        if nodes:
            self.causality.join([nodes])

    def graph_calls(self) -> list[CallTrace]:
        """The calls that are nodes of the run's graph: that completed or were cut off."""
        return [call for call in self.calls if self._is_in_graph(call)]

    def call_begins(self, trace: CallTrace) -> None:
        """Add a call, which may be one that was cut off and that a resumed run makes again."""
        former = self.cut_off_calls.get(trace.path)
        if former is not None and former not in self.followed_calls:
            del self.cut_off_calls[trace.path]
        self.calls.append(trace)
        if not is_in_wrap_up(trace.path):
            self.followed_calls.update(self.causality.parents[trace.node])

    def call_completed(self, trace: CallTrace, at_s: float) -> None:
        """A call has completed; if it was cut off before, only this counts."""
        trace.ended_s = at_s
        self.cut_off_calls.pop(trace.path, None)

    def call_was_cut_off(self, trace: CallTrace, at_s: float) -> int:
        """A call was cut off; returns the node of the graph that stands for it."""
        trace.cut_off_s = at_s
        return self.cut_off_calls.setdefault(trace.path, trace.node)

    def stage_so_far(self, stage: int) -> Stage | None:
        """The summary of a stage's calls that have ended; None if there are none."""
        done = [call for call in self.calls if call.stage == stage and self._is_in_graph(call)]
        if not done:
            return None
        return summarise(stage, range(len(done)), [call.as_node() for call in done])

    def _is_in_graph(self, call: CallTrace) -> bool:
        return call.ended_s is not None or self.cut_off_calls.get(call.path) == call.node


@dataclass(frozen=True, slots=True)
class CallContext:
    """Which run and step the current code belongs to, and its deadline.

    Attributes:
        deadline_at_s: on the run's clock; infinity without one.
        owner: the task or thread that begins steps here one after another; None: any.
        stage_calls: calls known to be made in parallel from here, under one limit.
        num_programs: parallel branches that have a limit of their own each; the scheduler sees
            each branch as a program.
        best: results so far of the flow around; the last is used if the deadline passes.
        budgets: of the blocks around, outermost first.
        cached_step: the name of a step around whose result other runs may reuse; "" without one.
    """

    run: LiveRun
    step_path: StepPath
    deadline_at_s: float
    owner: Owner | None = None
    stage_calls: int = 1
    num_programs: int = 1
    best: list[Any] = field(default_factory=list)
    budgets: tuple[Budget, ...] = ()
    cached_step: str = ""

    def remaining_s(self) -> float:
        """Seconds until the deadline here; infinity without one, negative past it."""
        return self.deadline_at_s - self.run.clock.now_s()

    def derive(self, **changes: Any) -> CallContext:
        """The same context with some fields changed; its deadline can only come earlier.

        Calls under a shorter deadline form a program of their own. How many of the parallel calls
        are under it is not known, so `stage_calls` starts at 1 again.
        """
        changed = replace(self, **changes)
        assert changed.deadline_at_s <= self.deadline_at_s, "children only shorten a deadline"
        if not is_shorter(changed.deadline_at_s, self.deadline_at_s):
            return changed
        divided = self.num_programs * self.stage_calls
        return replace(changed, stage_calls=1, num_programs=divided)


_context: ContextVar[CallContext | None] = ContextVar("orchestrate_context", default=None)


def current_context(what: str) -> CallContext:
    """The context of the code that runs now; raises OutsideRun, naming `what`, outside a run."""
    context = _context.get()
    if context is None:
        raise OutsideRun(what)
    return context


def current_context_or_none() -> CallContext | None:
    """The context of the code that runs now; None outside a run."""
    return _context.get()


@contextmanager
def using_context(context: CallContext) -> Iterator[CallContext]:
    """Run a block in another context."""
    token = _context.set(context)
    try:
        yield context
    finally:
        _context.reset(token)


@contextmanager
def outside_run() -> Iterator[None]:
    """Run a block as if it were outside of any run: nothing of it is recorded."""
    token = _context.set(None)
    try:
        yield
    finally:
        _context.reset(token)


def set_context(context: CallContext) -> None:
    """Run the rest of this task, or thread, in another context."""
    _context.set(context)


def current_worker() -> Owner:
    """The asyncio task that runs now; the thread, where no event loop runs."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:  # no event loop runs here
        return threading.current_thread()


def none_if_infinite(seconds: float) -> float | None:
    """Seconds as records have them: None for infinity, which stands for no deadline."""
    return None if math.isinf(seconds) else seconds
