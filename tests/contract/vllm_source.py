"""Reads our source code and vLLM's: the names that exist, and the names of vLLM that we use.

An object is taken to be vLLM's if it is an argument annotated with a class imported from vLLM, if
it is `self` in our scheduler, or if it has a name that our code uses for vLLM's scheduler.
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
"""Expressions for vLLM's scheduler in our code, outside our scheduler class."""

_BUILTIN_NAMES = {
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
    """Name imported by one of our modules -> its dotted path in vLLM."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm"
        for alias in node.names
    }


def attributes_in(path: Path) -> Iterator[ast.Attribute]:
    """Every `x.name` in a module, unless x is imported from a package other than vLLM."""
    of_vllm = imported_of_vllm(path).keys()
    foreign = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    } - of_vllm
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute):
            is_foreign = isinstance(node.value, ast.Name) and node.value.id in foreign
            if not is_foreign:
                yield node


def touched_by_owner(path: Path) -> Iterator[tuple[str, str]]:
    """Classes of vLLM and their attributes that a module uses, where its source shows the class."""
    of_vllm = imported_of_vllm(path)
    for function in ast.walk(tree_of(path)):
        if not isinstance(function, Function):
            continue
        owners = dict.fromkeys(_SCHEDULERS, SCHEDULER)
        if path == OUR_SCHEDULER:
            owners["self"] = owners["super()"] = SCHEDULER
        for argument in (*function.args.args, *function.args.kwonlyargs):
            annotation = argument.annotation and ast.unparse(argument.annotation).partition(" ")[0]
            if annotation in of_vllm:
                owners[argument.arg] = _defined_at(of_vllm[annotation])
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners:
                yield owners[ast.unparse(node.value)], node.attr


def _defined_at(path: str) -> str:
    """The dotted path of a class's definition, which may differ from that of its import."""
    defined = resolve(path)
    return f"{defined.__module__}.{defined.__qualname__}"


@cache
def our_names() -> frozenset[str]:
    """Every name that our packages define: functions, classes, attributes, fields."""
    names: set[str] = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(tree_of(path)):
                if isinstance(node, Function | ast.ClassDef):
                    names.add(node.name)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    names.add(node.target.id)
                elif isinstance(node, ast.Assign):
                    names.update(each.id for each in node.targets if isinstance(each, ast.Name))
            names |= assigned_to_self(tree_of(path))
    return frozenset(names | _BUILTIN_NAMES)


def resolve(path: str) -> Any:
    """The object behind a dotted path."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            resolved = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            resolved = getattr(resolved, part)
        return resolved
    raise ModuleNotFoundError(path)


@cache
def names_of(path: str) -> set[str]:
    """Attributes of a class and of its instances, including those that only methods assign."""
    owner = resolve(path)
    names = set(dir(owner))
    for base in inspect.getmro(owner):
        names |= set(getattr(base, "__annotations__", {}))
        if base.__module__.startswith("vllm."):
            names |= assigned_to_self(ast.parse(textwrap.dedent(inspect.getsource(base))))
    return names


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
    """Names that a module defines or imports, also inside conditions and functions."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef | Function):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
