"""Reads our source and vLLM's: which names are there, and which of vLLM's names we touch.

An object is known to be vLLM's where a function's argument is annotated with a class imported from
vLLM, where it is `self` in our scheduler, and by the names that our code gives it everywhere.
"""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import contextlib
import importlib
import inspect
import queue
import textwrap
import threading
import urllib.parse
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.contract.vllm_touched import SCHEDULER
from tests.places import ROOT

PACKAGES = ("agents", "cli", "orchestrator", "patterns", "serving", "store")

SOURCES = [
    path
    for folder in ("serving/engine", "serving/sim/drive")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
"""The modules that may name vLLM."""

OUR_SCHEDULER = ROOT / "serving" / "engine" / "scheduler" / "scheduler.py"

_SCHEDULERS = {"self._scheduler", "self.scheduler", "scheduler"}
"""How our code calls vLLM's scheduler outside of our own scheduler class."""

_PYTHONS = {
    name
    for kind in (
        *(str, bytes, int, float, list, dict, set, tuple, range, type, BaseException),
        *(asyncio.AbstractEventLoop, concurrent.futures.Future, contextlib.AsyncExitStack),
        *(queue.Queue, asyncio.Queue, type(threading.Lock()), np.ndarray, urllib.parse.SplitResult),
    )
    for name in dir(kind)
}
"""Attributes of Python's and NumPy's own objects."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_of_vllm(path: Path) -> dict[str, str]:
    """Name in one of our modules -> the dotted path of what it is in vLLM."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm"
        for alias in node.names
    }


def attributes_in(path: Path) -> Iterator[ast.Attribute]:
    """Every `x.name` in a module, but those of an imported module or name that is not vLLM's."""
    theirs = imported_of_vllm(path).keys()
    foreign = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    } - theirs
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute):
            is_foreign = isinstance(node.value, ast.Name) and node.value.id in foreign
            if not is_foreign:
                yield node


def touched_by_owner(path: Path) -> Iterator[tuple[str, str]]:
    """vLLM's class and the attribute, wherever a module's source says whose it is."""
    theirs = imported_of_vllm(path)
    for function in ast.walk(tree_of(path)):
        if not isinstance(function, Function):
            continue
        owners = dict.fromkeys(_SCHEDULERS, SCHEDULER)
        if path == OUR_SCHEDULER:
            owners["self"] = owners["super()"] = SCHEDULER
        for argument in (*function.args.args, *function.args.kwonlyargs):
            named = argument.annotation and ast.unparse(argument.annotation).partition(" ")[0]
            if named in theirs:
                owners[argument.arg] = _defined_at(theirs[named])
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners:
                yield owners[ast.unparse(node.value)], node.attr


def _defined_at(path: str) -> str:
    """Where a class is defined that may be imported from elsewhere."""
    found = resolve(path)
    return f"{found.__module__}.{found.__qualname__}"


@cache
def our_names() -> frozenset[str]:
    """Every name that our own packages define: functions, classes, attributes, fields."""
    found: set[str] = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(tree_of(path)):
                if isinstance(node, Function | ast.ClassDef):
                    found.add(node.name)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found.add(node.target.id)
                elif isinstance(node, ast.Assign):
                    found.update(each.id for each in node.targets if isinstance(each, ast.Name))
            found |= assigned_to_self(tree_of(path))
    return frozenset(found | _PYTHONS)


def resolve(path: str) -> Any:
    """The object behind a dotted path."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(path)


@cache
def names_of(path: str) -> set[str]:
    """Attributes of a class and of its instances: also those that only its methods assign."""
    owner = resolve(path)
    found = set(dir(owner))
    for base in inspect.getmro(owner):
        found |= set(getattr(base, "__annotations__", {}))
        if base.__module__.startswith("vllm."):
            found |= assigned_to_self(ast.parse(textwrap.dedent(inspect.getsource(base))))
    return found


def assigned_to_self(tree: ast.AST) -> set[str]:
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def top_level_names(path: Path) -> set[str]:
    """What a module defines or imports, inside of top-level conditions too."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef | Function):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found
