"""The arguments of a flow: recorded as JSON, and read back to resume the run."""

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
    """The positional and keyword arguments of a flow."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def dump(self, body: Callable[..., Any]) -> bytes:
        """The recorded form: a JSON object of parameter names and values, defaults included.

        Raises:
            ResultNotSerialisable: an argument that the caller gave cannot be recorded.
            TypeError: the arguments do not fit the function's parameters.
        """
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
                    raise  # a default is left out: on resume the function supplies it again
        return json.dumps(named).encode()

    def dump_if_possible(self, body: Callable[..., Any]) -> bytes | None:
        """The same; None if they cannot be recorded. A resume must then be given them again."""
        try:
            return self.dump(body)
        except (ResultNotSerialisable, TypeError, ValueError):
            return None

    @classmethod
    def load(cls, body: Callable[..., Any], data: bytes) -> Arguments:
        """The arguments that `dump` recorded; raises ResultUnreadable."""
        signature, hints = inspect.signature(body), hints_of(body)
        bound = signature.bind_partial()
        for name, value in json.loads(data).items():
            codec = ValueCodec(f"argument {name}", _hint(body, name, hints))
            bound.arguments[name] = codec.load(json.dumps(value).encode())
        return cls(bound.args, bound.kwargs)


def _hint(body: Callable[..., Any], name: str, hints: Mapping[str, Any]) -> Any:
    """The type of what is bound to a parameter: a tuple for *args, a dict for **kwargs."""
    hint = hints.get(name, Any)
    kind = inspect.signature(body).parameters[name].kind
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return types.GenericAlias(tuple, (hint, ...))
    if kind is inspect.Parameter.VAR_KEYWORD:
        return types.GenericAlias(dict, (str, hint))
    return hint
