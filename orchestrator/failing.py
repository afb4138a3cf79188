"""Errors as they are recorded, and raised again when their step is come by again."""

from __future__ import annotations

import json
import sys
from typing import Any

from orchestrator.errors import StepFailed
from store.records import StepRecord

_PLAIN = (str, int, float, bool, type(None))

_STEPS = "_orchestrate_steps"
"""An error's own list of the steps that it has ended: (run, path), the innermost first."""


def failure_of(error: BaseException) -> bytes:
    """What is recorded of an error besides its name: its class, what it was made of, and what it
    holds.

    Arguments that JSON does not give back as they are are left out, all of them.
    """
    kind = type(error)
    # An error of the system keeps the file's name beside its arguments.
    made_of = error.__reduce__()[1] if isinstance(error, OSError) else error.args
    arguments = list(made_of) if all(type(each) in _PLAIN for each in made_of) else None
    held = {
        name: value
        for name, value in vars(error).items()
        if type(value) in _PLAIN and name != _STEPS
    }
    return json.dumps([kind.__module__, kind.__qualname__, arguments, held]).encode()


def raised_again(path: str, step: StepRecord, recorded: bytes | None) -> BaseException:
    """The error that ended a step before: of the same class where that can be made again."""
    told = step.error_message or "its message is not recorded"
    try:
        module, name, arguments, held = json.loads(recorded or b"null")
        kind = _class_of(module, name)
        given = (told,) if arguments is None else tuple(arguments)
        # Not by its constructor, which may want other things than the error then says.
        error: Exception = kind.__new__(kind, *given)
        vars(error).update(held)
        str(error)
    except Exception:  # whatever another class than we know makes of this
        return StepFailed(path, f"{step.error_type}: {told}")
    return error


def _class_of(module: str, name: str) -> type[Exception]:
    """An error's class; raises LookupError. What ran as a script is imported when it is resumed."""
    scripts = [each for each in sys.modules if each == "__main__" or each.startswith("_flow_")]
    for place in [module, *scripts] if module in scripts or module == "__main__" else [module]:
        found: Any = sys.modules.get(place)
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    raise LookupError(name)


def remember(error: BaseException, run_id: str, path: str) -> None:
    """Keep with an error that it has ended a step."""
    vars(error).setdefault(_STEPS, []).append((run_id, path))


def steps_ended_by(error: BaseException, run_id: str) -> list[str]:
    """The paths of the steps of a run whose errors made this one."""
    found: dict[str, None] = {}
    seen: set[int] = set()
    left = [(error, "")]  # with the place that its steps must lie in
    while left:
        each, within = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        own = _paths(each, run_id)
        found.update((path, None) for path in own if path.startswith(within))
        if isinstance(each, BaseExceptionGroup):
            left += [(one, within) for one in each.exceptions]
        if each.__cause__ is not None:
            left.append((each.__cause__, within))
        elif each.__context__ is not None and not each.__suppress_context__:
            # Raised while another was handled: made of that one, unless it is a later step's own.
            left.append((each.__context__, f"{own[0]}/" if own else within))
    return list(found)


def _paths(error: BaseException, run_id: str) -> list[str]:
    return [path for run, path in vars(error).get(_STEPS, ()) if run == run_id]
