"""now, random, uuid: values that differ in each execution, repeated on resume; and run_id."""

from __future__ import annotations

import random as _random
import uuid as _uuid
from datetime import datetime

from orchestrator.durability.values import ValueCodec
from orchestrator.execution.context import current_context
from orchestrator.execution.recorded_values import record_value

_TIME = ValueCodec("now()", datetime)
_NUMBER = ValueCodec("random()", float)
_UUID = ValueCodec("uuid()", _uuid.UUID)

_system = _random.SystemRandom()


def now() -> datetime:
    """The wall time (aware) of the run's first execution of this call; raises OutsideRun."""
    context = current_context("now()")
    return record_value(context, "now", _TIME, context.run.clock.wall)


def random() -> float:
    """A random number in [0, 1), drawn in the run's first execution of this call.

    For many numbers seed a generator with it: random.Random(random()).

    Raises:
        OutsideRun: not within a flow.
    """
    return record_value(current_context("random()"), "random", _NUMBER, _system.random)


def run_id() -> str:
    """The id of the run, which stays the same when it is resumed; raises OutsideRun."""
    return current_context("run_id()").run.id


def uuid() -> _uuid.UUID:
    """A random UUID, made in the run's first execution of this call; raises OutsideRun."""
    return record_value(current_context("uuid()"), "uuid", _UUID, _uuid.uuid4)
