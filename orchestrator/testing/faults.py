"""What can happen next in a simulation, within a budget of faults; pure, so that it can be tested.

A schedule is a sequence of such choices. To try all schedules within a budget is to follow every
choice; a seed follows one at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from orchestrator.testing.unreliable_store import Commit


class Kind(StrEnum):
    """What happens next."""

    LAND = "lands"
    TORN = "lands, and its process dies before it knows"
    LOST = "dies, and its pending commits are lost"
    IN_FLIGHT = "is in flight while its process dies"
    LATE = "lands late"
    LOCKED = "is refused: locked"
    UNREACHABLE = "is refused at its commit"
    UNTOLD = "lands, but is reported as failed"
    STALLED = "is taken for dead, and resumed elsewhere"
    WAIT = "waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How many faults of each kind one schedule may have.

    Attributes:
        crashes: processes that die: their pending commits are lost, or one lands and they do not
            know.
        late: commits of dead processes that land later, while others resume the run.
        refusals: commits that fail with StoreLocked or StoreUnreachable; of the latter some land
            nevertheless.
        stalls: processes that are taken for dead, and go on later.
        switches: how often a process waits for another one although it could go on. Without it,
            processes take turns only where they have nothing to write.
        resumers: how many processes resume the run at once, for each time that it is resumed.
        all_orders: pending commits of parallel branches land in every order, not only in that of
            their branches; once no more faults are left, that order is as good as any.
        leases: commits that renew leases have a fate too; otherwise they land at once.
    """

    crashes: int = 0
    late: int = 0
    refusals: int = 0
    stalls: int = 0
    switches: int = 0
    resumers: tuple[int, ...] = (1,)
    all_orders: bool = False
    leases: bool = False


CRASHES = Faults(crashes=1)
"""The process dies before or after each commit."""

CRASHES_IN_ANY_ORDER = Faults(crashes=1, all_orders=True)
"""The same, with the commits of parallel branches in every order."""

LATE_COMMITS = Faults(crashes=1, late=1)
"""The process dies, and one of its commits lands at any moment of the resumed run."""

REFUSALS = Faults(refusals=1, crashes=1, all_orders=True)
"""A commit fails, in any order of them; a process may die at any other moment."""

RACES = Faults(crashes=1, switches=1, resumers=(3,))
"""The process dies, and three others resume the run at once."""

LATE_RACES = Faults(crashes=1, late=1, resumers=(3,))
"""The same, while a commit of the dead process lands."""

STALLS = Faults(stalls=1, switches=2)
"""The process is taken for dead at any moment, and goes on while another one resumes the run."""


class Event(NamedTuple):
    """One choice: what happens to a process, or to one of its commits."""

    kind: Kind
    process: int
    commit: Commit | None = None

    def __str__(self) -> str:
        return f"{self._what()} {self.kind}"

    def _what(self) -> str:
        where = f"process {self.process}"
        if self.commit is None or self.kind is Kind.LOST:
            return where
        branch = f" branch {self.commit.branch}" if self.commit.branch else ""
        return f"{where}{branch}: its commit"


@dataclass(frozen=True, slots=True)
class Situation:
    """What waits for a decision.

    Attributes:
        pending: for each live process its commits that wait, in the order of their branches.
        in_flight: commits of dead processes that may still land.
        current: the process of the last commit.
        can_resume: whether there is a further process that may resume the run.
        is_waiting: whether some live process waits for something other than a commit.
    """

    pending: Mapping[int, Sequence[Commit]]
    in_flight: Sequence[Commit]
    current: int
    can_resume: bool
    is_waiting: bool


def possible(situation: Situation, faults: Faults) -> list[Event]:
    """All that can happen next, the usual first; empty if only time can pass."""
    events = [*_landings(situation, faults)]
    usual = [event for event in events if event.kind is Kind.LAND]
    if not usual and situation.is_waiting:
        events.append(Event(Kind.WAIT, 0))
    events += [Event(Kind.LATE, commit.process, commit) for commit in situation.in_flight]
    for event in usual:
        events += _refusals(event, faults)
    events += _deaths(situation, usual, faults)
    stalled = faults.stalls > 0 and situation.can_resume and any(situation.pending.values())
    if stalled:
        events.append(Event(Kind.STALLED, situation.current))
    is_time_only = [event.kind for event in events] == [Kind.WAIT]
    return [] if is_time_only else events


def budget_left(event: Event, situation: Situation, faults: Faults) -> Faults:
    """The budget after an event."""
    switches = bool(situation.pending.get(situation.current)) and event.commit is not None
    cost = {
        "crashes": event.kind in (Kind.TORN, Kind.LOST, Kind.IN_FLIGHT),
        "late": event.kind is Kind.IN_FLIGHT,
        "refusals": event.kind in (Kind.LOCKED, Kind.UNREACHABLE, Kind.UNTOLD),
        "stalls": event.kind is Kind.STALLED,
        "switches": switches
        and event.kind not in (Kind.IN_FLIGHT, Kind.LATE)
        and event.process != situation.current,
    }
    left = {name: getattr(faults, name) - is_spent for name, is_spent in cost.items()}
    return replace(faults, **left)


def _landings(situation: Situation, faults: Faults) -> Iterator[Event]:
    """The current process goes on, or another one at the price of a switch."""
    here = situation.pending.get(situation.current, ())
    can_go_wrong = faults.crashes or faults.refusals or faults.stalls or situation.in_flight
    is_any_order = faults.all_orders and can_go_wrong
    for process in sorted(situation.pending, key=lambda each: each != situation.current):
        if here and process != situation.current and not faults.switches:
            continue
        commits = situation.pending[process]
        for commit in commits if is_any_order else commits[:1]:
            yield Event(Kind.LAND, process, commit)


def _refusals(event: Event, faults: Faults) -> Iterator[Event]:
    if faults.refusals:
        for kind in (Kind.LOCKED, Kind.UNREACHABLE, Kind.UNTOLD):
            yield event._replace(kind=kind)


def _deaths(situation: Situation, usual: Sequence[Event], faults: Faults) -> Iterator[Event]:
    if not faults.crashes:
        return
    for event in usual:
        yield event._replace(kind=Kind.TORN)
    for process, commits in situation.pending.items():
        yield Event(Kind.LOST, process)
        if faults.late:
            for commit in commits:
                yield Event(Kind.IN_FLIGHT, process, commit)
