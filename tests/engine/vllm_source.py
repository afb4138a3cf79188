"""Reads our engine's source and vLLM's: which names are there, and which of them we touch."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.places import ROOT

SOURCES = {
    path.stem: path
    for folder in ("serving/engine", "serving/sim/drive")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.stem != "__init__"
}
"""The modules that may name vLLM, by name."""


def imports_of_vllm() -> Iterator[tuple[str, str]]:
    """vLLM's module, and the name that a module of ours imports from it."""
    for path in SOURCES.values():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                for alias in node.names:
                    yield str(node.module), alias.name


def top_level_names(path: Path) -> set[str]:
    """What a module defines or imports, inside of top-level conditions too."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


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


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def attributes_in(module: str) -> dict[str, set[str]]:
    """Expression -> the attributes that a module of serving.engine touches of it."""
    touched: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree_of(SOURCES[module])):
        if isinstance(node, ast.Attribute):
            touched[ast.unparse(node.value)].add(node.attr)
    return touched
