"""The version of a flow's code: a worker executes runs of its own version alone, unless told to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from blake3 import blake3

from orchestrator.execution.flow_spec import FlowSpec

UNKNOWN = "unknown"
"""The version of code without a file, as in a notebook."""

_DIGEST_BYTES = 6


def code_version_of(flow: FlowSpec[..., Any], configured: str | None) -> str:
    """The version of a flow's code.

    Args:
        configured: the setting `code_version`, such as a commit; None: a digest of the file that
            defines the flow. What that file imports does not count.
    """
    return configured or _file_digest(inspect.unwrap(flow.body))


def versions_of(flows: Iterable[FlowSpec[..., Any]], configured: str | None) -> dict[str, str]:
    """Name of each flow -> the version of its code."""
    return {flow.name: code_version_of(flow, configured) for flow in flows}


def _file_digest(body: Callable[..., Any]) -> str:
    try:
        file = inspect.getsourcefile(body)
        content = Path(file or "").read_bytes()
    except (OSError, TypeError):
        return UNKNOWN
    return blake3(content).hexdigest(_DIGEST_BYTES)
