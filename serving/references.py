"""References to code that users name: `module:name` or `path/to/file.py:name`, and the object."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from blake3 import blake3

from serving.errors import InvalidReference

FILE_MODULE_PREFIX = "_flow_"
"""Begins the module name of a file that is loaded by its path: `_flow_` and the file's stem."""

RESERVED_NAMES = ("agents", "cli", "orchestrator", "patterns", "serving", "store")
"""Import names of this project. A user's file of such a name is hidden by ours, or hides ours."""

_OUR_ROOT = Path(__file__).resolve().parents[1]


def is_reference(text: str) -> bool:
    """Whether a text is written like a reference, and not like a plain name."""
    place, _, name = text.rpartition(":")
    is_file = place.endswith(".py")
    is_module = all(part.isidentifier() for part in place.split("."))
    return (is_file or is_module) and all(part.isidentifier() for part in name.split("."))


def absolute(reference: str) -> str:
    """The same reference, which other processes understand too: a file by its absolute path."""
    place, _, name = reference.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if place.endswith(".py") else reference


def load_reference(reference: str) -> Any:
    """The object that a reference names. A file is executed once, and again after it has changed.

    Imports in it find what is beside the file, or below the current folder for a module.

    Raises:
        InvalidReference: there is no such file, module or name, its code raises as it is imported,
            or a file beside it has an import name of this project.
    """
    place, _, name = reference.rpartition(":")
    try:
        found: Any = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    except InvalidReference:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        reason = (
            f"its module cannot be imported ({type(error).__name__}: {error}); what a script does"
            ' only when it is run itself belongs under `if __name__ == "__main__":`'
        )
        raise InvalidReference(reference, reason) from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            named = ", ".join(public_names(found)) or "nothing"
            reason = f"there is no {name!r} in it; it defines {named}"
            raise InvalidReference(reference, reason) from None
    return found


def reference_to(function: Callable[..., Any], qualified_name: str) -> str | None:
    """How a module-level function is found again; None if its module has no file.

    A script, or a file loaded by its path, is named by the path; `python -m` by its module.
    """
    module = sys.modules.get(function.__module__)
    if function.__module__ == "__main__":
        spec = getattr(module, "__spec__", None)
        if spec is not None:  # python -m
            return f"{spec.name}:{qualified_name}"
    elif not function.__module__.startswith(FILE_MODULE_PREFIX):
        return f"{function.__module__}:{qualified_name}"
    file = getattr(module, "__file__", None)
    return None if file is None else f"{Path(file).resolve()}:{qualified_name}"


def code_digest(reference: str) -> str:
    """A hash of the file that a reference leads to; of what that file imports nothing is in it."""
    module = sys.modules[load_reference(reference).__module__]
    return blake3(Path(str(module.__file__)).read_bytes()).hexdigest()


def public_names(module: object) -> list[str]:
    """Names that a module defines itself, without underscore."""
    own = getattr(module, "__name__", None)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == own
    ]


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise InvalidReference(str(path), "there is no such file")
    name, stamp = FILE_MODULE_PREFIX + path.stem, path.stat().st_mtime_ns
    known = sys.modules.get(name)
    if known is not None and getattr(known, "_loaded_from", None) == (path, stamp):
        return known
    _search_in(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    vars(module)["_loaded_from"] = (path, stamp)
    return module


def _load_module(name: str) -> ModuleType:
    if not name:
        raise InvalidReference(name, "write module:name or path/to/file.py:name")
    _search_in(Path.cwd())
    return importlib.import_module(name)


def _search_in(folder: Path) -> None:
    """Have imports look into a folder first, as Python does when it runs a script there."""
    if str(folder) in sys.path:
        return
    for name in RESERVED_NAMES:
        for file in (folder / f"{name}.py", folder / name / "__init__.py"):
            if file.exists() and not file.is_relative_to(_OUR_ROOT):
                reason = (
                    f"{name!r} is an import name of orchestrate, and imports there would find one"
                    f" of the two for the other: rename this file (reserved: {_RESERVED})"
                )
                raise InvalidReference(str(file), reason)
    sys.path.insert(0, str(folder))


_RESERVED = ", ".join(RESERVED_NAMES)
