"""Where the code that runs now stands: its run, its step, its deadline (ContextVars)."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orchestrator.durability.identity import Scope
from orchestrator.durability.replay import Past
from orchestrator.durability.uncertain_effects import UnsureEffects
from orchestrator.errors import OutsideRun
from orchestrator.execution.causality import CausalLog
from orchestrator.learning.stage_deadlines import StageDeadline, StageDeadlines, is_shorter
from patterns.nodes import Kind, LlmNode, Node, ToolNode
from patterns.stages import Stage, summarise
from store.records import Status

if TYPE_CHECKING:
    from orchestrator.clock import Clock
    from orchestrator.durability.recorder import RunRecorder
    from orchestrator.events import Listener
    from orchestrator.learning.knowledge import Knowledge
    from serving.generation import Engine


Owner = asyncio.Task[Any] | threading.Thread


@dataclass(slots=True)
class CallTrace:
    """One call of a live run. Times are absolute on the run's clock; ended_s is None until then."""

    node: int
    kind: Kind
    identity: str
    stage: int
    began_s: float
    deadline: StageDeadline
    ended_s: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0

    def as_node(self) -> Node:
        """The node that this call, which has ended, is in its run's pattern graph."""
        assert self.ended_s is not None, "only a completed call is a node"
        seconds = self.ended_s - self.began_s
        if self.kind == "llm":
            return LlmNode(self.identity, self.prompt_tokens, self.output_tokens, seconds)
        return ToolNode(self.identity, seconds)


@dataclass(slots=True)
class Answers:
    """The output tokens of a run's answers so far."""

    count: int = 0
    total_tokens: int = 0
    last_tokens: int = 0

    @property
    def mean_tokens(self) -> float:
        """Of all of them; 0 before the first."""
        return self.total_tokens / self.count if self.count else 0.0

    def add(self, tokens: int) -> None:
        """A further answer has ended."""
        self.count += 1
        self.total_tokens += tokens
        self.last_tokens = tokens


@dataclass(slots=True)
class LiveRun:
    """A run in progress and what its primitives need. deadline_at_s is infinity without one.

    Attributes:
        knowledge: what past runs taught, as it was when this one began.
        used: how much its estimates rested on past runs, by the keys of their patterns.
        past: what was recorded of it before it was resumed.
        answers: what the LLM calls that ended came to.
        unsure: external effects that did not end well.
        loop: the event loop that it runs on; None: of one that was made without.
        was_cancelled: whether whoever waits for it was cancelled meanwhile.
        user: whose it is, to the scheduler.
    """

    id: str
    flow: str
    engine: Engine
    recorder: RunRecorder
    clock: Clock
    emit: Listener
    started_s: float
    deadline_at_s: float
    stage_deadlines: StageDeadlines
    knowledge: Knowledge
    past: Past = field(default_factory=Past)
    causality: CausalLog = field(default_factory=CausalLog)
    calls: list[CallTrace] = field(default_factory=list)
    used: dict[int, float] = field(default_factory=dict)
    answers: Answers = field(default_factory=Answers)
    unsure: UnsureEffects = field(default_factory=UnsureEffects)
    loop: asyncio.AbstractEventLoop | None = None
    was_cancelled: Callable[[], bool] = lambda: False
    user: str = ""

    def since_start_s(self, at_s: float | None = None) -> float:
        """Seconds from the run's start to a moment on its clock; to now by default."""
        return (self.clock.now_s() if at_s is None else at_s) - self.started_s

    def past_calls_ended(self, path: str) -> None:
        """What follows here depends on the calls that a step of the past made."""
        nodes = frozenset(
            call.node for call in self.past.calls_of(path) if call.status is Status.COMPLETED
        )
        if nodes:
            self.causality.join([nodes])

    def stage_so_far(self, stage: int) -> Stage | None:
        """The summary of a stage's completed calls; None if there are none."""
        done = [call for call in self.calls if call.stage == stage and call.ended_s is not None]
        if not done:
            return None
        return summarise(stage, range(len(done)), [call.as_node() for call in done])


@dataclass(frozen=True, slots=True)
class Position:
    """Where the current code stands within a run.

    Attributes:
        owner: the task, or a thread, whose steps begin here one after another; None: whoever's.
        stage_calls: calls that are known to be made side by side from here, under one limit.
        num_programs: into how many programs, side by side, the run's calls are divided here: as
            many as there are branches, where each has a limit of its own.
        best: what the flow around it would come to if its deadline passed now: the last of them.
    """

    run: LiveRun
    scope: Scope
    deadline_at_s: float
    owner: Owner | None = None
    stage_calls: int = 1
    num_programs: int = 1
    best: list[Any] = field(default_factory=list)

    def remaining_s(self) -> float:
        """Seconds until the deadline here; infinity without one, negative past it."""
        return self.deadline_at_s - self.run.clock.now_s()


_position: ContextVar[Position | None] = ContextVar("orchestrate_position", default=None)


def current(what: str) -> Position:
    """The position of the code that runs now; OutsideRun, naming `what`, if there is none."""
    position = _position.get()
    if position is None:
        raise OutsideRun(what)
    return position


def current_or_none() -> Position | None:
    """The position of the code that runs now, if it runs within a flow."""
    return _position.get()


@contextmanager
def at(position: Position) -> Iterator[Position]:
    """Run a block at another position."""
    token = _position.set(position)
    try:
        yield position
    finally:
        _position.reset(token)


def stay_at(position: Position) -> None:
    """Move what else is done in this context, as in a task of its own, to another position."""
    _position.set(position)


def worker() -> Owner:
    """The task that runs now, or the thread."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:  # no event loop runs here
        return threading.current_thread()


def moved(position: Position, **changes: Any) -> Position:
    """A position that differs in some fields; its deadline can only come earlier.

    Where it does, what is done there is promised for itself: of the calls that are made side by
    side around it, this branch's alone are under the new limit, and how many they are is unknown.
    """
    changed = replace(position, **changes)
    assert changed.deadline_at_s <= position.deadline_at_s, "children only shorten a deadline"
    if not is_shorter(changed.deadline_at_s, position.deadline_at_s):
        return changed
    divided = position.num_programs * position.stage_calls
    return replace(changed, stage_calls=1, num_programs=divided)


def none_if_infinite(seconds: float) -> float | None:
    """Infinity, our word for no deadline, as records and people write it."""
    return None if math.isinf(seconds) else seconds
