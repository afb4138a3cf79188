"""Which of a server's calls belong to one program, and which of them one waits for.

Clients say it by a header, a tag, or `previous_response_id`. Of the others a program is recognised
by its prompts, as an agent repeats its conversation with each call, or by the `user` of the body.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from patterns.graph import PatternGraph
from patterns.nodes import LlmNode, Node, ToolNode
from serving.analyzer.analyzer import LengthEstimate
from serving.analyzer.features import CallFeatures
from serving.analyzer.messages import Arrival, Ended

CLIENT = "client"
"""The identity of what a client does between two stages: its tools, its own work."""

LOST_S = 3600.0
"""A call without an end for so long is not coming back."""

MAX_PROGRAMS = 4096
"""Open programs; the one without a call for the longest time ends first."""

MAX_CALLS_BY_USER = 256
"""Calls that are taken as one program because of their user alone."""

MAX_LINKS = 65536
"""Prompts and answers by which a program is recognised; the oldest are forgotten."""


class Latest:
    """A mapping of limited size that forgets what was set longest ago."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[str, str] = OrderedDict()

    def get(self, key: str) -> str | None:
        """The value; None if there is none, or no longer."""
        return self._values.get(key)

    def set(self, key: str, value: str) -> None:
        """Set a value."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._capacity:
            self._values.popitem(last=False)


COMMON = "common"
"""For a prompt of two programs: whatever continues it may be of either. No call has this id."""


@dataclass(slots=True, eq=False)
class ServedCall:
    """One call of a program.

    Attributes:
        stage: the number of stages before it, without what its client did between them.
        features, estimate: its predicted length; None if it has invalid parameters.
        ended: None while it runs.
    """

    arrival: Arrival
    stage: int
    features: CallFeatures | None = None
    estimate: LengthEstimate | None = None
    ended: Ended | None = None

    @property
    def identity(self) -> str:
        """Model and step, as in the pattern graph."""
        return identity_of(self.arrival)

    def as_node(self) -> LlmNode:
        """The call as a node of its program's graph."""
        assert self.ended is not None
        return LlmNode(
            self.identity,
            self.ended.prompt_tokens,
            self.ended.output_tokens,
            max(self.ended.at_s - self.arrival.at_s, 0.0),
        )


def identity_of(arrival: Arrival) -> str:
    """The step that a call is of: its user's calls of one shape to one model."""
    user = f"{arrival.user}/" if arrival.user else ""
    return f"{arrival.model}:{user}{arrival.shape}"


@dataclass(slots=True, eq=False)
class Program:
    """The calls of one program, in the order of their arrival; times on the server's clock.

    Attributes:
        id: unique; the id of its first call.
        deadline_at_s: None: it has none.
    """

    id: str
    name: str
    began_s: float
    deadline_at_s: float | None = None
    calls: list[ServedCall] = field(default_factory=list)

    def next_stage(self) -> int:
        """The stage of a call that arrives now: it waited for the answers that are complete."""
        return 1 + max((call.stage for call in self.complete_calls), default=-1)

    @property
    def is_running(self) -> bool:
        """Whether a call of it has not ended."""
        return any(call.ended is None for call in self.calls)

    def can_go_on(self, now_s: float) -> bool:
        """Whether another call of its user may be of it, if nothing else says so.

        A user may have two programs at once: only a new turn certainly belongs to the last. And
        what shares a user for ever, or beyond the deadline, is an application, no program.
        """
        is_late = self.deadline_at_s is not None and now_s > self.deadline_at_s
        return not (self.is_running or is_late or len(self.calls) >= MAX_CALLS_BY_USER)

    @property
    def latest_s(self) -> float:
        """The time of its latest event."""
        return max(call.ended.at_s if call.ended else call.arrival.at_s for call in self.calls)

    @property
    def complete_calls(self) -> list[ServedCall]:
        """Its calls with a whole answer."""
        return [call for call in self.calls if call.ended and call.ended.is_complete]

    def graph(self, *, until_s: float | None = None) -> PatternGraph:
        """Its complete calls, with what its client did between their stages as calls of a tool.

        Args:
            until_s: when a next stage begins, before which the client did something too.
        """
        layers: list[list[Node]] = []
        ended_s = self.began_s
        calls = self.complete_calls
        for stage in range(self.next_stage()):
            members = [call for call in calls if call.stage == stage]
            if stage:
                layers.append([_pause(ended_s, min(call.arrival.at_s for call in members))])
            layers.append([call.as_node() for call in members])
            ended_s = max(call.ended.at_s for call in members if call.ended)
        if until_s is not None and layers:
            layers.append([_pause(ended_s, until_s)])
        return PatternGraph.of_layers(layers)


