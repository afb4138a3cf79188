"""Tries the schedules of a flow: all within a budget of faults, or some at random by seed."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from orchestrator.testing.faults import Event, Faults, Kind
from orchestrator.testing.player import Played, Player, with_player
from orchestrator.testing.scenario import Scenario
from orchestrator.testing.simulation import Choose

_ORDINARY = {Kind.LAND: 10.0, Kind.WAIT: 10.0, Kind.LATE: 3.0}
"""How likely a choice is at random, relative to a fault."""

Progress = Callable[[int], None]
"""Called with the number of schedules so far."""


@dataclass(slots=True)
class Report:
    """The schedules that were tried.

    Attributes:
        num_schedules: how many.
        faults: how many faults of each kind they had.
        failures: those with violations, by what reproduces them: a seed or a schedule.
    """

    num_schedules: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: dict[int | tuple[int, ...], Played] = field(default_factory=dict)

    def add(self, key: int | tuple[int, ...], played: Played) -> None:
        """Count one more schedule."""
        self.num_schedules += 1
        self.faults += played.faults
        if played.violations:
            self.failures[key] = played

    def __str__(self) -> str:
        lines = [f"{self.num_schedules} schedules, {len(self.failures)} of them wrong"]
        for key, played in list(self.failures.items())[:3]:
            lines += [f"\n{key}:", str(played)]
        return "\n".join(lines)


def explore(
    scenario: Scenario,
    faults: Faults,
    *,
    max_schedules: int | None = None,
    max_failures: int = 10,
    progress: Progress = lambda _: None,
) -> Report:
    """Try every schedule with at most these faults; those that depart least from the usual first.

    Call it from a plain function: it runs event loops of its own.

    Args:
        max_schedules: stop after so many; None: try all.
        max_failures: stop after so many that went wrong.
    """

    async def work(play: Player) -> Report:
        report, prefixes = Report(), deque[Sequence[int]]([()])
        while prefixes:
            choices = _Choices(prefixes.popleft())
            played = await play.once(faults, choices, is_all=True)
            report.add(played.schedule, played)
            progress(report.num_schedules)
            is_enough = len(report.failures) >= max_failures
            if is_enough or report.num_schedules == max_schedules:
                break
            prefixes += choices.others()
        return report

    return with_player(scenario, work)


def explore_seeds(
    scenario: Scenario, seeds: Iterable[int], *, progress: Progress = lambda _: None
) -> Report:
    """Try one random schedule for each seed, with more faults than can be tried exhaustively."""

    async def work(play: Player) -> Report:
        report = Report()
        for seed in seeds:
            report.add(seed, await play.once(*_at_random(seed)))
            progress(report.num_schedules)
        return report

    return with_player(scenario, work)


def replay(scenario: Scenario, faults: Faults, schedule: Sequence[int]) -> Played:
    """Try one schedule again, as `explore` reported it; ValueError if it does not fit the flow."""
    return with_player(scenario, lambda play: play.once(faults, _Choices(schedule)))


def replay_seed(scenario: Scenario, seed: int) -> Played:
    """Try a seed again, as `explore_seeds` reported it."""
    return with_player(scenario, lambda play: play.once(*_at_random(seed)))


class _Choices:
    """Follows the choices of a prefix, then always the first; remembers what else there was."""

    def __init__(self, prefix: Sequence[int]) -> None:
        self._prefix = prefix
        self.taken: list[tuple[int, int]] = []

    def __call__(self, events: Sequence[Event]) -> int:
        at = len(self.taken)
        index = self._prefix[at] if at < len(self._prefix) else 0
        if not index < len(events):
            raise ValueError(f"no such schedule: choice {at} has {len(events)} events, not {index}")
        self.taken.append((index, len(events)))
        return index

    def others(self) -> Iterator[Sequence[int]]:
        """The prefixes that differ from what was taken in one choice, made after the prefix."""
        taken = [index for index, _ in self.taken]
        for at in range(len(self._prefix), len(taken)):
            _, num_events = self.taken[at]
            for other in range(1, num_events):
                yield [*taken[:at], other]


def _at_random(seed: int) -> tuple[Faults, Choose]:
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    faults = Faults(
        crashes=chance.choice([0, 1, 1, 2, 3]),
        late=chance.choice([0, 1, 2]),
        refusals=chance.choice([0, 1, 2, 4]),
        stalls=chance.choice([0, 0, 1]),
        switches=chance.choice([0, 2, 20]),
        resumers=chance.choice([(1,), (3,), (1, 1), (2, 1), (1, 3, 1)]),
        all_orders=True,
        leases=chance.random() < 0.2,
    )

    def choose(events: Sequence[Event]) -> int:
        weights = [_ORDINARY.get(event.kind, 1.0) for event in events]
        return chance.choices(range(len(events)), weights)[0]

    return faults, choose
