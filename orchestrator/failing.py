"""Errors as they are recorded, and raised again when their step is come by again."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import StepFailed
from orchestrator.values import is_plain
from store.records import StepRecord

_STEPS = "_orchestrate_steps"
"""An error's own list of the steps that it has ended: (run, path), the innermost first."""

_MOST_STEPS = 1000  # of an error that is raised again and again


def failure_of(error: BaseException) -> bytes:
    """What is recorded of an error besides its name, as JSON: its class, what it says, what it was
    made of and what it holds; of a group, the same of its members.

    Arguments that JSON does not give back as they are are left out, all of them.
    """
    try:
        return json.dumps(_document(error)).encode()
    except Exception:  # whatever the error's own code raises: it must not take its place
        return json.dumps(_class_name(error)).encode()


def _class_name(error: BaseException) -> dict[str, Any]:
    return {"module": type(error).__module__, "name": type(error).__qualname__}


def _document(error: BaseException) -> dict[str, Any]:
    # An error of the system keeps the file's name beside its arguments.
    made_of = list(error.__reduce__()[1] if isinstance(error, OSError) else error.args)
    group = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    held = {name: each for name, each in vars(error).items() if name != _STEPS and is_plain(each)}
    return _class_name(error) | {
        "says": str(error),
        "made_of": made_of if is_plain(made_of) else None,
        "holds": held,
        "members": [_document(each) for each in group],
    }


def raised_again(path: str, step: StepRecord, recorded: bytes | None) -> BaseException:
    """The error that ended a step before: of the same class where that can be made again."""
    told = step.error_message or "its message is not recorded"
    try:
        document = json.loads(recorded or b"null")
        told = document.get("says", told)
        return _made(document)
    except Exception:  # whatever another class than we know makes of this
        return StepFailed(path, f"{step.error_type}: {told}")


def _made(document: Mapping[str, Any]) -> Exception:
    """The error of a document, which says what it said."""
    kind, says = _class_of(document["module"], document["name"]), document["says"]
    given = (says,) if document["made_of"] is None else tuple(document["made_of"])
    if issubclass(kind, ExceptionGroup):
        given = (says.rpartition(" (")[0], [_made(each) for each in document["members"]])
    # Not by its constructor, which may want other things than the error then says.
    error = kind.__new__(kind, *given)
    if not error.args:
        error.args = given
    vars(error).update(document["holds"])
    return error if _says(error) == says else _saying(kind, error, says)


def _says(error: Exception) -> str | None:
    try:
        return str(error)
    except Exception:  # it misses what its constructor would have set
        return None


def _saying(kind: type[Exception], error: Exception, says: str) -> Exception:
    """The same error, of a class of that name whose words are these."""
    own = {
        "__str__": lambda _: says,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    retold = type(kind.__name__, (kind,), own)
    again: Exception = retold.__new__(retold, *error.args)
    again.args = error.args
    vars(again).update(vars(error))
    return again


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
    steps = vars(error).setdefault(_STEPS, [])
    steps.append((run_id, path))
    del steps[:-_MOST_STEPS]


def steps_ended_by(error: BaseException, run_id: str) -> list[str]:
    """The paths of the steps of a run whose errors made this one."""
    found: dict[str, None] = {}
    seen: set[tuple[int, str]] = set()
    left = [(error, "")]  # with the place that its steps must lie in
    while left:
        each, within = left.pop()
        if (id(each), within) in seen:
            continue
        seen.add((id(each), within))
        own = _paths(each, run_id)
        found.update((path, None) for path in own if path.startswith(within))
        if isinstance(each, BaseExceptionGroup):
            left += [(one, within) for one in each.exceptions]
        if each.__cause__ is not None:
            left.append((each.__cause__, within))
        elif each.__context__ is not None:
            # Raised while another was handled: made of that one, unless it is a later step's own.
            left.append((each.__context__, f"{own[0]}/" if own else within))
    return list(found)


def _paths(error: BaseException, run_id: str) -> list[str]:
    return [path for run, path in vars(error).get(_STEPS, ()) if run == run_id]
