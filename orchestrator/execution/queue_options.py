"""How a flow is submitted to a queue."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.durability.identity import checked_name
from orchestrator.durations import Duration, seconds_of
from orchestrator.errors import InvalidQueueOption

DEFAULT_QUEUE = "default"
"""The queue of a flow that names none."""

MAX_PRIORITY = 1_000_000
"""The highest priority; the lowest is its negative."""

MAX_ATTEMPTS = 1000
"""The most attempts that a run may have."""

MAX_KEY_CHARS = 200
"""Longest deduplication key, in characters."""

_QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Where a submitted run waits, and for what.

    Attributes:
        queue: the queue's name.
        priority: the higher, the earlier a worker takes it.
        not_before: no worker takes it before, and its deadline counts from then: a moment, or
            seconds from its submission; None: at once.
        key: while a run with this key waits or is in progress, the queue takes no other one.
        max_attempts: after so many lost workers, or failures with `retry_s`, it is dead.
        retry_s: pause before it is tried again after an error, doubled each time; None: a run that
            fails is not tried again.
    """

    queue: str = DEFAULT_QUEUE
    priority: int = 0
    not_before: datetime | float | None = None
    key: str | None = None
    max_attempts: int = 3
    retry_s: float | None = None

    def begins_at(self, now: datetime) -> datetime | None:
        """The moment before which no worker takes it; None: it may be taken at once."""
        if self.not_before is None or isinstance(self.not_before, datetime):
            return self.not_before
        return now + timedelta(seconds=self.not_before)


def queue_options(
    queue: str,
    *,
    priority: int,
    not_before: datetime | Duration | None,
    key: str | None,
    attempts: int,
    retry: Duration | None,
) -> QueueOptions:
    """Checked options; see `Flow.queued`.

    Raises:
        InvalidQueueOption: a name, number or moment cannot be used.
        InvalidDuration: a duration is not a positive time.
        ValueError: the key cannot be stored.
    """
    check_queue_name(queue)
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
        raise InvalidQueueOption(
            "priority", priority, f"a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        )
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts not in _ATTEMPTS:
        raise InvalidQueueOption("attempts", attempts, f"a whole number from 1 to {MAX_ATTEMPTS}")
    if isinstance(not_before, datetime) and not_before.tzinfo is None:
        raise InvalidQueueOption("not_before", not_before, "a moment with its time zone")
    if key is not None and not 0 < len(checked_name(key)) <= MAX_KEY_CHARS:
        raise InvalidQueueOption("key", key, f"a text of 1 to {MAX_KEY_CHARS} characters")
    if not_before is not None and not isinstance(not_before, datetime):
        not_before = seconds_of(not_before)
    retry_s = None if retry is None else seconds_of(retry)
    return QueueOptions(queue, priority, not_before, key, attempts, retry_s)


def check_queue_name(name: object) -> str:
    """The name itself; raises InvalidQueueOption if it cannot be one of a queue."""
    if not isinstance(name, str) or not _QUEUE_NAME.fullmatch(name):
        rule = "up to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit"
        raise InvalidQueueOption("queue", name, rule)
    return name


_ATTEMPTS = range(1, MAX_ATTEMPTS + 1)
