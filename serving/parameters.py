"""Check of the parameters of a policy or router that is chosen by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from serving.errors import InvalidEngineConfig

Parameter = bool | int | float | str
Limits = Mapping[str, tuple[float, float]]


def check_parameters(
    what: str,
    name: str,
    chosen: Callable[..., object],
    params: Mapping[str, Parameter],
    limits: Limits = MappingProxyType({}),
) -> None:
    """Check parameters against the keyword-only arguments of the function that takes them.

    Args:
        what: the kind of the function, such as "policy", for the message.
        name: the function's name, for the message.
        chosen: the function.
        limits: parameter -> (minimum, maximum).
    Raises:
        InvalidEngineConfig: an unknown parameter, or a value of a wrong type or outside its limits.
    """
    accepted = {
        parameter.name: parameter.default
        for parameter in inspect.signature(chosen).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    for key, value in params.items():
        if key not in accepted:
            reason = f"unknown parameter; known: {', '.join(accepted) or 'none'}"
            raise InvalidEngineConfig(what, f"{name}({key}=...)", reason)
        if expected := _expected_unless_valid(value, accepted[key], limits.get(key)):
            reason = f"{key} must be {expected}"
            raise InvalidEngineConfig(what, f"{name}({key}={value!r})", reason)


def _expected_unless_valid(
    value: Parameter, default: Parameter, limits: tuple[float, float] | None
) -> str:
    """A description of the values that the parameter accepts; empty if this value is one."""
    kind = type(default)
    if kind in (bool, str):
        expected = "true or false" if kind is bool else "a string"
        return "" if type(value) is kind else expected
    is_number = type(value) is int or (kind is float and type(value) is float)
    expected = "a number" if kind is float else "a whole number"
    if limits is not None:
        expected = f"{expected} from {limits[0]:g} to {limits[1]:g}"
    if not is_number or not math.isfinite(value):  # type: ignore[arg-type]
        return expected
    return "" if limits is None or limits[0] <= float(value) <= limits[1] else expected
