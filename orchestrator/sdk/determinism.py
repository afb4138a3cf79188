"""What another execution of the same code would not get: recorded, and the same on resume."""

from __future__ import annotations

import random as _random
import uuid as _uuid
from datetime import datetime

from orchestrator.durability.values import ValueCodec
from orchestrator.execution.context import current_context
from orchestrator.execution.step_execution import record_value

_TIME = ValueCodec("now()", datetime)
_NUMBER = ValueCodec("random()", float)
_UUID = ValueCodec("uuid()", _uuid.UUID)

_system = _random.SystemRandom()


def now() -> datetime:
    """The time, aware, as it was when the run first came here; raises OutsideRun."""
    context = current_context("now()")
    return record_value(context, "now", _TIME, context.run.clock.wall)


def random() -> float:
    """A number of [0, 1), the one drawn when the run first came here; raises OutsideRun.

    For more of them seed a generator: random.Random(random()).
    """
    return record_value(current_context("random()"), "random", _NUMBER, _system.random)


def uuid() -> _uuid.UUID:
    """A random UUID, the one made when the run first came here; raises OutsideRun."""
    return record_value(current_context("uuid()"), "uuid", _UUID, _uuid.uuid4)
