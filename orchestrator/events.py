"""Events that a run emits: for displays and telemetry, never for control.

Public: `RunHandle.events()` yields them, and `open_runtime(on_event=)` calls a function with each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

__all__ = [
    "CallFinished",
    "CallStarted",
    "Event",
    "InputRequired",
    "Listener",
    "RunFinished",
    "RunStarted",
    "StepFinished",
    "StepStarted",
    "TextGenerated",
]


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run began; deadline_s is None if it has none."""

    run_id: str
    flow: str
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step began; at_s counts from the run's start."""

    run_id: str
    path: str
    name: str
    at_s: float


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A step ended; error_type is the class of the error that it raised."""

    run_id: str
    path: str
    status: str
    at_s: float
    _: KW_ONLY
    error_type: str | None = None


@dataclass(frozen=True, slots=True)
class InputRequired:
    """A run waits for a human's answer."""

    run_id: str
    path: str
    question: str
    at_s: float


@dataclass(frozen=True, slots=True)
class CallStarted:
    """An LLM or tool call began; sub_deadline_s counts from the run's start.

    Attributes:
        sub_deadline_source: how the sub-deadline was found ("learned" or "fallback"); None
            without one.
        path: the step path of the call itself.
        engine, model: those that answer, the engine by its kind; None for tools.
        engine_name: the engine's name in the runtime, "" for the default one; None for tools.
        random_weights: the model's answers are noise.
        predicted_output_tokens: predicted upper bound of the answer's length; None without one.
    """

    run_id: str
    node: int
    kind: str
    identity: str
    stage: int
    at_s: float
    sub_deadline_s: float | None
    _: KW_ONLY
    sub_deadline_source: str | None = None
    path: str = ""
    engine: str | None = None
    model: str | None = None
    predicted_output_tokens: float | None = None
    engine_name: str | None = None
    random_weights: bool = False


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call ended, successfully or not; token counts are 0 for tools.

    Attributes:
        finish_reason: of an answer; None without one.
        error_type: the class of the error that the call raised.
    """

    run_id: str
    node: int
    stage: int
    status: str
    at_s: float
    output_tokens: int
    _: KW_ONLY
    prompt_tokens: int = 0
    finish_reason: str | None = None
    error_type: str | None = None


@dataclass(frozen=True, slots=True)
class TextGenerated:
    """A piece of an LLM call's answer has arrived; only `RunHandle.events(text=True)` yields it.

    Attributes:
        node, path: of the call, as in CallStarted.
    """

    run_id: str
    node: int
    path: str
    text: str
    at_s: float


@dataclass(frozen=True, slots=True)
class RunFinished:
    """A run ended; status as recorded, error_type the class of the error that it raised."""

    run_id: str
    status: str
    elapsed_s: float
    _: KW_ONLY
    error_type: str | None = None


Event = (
    RunStarted
    | StepStarted
    | StepFinished
    | InputRequired
    | CallStarted
    | CallFinished
    | TextGenerated
    | RunFinished
)
Listener = Callable[[Event], None]
