"""Errors as they are recorded, and raised again when their step is come by again."""

from __future__ import annotations

import json
import sys

from orchestrator.errors import StepFailed
from store.records import StepRecord

_PLAIN = (str, int, float, bool, type(None))


def failure_of(error: BaseException) -> bytes:
    """What is recorded of an error besides its name: its class, and the arguments it was made of.

    Arguments that JSON does not give back as they are are left out, all of them.
    """
    kind = type(error)
    arguments = list(error.args) if all(type(each) in _PLAIN for each in error.args) else None
    return json.dumps([kind.__module__, kind.__qualname__, arguments]).encode()


def raised_again(path: str, step: StepRecord, recorded: bytes | None) -> BaseException:
    """The error that ended a step before: of the same class where that can be made again."""
    told = f"{step.error_type}: {step.error_message or 'its message is not recorded'}"
    try:
        module, name, arguments = json.loads(recorded or b"null")
        kind: object = sys.modules[module]
        for part in name.split("."):
            kind = getattr(kind, part)
        if not (isinstance(kind, type) and issubclass(kind, Exception)) or arguments is None:
            return StepFailed(path, told)
        return kind(*arguments)
    except (ValueError, TypeError, KeyError, AttributeError):
        return StepFailed(path, told)
