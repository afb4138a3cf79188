"""What a simulation runs: a flow, its arguments, and how its effects are seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.execution.flow_spec import FlowSpec
from orchestrator.testing.scripted_engine import ScriptedEngine
from serving.generation import Engine


def _no_effects() -> Iterable[object]:
    return ()


def _nothing() -> None:
    return


def _all_of_it(value: Any) -> object:
    return value


def _silent_engine() -> Engine:
    return ScriptedEngine(lambda _: "ok")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A flow with its arguments, and how its effects on the outside world are seen.

    Attributes:
        effects: all that the flow has done to the outside world since `reset`, such as the mails
            that it sent; an effect that is done twice is there twice.
        reset: called before each schedule: undoes all effects.
        compared: takes the flow's result, and returns what of it is the same in every run; by
            default all of it.
        is_reconciled: whether all external effects have `reconcile=`, so that no run may end in
            OutcomeUnknown.
        engine: makes the engine of each process.
    """

    flow: FlowSpec[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    effects: Callable[[], Iterable[object]] = _no_effects
    reset: Callable[[], None] = _nothing
    compared: Callable[[Any], object] = _all_of_it
    is_reconciled: bool = False
    engine: Callable[[], Engine] = _silent_engine
