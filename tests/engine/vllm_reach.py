"""What our engine's source touches of vLLM's objects, found by following them through the code.

An object is vLLM's if it is imported from there, annotated so, read from such an object, returned
by a call of one, or an element of one. Followed within functions, classes and modules, by name and
without regard to the order of statements: rather too much than too little.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import NamedTuple

from tests.engine.vllm_source import SOURCES, assigned_to_self, names_of, tree_of

SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"

AN_ENGINE = "llm"
"""By our convention an argument of this name is vLLM's engine, in lambdas too."""

PASSED_ON = {
    "aclosing",
    "enumerate",
    "getattr",
    "list",
    "max",
    "min",
    "next",
    "reversed",
    "set",
    "sorted",
} | {
    "tuple",
    "zip",
}
"""What gives vLLM's objects back if it is given any."""

PLAIN = {name for kind in (str, bytes, int, float, list, dict, set, tuple) for name in dir(kind)}
"""Attributes of Python's own values, which vLLM's objects hold as well."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.Lambda | ast.ClassDef | ast.Module


class Reached(NamedTuple):
    """An attribute that is touched of an object of vLLM's, in a module of ours."""

    module: str
    expression: str
    name: str


@cache
def derived() -> dict[str, set[str]]:
    """Our classes that derive from vLLM's, and the attributes that they bring themselves."""
    found: dict[str, set[str]] = {}
    for _ in range(3):  # a base may stand in a file that comes later
        for path in SOURCES.values():
            tree = tree_of(path)
            theirs = imported(tree)
            for node in ast.walk(tree):
                if not isinstance(node, ast.ClassDef):
                    continue
                bases = {ast.unparse(base) for base in node.bases}
                if bases & (theirs | found.keys()):
                    own = {each.name for each in node.body if isinstance(each, Function)}
                    inherited = [found[base] for base in bases if base in found]
                    found[node.name] = (own | assigned_to_self(node)).union(*inherited)
    return found


def imported(tree: ast.Module) -> set[str]:
    """What a module imports from vLLM, under the names that it has there."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm"
        for alias in node.names
    }


@cache
def reached(module: str) -> set[Reached]:
    """All that a module touches of vLLM's objects; `self` is one in classes that derive from it."""
    return reached_in(tree_of(SOURCES[module]), module)


def reached_in(tree: ast.Module, module: str) -> set[Reached]:
    """The same for any source."""
    return _Reach(tree, module).found


class _Reach:
    def __init__(self, tree: ast.Module, module: str) -> None:
        self.found: set[Reached] = set()
        self._module = module
        self._ours = set().union(*derived().values()) - names_of(SCHEDULER)
        self._types = imported(tree) | derived().keys()
        self._giving = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, Function) and self._names_a_type(node.returns)
        }
        self._fields: set[str] = set()  # expressions such as self._step, of any class
        for _ in range(3):  # until nothing new is found: names may be used before they are bound
            self._scope(tree, self._types)

    def _scope(self, scope: Scope, outer: set[str]) -> None:
        known = set(outer)
        if isinstance(scope, ast.ClassDef):
            known = outer - {"self"} | ({"self"} if scope.name in derived() else set())
        if isinstance(scope, Function | ast.Lambda):
            self._know_arguments(scope.args, known)
        for _ in range(3):
            for node in _within(scope):
                self._bind(node, known)
        for node in _within(scope):
            if isinstance(node, Scope):
                self._scope(node, known)
            elif isinstance(node, ast.Attribute) and self._is_touch(node, known):
                expression = ast.unparse(node.value)
                self.found.add(Reached(self._module, expression, node.attr))

    def _know_arguments(self, arguments: ast.arguments, known: set[str]) -> None:
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if each.arg == AN_ENGINE or self._names_a_type(each.annotation):
                known.add(each.arg)
            elif each.arg != "self":
                known.discard(each.arg)

    def _is_touch(self, node: ast.Attribute, known: set[str]) -> bool:
        return self._is_theirs(node.value, known) and node.attr not in PLAIN | self._ours

    def _bind(self, node: ast.AST, known: set[str]) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._take(target, node.value, known)
        elif isinstance(node, ast.AnnAssign):
            if self._names_a_type(node.annotation):
                self._mark(node.target, known)
            elif node.value is not None:
                self._take(node.target, node.value, known)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            self._take(node.target, node.iter, known)
        elif isinstance(node, ast.NamedExpr):
            self._take(node.target, node.value, known)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._take(node.optional_vars, node.context_expr, known)

    def _take(self, target: ast.expr, value: ast.expr, known: set[str]) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=True):
                self._take(one, other, known)
        elif self._is_theirs(value, known):
            self._mark(target, known)

    def _mark(self, target: ast.expr, known: set[str]) -> None:
        if isinstance(target, ast.Name):
            known.add(target.id)
        elif isinstance(target, ast.Attribute):
            self._fields.add(ast.unparse(target))
        elif isinstance(target, ast.Starred):
            self._mark(target.value, known)
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._mark(each, known)

    def _is_theirs(self, node: ast.expr, known: set[str]) -> bool:
        if isinstance(node, ast.Name):
            return node.id in known
        if isinstance(node, ast.Attribute):
            if ast.unparse(node) in self._fields:
                return True
            return self._is_theirs(node.value, known) and node.attr not in self._ours
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            if called in self._giving or self._is_theirs(node.func, known):
                return True
            if isinstance(node.func, ast.Name) and node.func.id in self._giving:
                return True
            passed_on = isinstance(node.func, ast.Name) and node.func.id in PASSED_ON
            return passed_on and any(self._is_theirs(each, known) for each in node.args)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return self._is_theirs(node.elt, known)
        parts = {
            ast.Subscript: ("value",),
            ast.Await: ("value",),
            ast.Starred: ("value",),
            ast.NamedExpr: ("value",),
            ast.IfExp: ("body", "orelse"),
            ast.BinOp: ("left", "right"),
        }.get(type(node), ())
        inner = [getattr(node, part) for part in parts] + list(getattr(node, "values", []))
        inner += node.elts if isinstance(node, ast.Tuple | ast.List) else []
        return any(self._is_theirs(each, known) for each in inner if each is not None)

    def _names_a_type(self, annotation: ast.expr | None) -> bool:
        if annotation is None:
            return False
        return any(
            isinstance(node, ast.Name) and node.id in self._types for node in ast.walk(annotation)
        )


def _within(scope: Scope) -> list[ast.AST]:
    """The nodes of a scope and the scopes directly within it, but not what those hold."""
    found: list[ast.AST] = []
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, Scope):
            waiting.extend(ast.iter_child_nodes(node))
    return found
