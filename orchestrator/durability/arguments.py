"""What a flow is called with, as it is recorded and read again."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.durability.values import ValueCodec, hints_of
from orchestrator.errors import ResultNotSerialisable


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a flow is called with."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def dump(self, body: Callable[..., Any]) -> bytes:
        """As they are recorded, defaults included; raises ResultNotSerialisable."""
        bound = inspect.signature(body).bind(*self.args, **self.kwargs)
        given = set(bound.arguments)
        bound.apply_defaults()
        hints = hints_of(body)
        named = {}
        for name, value in bound.arguments.items():
            codec = ValueCodec(f"argument {name}", _hint(body, name, hints))
            try:
                named[name] = json.loads(codec.dump(value))
            except ResultNotSerialisable:
                if name in given:
                    raise  # a default is what it was where it is not recorded
        return json.dumps(named).encode()

    def dump_if_possible(self, body: Callable[..., Any]) -> bytes | None:
        """The same; None where they cannot be recorded, and whoever resumes must give them."""
        try:
            return self.dump(body)
        except (ResultNotSerialisable, TypeError, ValueError):
            return None

    @classmethod
    def load(cls, body: Callable[..., Any], data: bytes) -> Arguments:
        """The arguments that were dumped; raises ResultUnreadable."""
        signature, hints = inspect.signature(body), hints_of(body)
        bound = signature.bind_partial()
        for name, value in json.loads(data).items():
            codec = ValueCodec(f"argument {name}", _hint(body, name, hints))
            bound.arguments[name] = codec.load(json.dumps(value).encode())
        return cls(bound.args, bound.kwargs)


def _hint(body: Callable[..., Any], name: str, hints: Mapping[str, Any]) -> Any:
    """A parameter's type, as its arguments are bound to it."""
    hint = hints.get(name, Any)
    kind = inspect.signature(body).parameters[name].kind
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return types.GenericAlias(tuple, (hint, ...))
    if kind is inspect.Parameter.VAR_KEYWORD:
        return types.GenericAlias(dict, (str, hint))
    return hint
