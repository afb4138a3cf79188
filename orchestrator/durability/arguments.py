"""The arguments of a flow: recorded as JSON, and read back to resume the run."""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.durability.values import ValueCodec, hints_of
from orchestrator.errors import ResultNotSerialisable, ResultUnreadable

_OMITTED = ""
"""Key of the names of given arguments that could not be recorded; no parameter has this name."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The positional and keyword arguments of a flow."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def dump(self, body: Callable[..., Any]) -> bytes:
        """All of them as a JSON object of parameter names and values, defaults included.

        Raises:
            ResultNotSerialisable: an argument, or a default, cannot be recorded.
            TypeError: the arguments do not fit the function's parameters.
        """
        named, refused = self._recorded(body)
        for error in refused.values():
            raise error
        return json.dumps(named).encode()

    def dump_partly(self, body: Callable[..., Any]) -> bytes | None:
        """The same without those that JSON cannot hold or that are secret (pydantic's SecretStr).

        Their names are recorded: a resume must be given them again. None if the arguments do not
        fit the function's parameters.
        """
        try:
            named, refused = self._recorded(body)
            given = inspect.signature(body).bind(*self.args, **self.kwargs).arguments
        except (TypeError, ValueError):
            return None
        omitted = [name for name in refused if name in given]  # the function supplies its defaults
        return json.dumps(named | ({_OMITTED: omitted} if omitted else {})).encode()

    def _recorded(
        self, body: Callable[..., Any]
    ) -> tuple[dict[str, Any], dict[str, ResultNotSerialisable]]:
        """Parameter names with values as JSON, and names of those that are refused with errors."""
        bound = inspect.signature(body).bind(*self.args, **self.kwargs)
        bound.apply_defaults()
        hints = hints_of(body)
        named: dict[str, Any] = {}
        refused: dict[str, ResultNotSerialisable] = {}
        for name, value in bound.arguments.items():
            try:
                named[name] = json.loads(_codec(body, name, hints).dump(value))
            except ResultNotSerialisable as error:
                refused[name] = error
        return named, refused

    @classmethod
    def load(
        cls,
        body: Callable[..., Any],
        data: bytes,
        *,
        given: Arguments | None = None,
        replaced: Mapping[str, Any] | None = None,
    ) -> Arguments:
        """The arguments that `dump` or `dump_partly` recorded.

        Args:
            given: those that were left out are taken from these.
            replaced: parameter names with values to use instead of what was recorded.
        Raises:
            ArgumentsNotRecorded: some were left out, and are not given.
            ResultUnreadable: the function's parameters, or their types, have changed.
            TypeError: a value is to replace that of a parameter which does not exist.
        """
        signature, hints = inspect.signature(body), hints_of(body)
        replaced = replaced or {}
        if unknown := replaced.keys() - signature.parameters.keys():
            names, known = ", ".join(sorted(unknown)), ", ".join(signature.parameters) or "none"
            raise TypeError(f"no parameter {names}: the flow's parameters are {known}")
        named = json.loads(data)
        omitted = [name for name in named.pop(_OMITTED, []) if name not in replaced]
        if gone := named.keys() - signature.parameters.keys() - replaced.keys():
            names = ", ".join(sorted(gone))
            raise ResultUnreadable(f"argument {names}", "the flow has no such parameter")
        bound = signature.bind_partial()
        for name, value in named.items():
            if name not in replaced:
                bound.arguments[name] = _codec(body, name, hints).load(json.dumps(value).encode())
        bound.arguments |= replaced
        if omitted:
            if given is None:
                raise ArgumentsNotRecorded(omitted)
            again = signature.bind(*given.args, **given.kwargs).arguments
            bound.arguments |= {name: again[name] for name in omitted if name in again}
        in_order = [name for name in signature.parameters if name in bound.arguments]
        bound.arguments = {name: bound.arguments[name] for name in in_order}
        return cls(bound.args, bound.kwargs)


class ArgumentsNotRecorded(Exception):
    """Some arguments of a run were not recorded; its argument is the list of their names."""


def _codec(body: Callable[..., Any], name: str, hints: Mapping[str, Any]) -> ValueCodec:
    return ValueCodec(f"argument {name}", _hint(body, name, hints))


def _hint(body: Callable[..., Any], name: str, hints: Mapping[str, Any]) -> Any:
    """The type of what is bound to a parameter: a tuple for *args, a dict for **kwargs."""
    hint = hints.get(name, Any)
    kind = inspect.signature(body).parameters[name].kind
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return types.GenericAlias(tuple, (hint, ...))
    if kind is inspect.Parameter.VAR_KEYWORD:
        return types.GenericAlias(dict, (str, hint))
    return hint
