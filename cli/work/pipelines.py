"""What `orchestrate run` can run: pipelines by name, and users' own flows by reference."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from agents.pipeline import ENTRY_POINT_GROUP, Pipeline
from cli.errors import BadInput
from orchestrator import Flow
from orchestrator.runtime.flow_loading import load_flow
from serving.references import absolute, is_reference


def pipeline_names() -> list[str]:
    """The names of all installed pipelines, in alphabetical order."""
    return sorted(_entries())


def find_pipeline(name: str) -> Pipeline[Any] | None:
    """The pipeline of a name or of a reference, `file.py:flow` or `module:flow`.

    Returns:
        None if the name is unknown and written like no reference.
    Raises:
        BadInput: the pipeline's package cannot be imported, or holds none.
        InvalidReference: the reference names no flow.
    """
    entry = _entries().get(name)
    if entry is not None:
        return _loaded(entry)
    if not is_reference(name):
        return None
    flow = load_flow(absolute(name))
    assert isinstance(flow, Flow), "users make flows by @flow"
    return Pipeline(flow=flow)


def pipeline_of_flow(flow_name: str) -> Pipeline[Any] | None:
    """The installed pipeline that records its runs under this name; None if there is none."""
    pipelines = (_loaded(entry) for entry in _entries().values())
    return next((each for each in pipelines if each.flow.name == flow_name), None)


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _loaded(entry: EntryPoint) -> Pipeline[Any]:
    try:
        found = entry.load()
    except Exception as error:  # whatever the package does as it is imported
        reason = f"pipeline {entry.name} ({entry.value}) cannot be imported: {error!r}"
        raise BadInput(reason) from error
    if isinstance(found, Flow):
        return Pipeline(flow=found)
    if isinstance(found, Pipeline):
        return found
    raise BadInput(f"pipeline {entry.name} ({entry.value}) is neither a Pipeline nor a Flow")
