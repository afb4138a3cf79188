"""Whether a schedule ended as it must: with the right result, or with a documented error."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.errors import OutcomeUnknown, RunNotResumable
from orchestrator.testing.simulated_process import Process
from orchestrator.testing.unreliable_store import is_simulated
from store.errors import RunChanged
from store.records import Effects, Status, StepRecord


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What the flow does without any fault.

    Attributes:
        effects: how often it has each effect.
    """

    value: object
    effects: Counter[str]


def counted(effects: Iterable[object]) -> Counter[str]:
    """How often each effect took place."""
    return Counter(map(repr, effects))


def wrong_ends(
    processes: Sequence[Process], claims: Sequence[int], steps: Sequence[StepRecord], value: object
) -> Iterator[str]:
    """What is wrong with how the processes of a schedule ended, whatever befell them.

    Args:
        claims: the processes that began or resumed the run, in order.
        steps: those of which the run may say that their outcome is unknown.
        value: what the flow must return.
    """
    for process in processes:
        if process.is_dead:
            continue
        was_robbed = process.number in claims[:-1]
        if process.error is None:
            if process.value != value:
                yield f"process {process.number} returned {process.value!r} instead of {value!r}"
        elif not _is_documented(process, was_robbed=was_robbed, steps=steps):
            yield f"process {process.number} ended in {_shown(process.error)}"
    yield from _wrong_winners([each for each in processes if each.rivals > 1], claims)


def _wrong_winners(rivals: Sequence[Process], claims: Sequence[int]) -> Iterator[str]:
    """What is wrong with which of the processes won that resumed the run at once."""
    winners = [each.number for each in rivals if each.number in claims]
    if len(winners) > 1:
        yield f"processes {winners} resumed the run at once, and none of them was refused"
    for process in rivals:
        is_disturbed = process.is_dead or _has_simulated(process.error)
        was_refused = isinstance(process.error, RunNotResumable)
        if not is_disturbed and was_refused == (process.number in winners):
            yield f"process {process.number} resumed the run, but got {process.error!r}"


def wrong_last_end(
    processes: Sequence[Process], steps: Sequence[StepRecord], value: object
) -> Iterator[str]:
    """What is wrong with how the run ended once nothing disturbed it any more.

    Args:
        processes: in the order in which they resumed it.
        steps: as in `wrong_ends`.
    """
    error = processes[-1].error
    if error is None:
        if processes[-1].value != value:
            yield f"the resumed run returned {processes[-1].value!r} instead of {value!r}"
    elif not _is_unknown_effect(error, steps):
        yield f"the run cannot be resumed: {_shown(error)}"


def wrong_effects(
    took_place: Counter[str], undisturbed: Counter[str], *, is_complete: bool
) -> Iterator[str]:
    """Effects that took place too often or, if the run is complete, not often enough."""
    for effect in took_place | undisturbed:
        if took_place[effect] > undisturbed[effect]:
            yield f"the effect {effect} took place {took_place[effect]} times"
        elif is_complete and took_place[effect] < undisturbed[effect]:
            yield f"the run is complete, but the effect {effect} did not take place"


def is_replayed_refusal(error: BaseException | None) -> bool:
    """Whether a recorded error of the simulated store was raised again.

    The run had ended with it, and that end was not recorded; this time it is, and one more resume
    executes the step again.
    """
    return _has_simulated(error)


def _is_documented(process: Process, *, was_robbed: bool, steps: Sequence[StepRecord]) -> bool:
    error = process.error
    if was_robbed and isinstance(error, RunChanged | asyncio.CancelledError):
        return True
    if isinstance(error, RunNotResumable):
        return True
    return _has_simulated(error) or _is_unknown_effect(error, steps)


def _is_unknown_effect(error: BaseException | None, steps: Sequence[StepRecord]) -> bool:
    """Whether it says that an effect's outcome is unknown, and the record says so too."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_unknown_effect(each, steps) for each in error.exceptions)
    if not isinstance(error, OutcomeUnknown):
        return False
    step = next((each for each in steps if each.path == error.args[1]), None)
    return (
        step is not None
        and step.effects is Effects.EXTERNAL
        and step.status in (Status.RUNNING, Status.CANCELLED)
    )


def _has_simulated(error: BaseException | None) -> bool:
    """Whether the unreliable store raised it, or what led to it."""
    if error is None:
        return False
    if isinstance(error, BaseExceptionGroup):
        return all(map(_has_simulated, error.exceptions))
    return is_simulated(error) or _has_simulated(error.__cause__)


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
