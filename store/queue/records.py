"""The records of queues, of those who claim runs from them, and of schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """A queue and its limits.

    Attributes:
        max_running: runs of it in progress at once, in all workers together; None: any number.
        max_running_of_user: the same for each user.
        is_paused: nothing is claimed from it.
        is_draining: nothing can be submitted to it.
    """

    name: str
    max_running: int | None = None
    max_running_of_user: int | None = None
    is_paused: bool = False
    is_draining: bool = False

    @property
    def is_limited(self) -> bool:
        """Whether the runs in progress have to be counted before another one is claimed."""
        return self.max_running is not None or self.max_running_of_user is not None


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many runs of a queue have each status.

    Attributes:
        num_later: of those that wait, how many may not begin yet.
    """

    num_queued: int = 0
    num_later: int = 0
    num_running: int = 0
    num_dead: int = 0


@dataclass(frozen=True, slots=True)
class Claimant:
    """The process that claims runs, as their records name it, and its engine."""

    process_id: int
    host: str
    process: str
    engine: str = ""
    model: str = ""
    policy: str = ""
    random_weights: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """What a worker can take.

    Attributes:
        queues: their names; the first one that has a run is served first.
        versions: name of a flow -> the version of its code here.
        any_version: take runs that were submitted with another version too.
        lease_s: seconds until another worker may take a run, unless the lease is renewed.
    """

    claimant: Claimant
    queues: Sequence[str]
    versions: Mapping[str, str]
    lease_s: float
    any_version: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A flow that is submitted again and again.

    Attributes:
        cron: when, in five fields.
        timezone: in which that is meant, "Europe/Berlin".
        next_at: the next time.
        entry: where the flow's code is, "module:name".
        arguments: those of the flow as JSON, encoded by the store's payload codec.
        rank: as in RunRecord; so are the fields below it.
    """

    name: str
    cron: str
    timezone: str
    next_at: datetime
    flow: str
    arguments: bytes
    queue: str
    entry: str | None = None
    is_paused: bool = False
    rank: int = 0
    deadline_s: float | None = None
    max_attempts: int = 1
    retry_s: float | None = None
    slo_user: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
