"""A kernel in words: which attributes make past runs count as alike. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter

from orchestrator.durations import shown
from patterns.features import ATTRIBUTES
from patterns.kernel import StageKernel

_BEYOND = 1000.0  # a factor that is as good as any
_PERCENT_BELOW = 1.1  # factors that are told as a percentage


def kernel_in_words(kernel: StageKernel, *, is_fitted: bool) -> str:
    """Which attributes make past runs count as alike, and within what."""
    names: dict[str | None, list[str]] = {}
    for name, width in sorted(zip(ATTRIBUTES, kernel.bandwidths, strict=True), key=itemgetter(1)):
        names.setdefault(_reach(name, width), []).append(name.replace("_", " "))
    ignored = names.pop(None, [])
    compared = [f"{_listed(alike)} {reach}" for reach, alike in names.items()]
    if compared:
        told = f"runs are alike whose stages make the same calls with {_listed(compared)}"
        if ignored:
            told += f"; {_listed(ignored)} are ignored, as they foretell nothing"
    else:
        told = "all runs that make the same calls count alike, whatever their numbers"
    return told if is_fitted else f"not fitted yet: {told}"


def kernel_document(kernel: StageKernel) -> dict[str, float | None]:
    """The bandwidth of each attribute, JSON-safe: None where it is infinite."""
    return {
        name: None if math.isinf(width) else width
        for name, width in zip(ATTRIBUTES, kernel.bandwidths, strict=True)
    }


def _reach(attribute: str, bandwidth: float) -> str | None:
    """How far apart two values may be for a bandwidth of log(1 + x); None: infinitely far."""
    if math.isinf(bandwidth):
        return None
    if bandwidth > math.log(_BEYOND):
        return f"within a factor of {_BEYOND:,.0f} or more"
    factor, excess = math.exp(bandwidth), math.expm1(bandwidth)
    if attribute == "tool_seconds" and factor < 2:
        # Below a second a logarithm of 1 + x hardly bends.
        if excess < 0.001:
            return "under 1 ms apart"
        return f"within {shown(excess)}{f' plus {excess:.0%}' if factor >= _PERCENT_BELOW else ''}"
    if factor < _PERCENT_BELOW:
        return "under 1% apart" if excess < 0.005 else f"within {excess:.0%}"
    return f"within a factor of {factor:.1f}" if factor < 10 else f"within a factor of {factor:.0f}"


def _listed(parts: Sequence[str]) -> str:
    """Things in a sentence."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
