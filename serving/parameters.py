"""Parameters of what is chosen by name: which ones a function takes, and which values."""

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
    """Refuse what a function does not take: its parameters are those that it takes by name only.

    Args:
        what: is chosen ("policy"), and `name` which of them.
        limits: the least and the most of parameters, by name.
    Raises:
        InvalidEngineConfig: an unknown parameter, or a value of another type or out of its limits.
    """
    accepted = {
        parameter.name: parameter.default
        for parameter in inspect.signature(chosen).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    for given, value in params.items():
        if given not in accepted:
            told = f"takes {', '.join(accepted) or 'no parameter'}"
            raise InvalidEngineConfig(what, f"{name}({given}=...)", told)
        if told := _fault(value, accepted[given], limits.get(given)):
            raise InvalidEngineConfig(what, f"{name}({given}={value!r})", f"{given} must be {told}")


def _fault(value: Parameter, default: Parameter, limits: tuple[float, float] | None) -> str:
    """What a value must be and is not; empty where it fits."""
    kind = type(default)
    if kind in (bool, str):
        told = "true or false" if kind is bool else "a word"
        return "" if type(value) is kind else told
    is_number = type(value) is int or (kind is float and type(value) is float)
    told = "a number" if kind is float else "a whole number"
    if limits is not None:
        told = f"{told} from {limits[0]:g} to {limits[1]:g}"
    if not is_number or not math.isfinite(value):  # type: ignore[arg-type]
        return told
    return "" if limits is None or limits[0] <= float(value) <= limits[1] else told