def _pause(from_s: float, to_s: float) -> ToolNode:
    return ToolNode(CLIENT, max(to_s - from_s, 0.0))


class Programs:
    """The open programs of a server.

    Args:
        idle_s: a program without a call for so long has ended.
    """

    def __init__(self, *, idle_s: float) -> None:
        self._idle_s = idle_s
        self._open: dict[str, Program] = {}  # by id
        # To ids of programs, open or not; all are of one user.
        self._by_name = Latest(MAX_PROGRAMS)
        self._by_end_user = Latest(MAX_PROGRAMS)
        self._by_answer = Latest(MAX_LINKS)
        self._by_link = Latest(MAX_LINKS)
        self._running: dict[str, tuple[Program, ServedCall]] = {}  # by call

    def arrived(self, arrival: Arrival) -> tuple[Program, ServedCall]:
        """The program of a call that arrives, with the call as its last."""
        program = self._find(arrival)
        if program is None:
            program = Program(arrival.call, arrival.program, arrival.at_s)
            self._open[program.id] = program
        if arrival.final_s is not None:
            program.deadline_at_s = arrival.at_s + arrival.final_s
        elif arrival.program_deadline_s is not None:
            program.deadline_at_s = program.began_s + arrival.program_deadline_s
        call = ServedCall(arrival, program.next_stage())
        program.calls.append(call)
        self._running[arrival.call] = program, call
        self._remember(program, arrival)
        return program, call

    def ended(self, ended: Ended) -> ServedCall | None:
        """The call that ended; None if it is unknown."""
        program, call = self._running.pop(ended.call, (None, None))
        if program is None or call is None:
            return None
        call.ended = ended
        answer = _answer_id(ended.answer)
        self._by_answer.set(_key(call.arrival.user, answer), program.id)
        return call

    def idle(self, now_s: float) -> list[Program]:
        """Take out the programs that have ended by now, the longest idle first."""
        by_time = sorted(self._open.values(), key=lambda program: program.latest_s)
        num_over = len(by_time) - MAX_PROGRAMS
        return [
            self._closed(program)
            for place, program in enumerate(by_time)
            if place < num_over or self._is_idle(program, now_s)
        ]

    def close(self) -> list[Program]:
        """Take out all programs."""
        return [self._closed(program) for program in list(self._open.values())]

    def _is_idle(self, program: Program, now_s: float) -> bool:
        idle_s = now_s - program.latest_s
        return idle_s > (LOST_S if program.is_running else self._idle_s)

    def _closed(self, program: Program) -> Program:
        del self._open[program.id]
        for call in program.calls:
            self._running.pop(call.arrival.call, None)
        return program

    def _find(self, arrival: Arrival) -> Program | None:
        user = arrival.user
        if arrival.program:
            return self._opened(self._by_name.get(_key(user, arrival.program)))
        if arrival.previous:
            return self._opened(self._by_answer.get(_key(user, arrival.previous)))
        # Without its own last link: a prompt that continues another one is longer.
        for link in reversed(arrival.links[:-1]):
            known = self._by_link.get(_key(user, arrival.model, link))
            if known not in (None, COMMON):
                return self._opened(known)
        program = self._opened(self._by_end_user.get(_key(user, arrival.end_user)))
        return program if program and program.can_go_on(arrival.at_s) else None

    def _remember(self, program: Program, arrival: Arrival) -> None:
        user = arrival.user
        if arrival.program:
            self._by_name.set(_key(user, arrival.program), program.id)
        if arrival.end_user:
            self._by_end_user.set(_key(user, arrival.end_user), program.id)
        if arrival.links:
            link = _key(user, arrival.model, arrival.links[-1])
            is_common = self._by_link.get(link) not in (None, program.id)
            self._by_link.set(link, COMMON if is_common else program.id)

    def _opened(self, known: str | None) -> Program | None:
        return self._open.get(known or "")


def _key(*parts: str) -> str:
    return "\0".join(parts)


def _answer_id(answer: str) -> str:
    """The id of an answer as its client saw it: the engine's without a number at its end."""
    return answer.rpartition("_")[0]
