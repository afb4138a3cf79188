"""Loads flows by reference, `module:name` or `file.py:name`, as recorded or given by a user."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from orchestrator.execution.flow_spec import FlowSpec
from serving.errors import InvalidReference
from serving.references import load_reference, reference_to


def load_flow(reference: str) -> FlowSpec[..., Any]:
    """The flow that a reference names; it may also name the function that the flow decorates.

    Raises:
        InvalidReference: it names nothing, cannot be imported, or is not a flow.
    """
    found = load_reference(reference)
    if isinstance(found, FlowSpec):
        return found
    module = vars(sys.modules.get(getattr(found, "__module__", ""), object))
    for value in module.values():  # a flow may have another name than its function
        if isinstance(value, FlowSpec) and inspect.unwrap(value.body) is found:
            return value
    flows = [name for name, value in module.items() if isinstance(value, FlowSpec)]
    advice = f"; flows in its module: {', '.join(flows)}" if flows else ": decorate it with @flow"
    raise InvalidReference(reference, f"it is not a flow{advice}")


def reference_of(body: Callable[..., Any]) -> str | None:
    """The reference of a flow's function; None if it is not defined at its module's top level."""
    body = inspect.unwrap(body)
    name = getattr(body, "__qualname__", "")
    return None if not name or "<" in name else reference_to(body, name)
