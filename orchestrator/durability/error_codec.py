"""Errors as they are recorded, and raised again when their step is come by again."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import StepFailed
from serving.references import FILE_MODULE_PREFIX
from store.records import StepRecord

_PLAIN = (str, int, float, bool, type(None))

_STEPS = "_orchestrate_steps"
"""An error's own list of the steps that it has ended: (run, path), the innermost first."""

_MOST_STEPS = 1000  # of an error that is raised again and again


def encode_error(error: BaseException) -> bytes:
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
    # An error of Python's own keeps more than its arguments: a file's name, a module's.
    reduced: Any = error.__reduce__() if _is_builtin(error) else (None, error.args)
    _, made_of, *state = reduced
    group = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    held = (state[0] if state else vars(error)) or {}
    return _class_name(error) | {
        "says": str(error),
        "made_of": _packed(list(made_of)) if _can_be_packed(made_of) else None,
        "holds": {
            name: _packed(each)
            for name, each in held.items()
            if name != _STEPS and _can_be_packed(each)
        },
        "members": [_document(each) for each in group],
    }


def _is_builtin(error: BaseException) -> bool:
    """Whether an error is made by Python's own constructor, and keeps its own facts aside."""
    kind = type(error)
    return isinstance(error, OSError) or kind.__module__ == "builtins"


def decode_error(path: str, step: StepRecord, recorded: bytes | None) -> BaseException:
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
    made_of = document["made_of"]
    given = (says,) if made_of is None else tuple(_unpacked(made_of))
    if issubclass(kind, ExceptionGroup):
        given = (says.rpartition(" (")[0], [_made(each) for each in document["members"]])
    # Not by a constructor of somebody's, which may want other things than the error then says.
    is_ours = kind.__module__ == "builtins" and made_of is not None
    error = kind(*given) if is_ours else kind.__new__(kind, *given)
    if not error.args:
        error.args = given
    for name, value in document["holds"].items():
        setattr(error, name, _unpacked(value))
    return error if _says(error) == says else _saying(kind, error, says)


def _packed(value: Any) -> Any:
    """A value as JSON that tells tuples from lists; TypeError for what it has no word for."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (list, tuple):
        return {kind.__name__: [_packed(each) for each in value]}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": {key: _packed(each) for key, each in value.items()}}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    raise TypeError(kind.__name__)


def _unpacked(value: Any) -> Any:
    """The value that was packed."""
    if not isinstance(value, dict):
        return value
    [(kind, inside)] = value.items()
    if kind == "dict":
        return {key: _unpacked(each) for key, each in inside.items()}
    if kind == "bytes":
        return base64.b64decode(inside)
    items = [_unpacked(each) for each in inside]
    return tuple(items) if kind == "tuple" else items


def _can_be_packed(value: Any) -> bool:
    try:
        _packed(value)
    except (TypeError, RecursionError):
        return False
    return True


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
    scripts = [each for each in sys.modules if each.startswith(("__main__", FILE_MODULE_PREFIX))]
    for place in [module, *scripts] if module in scripts or module == "__main__" else [module]:
        found: Any = sys.modules.get(place)
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    raise LookupError(name)


def mark_step(error: BaseException, run_id: str, path: str) -> None:
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
