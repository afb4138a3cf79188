"""FlowSpec: what the runtime needs of a flow, such as its function, name and deadline."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Generic, ParamSpec, Self, TypeVar

from orchestrator.durability.identity import checked_name
from orchestrator.durations import Duration, seconds_of
from orchestrator.errors import InvalidDuration, InvalidRunId
from orchestrator.execution.deadline_handling import DeadlineHandling
from orchestrator.execution.queue_options import DEFAULT_QUEUE, QueueOptions, queue_options
from orchestrator.learning.feasibility import Infeasible
from serving.slo import Slo

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

MAX_TAGS = 50
"""Most tags of a run."""

MAX_TAG_CHARS = 200
"""Longest name or text of a tag, in characters."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class FlowSpec(Generic[P, R]):
    """An async function and the deadline of its runs.

    Attributes:
        body: the async function.
        deadline_s: end to end, from the start of the run; None: none.
        expected_stages: number of stages of calls that a run is expected to have; used until
            past runs are known.
        run_id: of the run to start or resume; None: a new one.
        user: the run's user, for policies with `fairness`; None: the runtime's user.
        tags: recorded with the run, for whoever looks at it.
        deadline_handling: what happens when the deadline passes.
        infeasible: "warn" or "fail" if the deadline is shorter than every past run.
        queueing: where a submitted run waits, and for what.
    Raises:
        InvalidDuration: the tail that `deadline_handling` reserves is the whole deadline.
    """

    body: Callable[P, Awaitable[R]]
    name: str
    deadline_s: float | None = None
    expected_stages: int | None = None
    run_id: str | None = None
    user: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)
    deadline_handling: DeadlineHandling = field(default_factory=DeadlineHandling)
    infeasible: Infeasible = "warn"
    queueing: QueueOptions = field(default_factory=QueueOptions)

    def __post_init__(self) -> None:
        tail_s = (
            0.0 if self.deadline_s is None else self.deadline_handling.reserved_s(self.deadline_s)
        )
        if tail_s and tail_s == self.deadline_s:
            raise InvalidDuration(
                self.deadline_handling.tail_s, f"leaves nothing of {tail_s:g} s for the flow"
            )

    def options(
        self,
        *,
        deadline: Duration | None = None,
        stages: int | None = None,
        run_id: str | None = None,
        user: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Self:
        """The same flow with some options changed.

        Args:
            deadline: end to end ("60s", or seconds).
            stages: expected number of stages of calls.
            run_id: of the run to start or resume.
            user: the run's user; a policy with `fairness` shares the machine among users. By
                default the runtime's user.
            tags: texts by name, recorded with the run and shown by `orchestrate show`, in addition
                to those that the flow has; at most MAX_TAGS, each of at most MAX_TAG_CHARS.
        Raises:
            InvalidDuration: the deadline is not a positive time.
            InvalidRunId: the id is not valid.
            InvalidSlo, ValueError: the user's name or a tag is too long, or cannot be stored.
            TypeError: a tag is not a text.
        """
        if user is not None:
            Slo(user=checked_name(user))
        if run_id is not None and not _RUN_ID.fullmatch(run_id):
            raise InvalidRunId(run_id)
        return replace(
            self,
            deadline_s=self.deadline_s if deadline is None else seconds_of(deadline),
            expected_stages=stages or self.expected_stages,
            run_id=run_id or self.run_id,
            user=self.user if user is None else user,
            tags=_checked_tags({**self.tags, **(tags or {})}),
        )

    def queued(
        self,
        queue: str = DEFAULT_QUEUE,
        *,
        priority: int = 0,
        not_before: datetime | Duration | None = None,
        key: str | None = None,
        attempts: int = 3,
        retry: Duration | None = None,
    ) -> Self:
        """The same flow, whose submitted runs wait like this.

        Args:
            queue: the queue's name.
            priority: of two runs that wait, the one with the higher number is taken first; of equal
                ones the one whose deadline passes first, then the one that was submitted first.
            not_before: no worker takes the run before, and its deadline counts from then: a moment,
                or a time from its submission ("2h").
            key: while a run with this key waits or is in progress in the queue, submitting another
                one returns that one.
            attempts: after so many lost workers the run is dead, and so after as many failures with
                `retry`.
            retry: a run that fails is tried again after this time ("30s"), which doubles with each
                failure; None: it is not.
        Raises:
            InvalidQueueOption, InvalidDuration, ValueError: as they say.
        """
        options = queue_options(
            queue,
            priority=priority,
            not_before=not_before,
            key=key,
            attempts=attempts,
            retry=retry,
        )
        return replace(self, queueing=options)


def _checked_tags(tags: Mapping[str, str]) -> Mapping[str, str]:
    if len(tags) > MAX_TAGS:
        raise ValueError(f"a run has at most {MAX_TAGS} tags, not {len(tags)}")
    for text in (*tags, *tags.values()):
        if not isinstance(text, str):
            raise TypeError(f"tags are texts by name, not {text!r}")
        if len(checked_name(text)) > MAX_TAG_CHARS:
            raise ValueError(f"a tag has at most {MAX_TAG_CHARS} characters: {text[:40]!r}...")
    return tags
