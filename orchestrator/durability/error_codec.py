"""Errors of steps: recorded as JSON, and rebuilt when the step is replayed."""

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
"""Attribute of an error that lists the steps it ended: (run id, path), innermost first."""

_MAX_STEPS = 1000  # bounds the list of an error object that is raised again and again


def encode_error(error: BaseException, *, text: str = "") -> bytes:
    """The error as JSON: class, message, constructor arguments, attributes, members of a group.

    If any constructor argument would not survive JSON, all of them are left out.

    Args:
        text: what of an answer had reached the flow before the error.
    """
    before = {"text": text} if text else {}
    try:
        return json.dumps(_document(error) | before).encode()
    except Exception:  # raised by the error's own code; it must not replace the error
        return json.dumps(_class_name(error) | before).encode()


def recorded_text(recorded: bytes | None) -> str:
    """The text that `encode_error` was given; "" if it was given none."""
    text: str = json.loads(recorded or b"{}").get("text", "")
    return text


def _class_name(error: BaseException) -> dict[str, Any]:
    return {"module": type(error).__module__, "name": type(error).__qualname__}


def _document(error: BaseException) -> dict[str, Any]:
    # Errors of Python itself keep more than `args`, such as the name of a file or a module.
    reduced: Any = error.__reduce__() if _is_builtin(error) else (None, error.args)
    _, arguments, *state = reduced
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    attributes = (state[0] if state else vars(error)) or {}
    return _class_name(error) | {
        "says": str(error),
        "made_of": _pack(list(arguments)) if _is_packable(arguments) else None,
        "holds": {
            name: _pack(value)
            for name, value in attributes.items()
            if name != _STEPS and _is_packable(value)
        },
        "members": [_document(member) for member in members],
    }


def _is_builtin(error: BaseException) -> bool:
    """Whether Python itself constructs an error, with state beside its `args`."""
    kind = type(error)
    return isinstance(error, OSError) or kind.__module__ == "builtins"


def decode_error(path: str, step: StepRecord, recorded: bytes | None) -> BaseException:
    """The error that ended a step: of the recorded class if possible, else a StepFailed.

    Args:
        path: of the step, for StepFailed.
        recorded: what `encode_error` returned; None if it was not kept.
    """
    message = step.error_message or "its message is not recorded"
    try:
        document = json.loads(recorded or b"null")
        message = document.get("says", message)
        return _rebuild(document)
    except Exception:  # the class is gone, or it does not accept what was recorded
        return StepFailed(path, f"{step.error_type}: {message}")


def _rebuild(document: Mapping[str, Any]) -> Exception:
    """The error of a document, with the recorded message."""
    kind, message = _class_of(document["module"], document["name"]), document["says"]
    packed = document["made_of"]
    arguments = (message,) if packed is None else tuple(_unpack(packed))
    if issubclass(kind, ExceptionGroup):
        members = [_rebuild(member) for member in document["members"]]
        arguments = (message.rpartition(" (")[0], members)
    # A user's constructor is not called: it may take other arguments than `args` holds.
    use_constructor = kind.__module__ == "builtins" and packed is not None
    error = kind(*arguments) if use_constructor else kind.__new__(kind, *arguments)
    if not error.args:
        error.args = arguments
    for name, value in document["holds"].items():
        setattr(error, name, _unpack(value))
    return error if _message_of(error) == message else _with_message(kind, error, message)


def _pack(value: Any) -> Any:
    """A value as JSON that keeps tuples, lists and bytes apart; TypeError for any other type."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (list, tuple):
        return {kind.__name__: [_pack(item) for item in value]}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": {key: _pack(item) for key, item in value.items()}}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    raise TypeError(kind.__name__)


def _unpack(value: Any) -> Any:
    """The value that `_pack` took."""
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "dict":
        return {key: _unpack(item) for key, item in content.items()}
    if kind == "bytes":
        return base64.b64decode(content)
    items = [_unpack(item) for item in content]
    return tuple(items) if kind == "tuple" else items


def _is_packable(value: Any) -> bool:
    try:
        _pack(value)
    except (TypeError, RecursionError):
        return False
    return True


def _message_of(error: Exception) -> str | None:
    try:
        return str(error)
    except Exception:  # attributes are missing that its constructor would have set
        return None


def _with_message(kind: type[Exception], error: Exception, message: str) -> Exception:
    """The same error, of a subclass with the same name and a fixed message."""
    overrides = {
        "__str__": lambda _: message,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    subclass = type(kind.__name__, (kind,), overrides)
    copy: Exception = subclass.__new__(subclass, *error.args)
    copy.args = error.args
    vars(copy).update(vars(error))
    return copy


def _class_of(module: str, name: str) -> type[Exception]:
    """An error's class, by its module and qualified name; raises LookupError.

    A file that ran as a script (`__main__`) has another module name when its run is resumed.
    """
    scripts = [each for each in sys.modules if each.startswith(("__main__", FILE_MODULE_PREFIX))]
    is_script = module in scripts or module == "__main__"
    for module_name in [module, *scripts] if is_script else [module]:
        found: Any = sys.modules.get(module_name)
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    raise LookupError(name)


def mark_step(error: BaseException, run_id: str, path: str) -> None:
    """Note on an error that it ended a step."""
    steps = vars(error).setdefault(_STEPS, [])
    steps.append((run_id, path))
    del steps[:-_MAX_STEPS]


def steps_ended_by(error: BaseException, run_id: str) -> list[str]:
    """The paths of a run's steps that ended with this error or with an error that led to it.

    Followed are the members of groups, causes, and contexts (errors that were being handled).
    """
    found: dict[str, None] = {}
    seen: set[tuple[int, str]] = set()
    pending = [(error, "")]  # each with the path prefix that its steps must have
    while pending:
        current, prefix = pending.pop()
        if (id(current), prefix) in seen:
            continue
        seen.add((id(current), prefix))
        own = _paths(current, run_id)
        found.update((path, None) for path in own if path.startswith(prefix))
        if isinstance(current, BaseExceptionGroup):
            pending += [(member, prefix) for member in current.exceptions]
        if current.__cause__ is not None:
            pending.append((current.__cause__, prefix))
        elif current.__context__ is not None:
            # Raised while another error was handled. That one led to it, unless this error ended
            # a later step of its own: then only steps within that step count.
            pending.append((current.__context__, f"{own[0]}/" if own else prefix))
    return list(found)


def _paths(error: BaseException, run_id: str) -> list[str]:
    return [path for run, path in vars(error).get(_STEPS, ()) if run == run_id]
