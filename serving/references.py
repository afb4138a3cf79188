"""References to users' code, `module:name` or `path/to/file.py:name`, and a loader for them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from serving.errors import InvalidReference

FILE_MODULE_PREFIX = "_flow_"
"""Prefix of the module name of a file that is loaded by its path; the file's stem follows."""

RESERVED_NAMES = ("agents", "cli", "orchestrator", "patterns", "serving", "store")
"""Import names of this project. A user's file of the same name would shadow one of them, or be
shadowed by it."""

_PROJECT_ROOT = Path(__file__).resolve().parents[1]


def is_reference(text: str) -> bool:
    """Whether a text has the form of a reference, and not of a plain name."""
    source, _, name = text.rpartition(":")
    is_file = source.endswith(".py")
    is_module = all(part.isidentifier() for part in source.split("."))
    return (is_file or is_module) and all(part.isidentifier() for part in name.split("."))


def absolute(reference: str) -> str:
    """The same reference with an absolute file path, for processes with another working folder."""
    source, _, name = reference.rpartition(":")
    return f"{Path(source).resolve()}:{name}" if source.endswith(".py") else reference


def load_reference(reference: str) -> Any:
    """The object that a reference names. A file is executed once, and again after it has changed.

    The folder of the file, or the current folder for a module, is searched for its imports.

    Raises:
        InvalidReference: the file, module or name does not exist, the code raises an exception
            when it is imported, or a file beside it has an import name of this project.
    """
    source, _, name = reference.rpartition(":")
    try:
        target: Any = _load_file(Path(source)) if source.endswith(".py") else _load_module(source)
    except InvalidReference:
        raise
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        reason = f"its module cannot be imported ({type(error).__name__}: {error})"
        if not isinstance(error, ImportError | SyntaxError):
            reason += '; put code that must run only as a script under `if __name__ == "__main__":`'
        raise InvalidReference(reference, reason) from error
    for part in name.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            defined = ", ".join(public_names(target)) or "nothing"
            reason = f"there is no {name!r} in it; it defines {defined}"
            raise InvalidReference(reference, reason) from None
    return target


def is_loaded(reference: str) -> bool:
    """Whether this process has imported the module, or executed the file, of a reference."""
    source = reference.rpartition(":")[0]
    if not source.endswith(".py"):
        return source in sys.modules
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return str(Path(source).resolve()) in files


def reference_to(function: Callable[..., Any], qualified_name: str) -> str | None:
    """The reference to a module-level function; None if its module has no file.

    It names a script, or a file loaded by its path, by the path, and `python -m` by its module.
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


def public_names(module: object) -> list[str]:
    """Names without underscore in a module: not other modules, and no function or class of them."""
    own = getattr(module, "__name__", None)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and type(value).__module__ != "typing"
        and (not isinstance(value, type | FunctionType) or value.__module__ == own)
    ]


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise InvalidReference(str(path), "there is no such file")
    name, stamp = _module_name(path), path.stat().st_mtime_ns
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "_loaded_from", None) == (path, stamp):
        return loaded
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


def _module_name(path: Path) -> str:
    """The name of a file's module; with a digest if a file of the same name is loaded already."""
    name = FILE_MODULE_PREFIX + path.stem
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded in (None, str(path)):
        return name
    return f"{name}_{blake2b(str(path).encode(), digest_size=4).hexdigest()}"


def _load_module(name: str) -> ModuleType:
    if not name:
        raise InvalidReference(name, "write module:name or path/to/file.py:name")
    _search_in(Path.cwd())
    return importlib.import_module(name)


def _search_in(folder: Path) -> None:
    """Put a folder first in the search path, as Python does for a script in that folder."""
    if str(folder) in sys.path:
        return
    for name in RESERVED_NAMES:
        for file in (folder / f"{name}.py", folder / name / "__init__.py"):
            if file.exists() and file != _PROJECT_ROOT / name / "__init__.py":
                reason = (
                    f"{name!r} is an import name of orchestrate, and one of the two would shadow"
                    f" the other: rename this file (reserved names: {_RESERVED})"
                )
                raise InvalidReference(str(file), reason)
    sys.path.insert(0, str(folder))


_RESERVED = ", ".join(RESERVED_NAMES)
