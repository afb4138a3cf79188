"""The promise of a request that no replica can serve in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.router.choose import as_best_effort
from serving.slo import TAG_PREFIX, OnLate, Slo, to_tags


def demoted(tags: Mapping[str, Any], slo: Slo) -> dict[str, Any]:
    """The tags of a request that no replica can serve in time, as best effort.

    One that its client wants dropped when it is late keeps its promise: the engine drops it.
    """
    if slo.on_late is OnLate.DROP:
        return dict(tags)
    others = {key: value for key, value in tags.items() if not key.startswith(TAG_PREFIX)}
    return others | to_tags(as_best_effort(slo))
