"""When a request goes to another replica, and what its client learns otherwise.

A replica's answer is final unless it says that the replica does not work: 502 and 503. 504 is the
end that the request's own SLO asks for, and what is the client's fault is refused everywhere.
"""

from __future__ import annotations

from enum import StrEnum

UNAVAILABLE = frozenset({502, 503})
"""Statuses of a replica that stops or has lost its engine; another one may answer."""


class Outcome(StrEnum):
    """How one attempt at a replica ended."""

    ANSWERED = "answered"  # with any status, completely
    UNAVAILABLE = "unavailable"  # it answered that it cannot serve
    UNREACHABLE = "unreachable"  # no connection, or it broke before the answer's first byte
    CUT_OFF = "cut_off"  # the connection broke within the answer
    DISCONNECTED = "disconnected"  # the client has gone


def outcome_of_status(status: int) -> Outcome:
    """The outcome of an attempt whose answer begins with this status."""
    return Outcome.UNAVAILABLE if status in UNAVAILABLE else Outcome.ANSWERED


def may_retry(outcome: Outcome) -> bool:
    """Whether another replica may be asked: only while the client has seen nothing of an answer."""
    return outcome in (Outcome.UNAVAILABLE, Outcome.UNREACHABLE)


def is_failure(outcome: Outcome) -> bool:
    """Whether the replica failed."""
    return may_retry(outcome) or outcome is Outcome.CUT_OFF
