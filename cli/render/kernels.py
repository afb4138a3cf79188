"""Describes a kernel: which attributes make past runs similar. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter

from orchestrator.durations import shown
from patterns.features import ATTRIBUTES
from patterns.kernel import StageKernel

_MAX_FACTOR = 1000.0  # larger factors are not distinguished
_PERCENT_BELOW = 1.1  # smaller factors are given as a percentage


def describe_kernel(kernel: StageKernel, *, is_fitted: bool) -> str:
    """Which attributes a kernel compares, how close they must be, and which it ignores."""
    names: dict[str | None, list[str]] = {}  # tolerance -> attributes; None: ignored
    for name, width in sorted(zip(ATTRIBUTES, kernel.bandwidths, strict=True), key=itemgetter(1)):
        names.setdefault(_tolerance(name, width), []).append(name.replace("_", " "))
    ignored = names.pop(None, [])
    compared = [f"{_enumerate(group)} {tolerance}" for tolerance, group in names.items()]
    if compared:
        text = f"runs are similar if their stages make the same calls with {_enumerate(compared)}"
        if ignored:
            text += f"; {_enumerate(ignored)} are ignored because they predict nothing"
    else:
        text = "all runs that make the same calls are equally similar; numbers are ignored"
    return text if is_fitted else f"not fitted yet: {text}"


def kernel_document(kernel: StageKernel) -> dict[str, float | None]:
    """Attribute -> bandwidth; None for infinity, so that it is JSON-safe."""
    return {
        name: None if math.isinf(width) else width
        for name, width in zip(ATTRIBUTES, kernel.bandwidths, strict=True)
    }


def _tolerance(attribute: str, bandwidth: float) -> str | None:
    """The difference between two values x that a bandwidth of log(1 + x) tolerates; None: any."""
    if math.isinf(bandwidth):
        return None
    if bandwidth > math.log(_MAX_FACTOR):
        return f"within a factor of {_MAX_FACTOR:,.0f} or more"
    factor, excess = math.exp(bandwidth), math.expm1(bandwidth)
    if attribute == "tool_seconds" and factor < 2:
        # log(1 + x) is almost linear for times below a second.
        if excess < 0.001:
            return "under 1 ms apart"
        return f"within {shown(excess)}{f' plus {excess:.0%}' if factor >= _PERCENT_BELOW else ''}"
    if factor < _PERCENT_BELOW:
        return "under 1% apart" if excess < 0.005 else f"within {excess:.0%}"
    return f"within a factor of {factor:.1f}" if factor < 10 else f"within a factor of {factor:.0f}"


def _enumerate(parts: Sequence[str]) -> str:
    """Items in a sentence: "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
