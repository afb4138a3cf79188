"""What a run tells while it goes on: for progress displays, never for control."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run began; deadline_s is None where it has none."""

    run_id: str
    flow: str
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step began, at_s after the run did."""

    run_id: str
    path: str
    name: str
    at_s: float


@dataclass(frozen=True, slots=True)
class InputRequired:
    """A run waits for a human's answer."""

    run_id: str
    path: str
    question: str
    at_s: float


@dataclass(frozen=True, slots=True)
class CallStarted:
    """An LLM or tool call began; sub_deadline_s counts from the run's start."""

    run_id: str
    node: int
    kind: str
    identity: str
    stage: int
    at_s: float
    sub_deadline_s: float | None


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call ended, well or not; tokens are 0 for tools."""

    run_id: str
    node: int
    stage: int
    status: str
    at_s: float
    output_tokens: int


@dataclass(frozen=True, slots=True)
class RunFinished:
    """A run ended; status as recorded."""

    run_id: str
    status: str
    elapsed_s: float


Event = RunStarted | StepStarted | InputRequired | CallStarted | CallFinished | RunFinished
Listener = Callable[[Event], None]
