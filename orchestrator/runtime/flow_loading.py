"""Flows by reference, `module:name` or `file.py:name`: recorded with a run, or named by a user."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from orchestrator.execution.flow_spec import FlowSpec
from serving.errors import InvalidReference
from serving.references import load_reference, reference_to


def load_flow(reference: str) -> FlowSpec[..., Any]:
    """The flow that a reference names: the flow itself, or the function that it was made of.

    Raises:
        InvalidReference: it names nothing, cannot be imported, or is no flow.
    """
    found = load_reference(reference)
    if isinstance(found, FlowSpec):
        return found
    module = vars(sys.modules.get(getattr(found, "__module__", ""), object))
    for known in module.values():  # a flow may have another name than its function
        if isinstance(known, FlowSpec) and inspect.unwrap(known.body) is found:
            return known
    flows = [name for name, value in module.items() if isinstance(value, FlowSpec)]
    there_are = f"; flows there: {', '.join(flows)}" if flows else ": decorate it with @flow"
    raise InvalidReference(reference, f"it is no flow{there_are}")


def reference_of(body: Callable[..., Any]) -> str | None:
    """How a flow's function is found again; None if it has no name at its module's top level."""
    body = inspect.unwrap(body)
    name = getattr(body, "__qualname__", "")
    return None if not name or "<" in name else reference_to(body, name)
