"""What `orchestrate run` can run: pipelines by name, and users' own flows by reference."""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import redirect_stdout
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from agents.pipeline import ENTRY_POINT_GROUP, Pipeline
from cli.errors import BadInput
from cli.terminal.output import warn
from orchestrator import Flow
from orchestrator.runtime.flow_loading import load_flow
from serving.references import absolute, is_reference, load_reference


def pipelines() -> dict[str, Pipeline[Any]]:
    """The installed pipelines by name, in alphabetical order.

    Those that cannot be imported are left out, with a warning.
    """
    loaded = {}
    for name in sorted(_entries()):
        try:
            loaded[name] = _loaded(name)
        except BadInput as error:
            warn(str(error))
    return loaded


def find_pipeline(name: str) -> Pipeline[Any] | None:
    """The pipeline of a name or of a reference, `file.py:flow` or `module:flow`.

    Returns:
        None if the name is unknown and written like no reference.
    Raises:
        BadInput: the pipeline's package cannot be imported, or holds none.
        InvalidReference: the reference names no flow.
    """
    if name in _entries():
        return _loaded(name)
    if name.endswith(".py") and Path(name).is_file():
        defined = load_reference(absolute(f"{name}:__dict__"))
        flows = [f"{name}:{each}" for each, value in defined.items() if isinstance(value, Flow)]
        raise BadInput(f"{name} is a file; name a flow in it: {', '.join(flows) or 'it has none'}")
    if not is_reference(name):
        return None
    with redirect_stdout(sys.stderr):  # what the module prints is no part of the command's output
        flow = load_flow(absolute(name))
    assert isinstance(flow, Flow), "users make flows by @flow"
    return Pipeline(flow=flow)


def pipeline_of_flow(flow_name: str) -> Pipeline[Any] | None:
    """The installed pipeline that records its runs under this name; None if there is none."""
    return next((each for each in pipelines().values() if each.flow.name == flow_name), None)


def _entries() -> dict[str, list[EntryPoint]]:
    """Name -> its entry points: several if installed packages disagree."""
    entries: defaultdict[str, list[EntryPoint]] = defaultdict(list)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if all(entry.value != other.value for other in entries[entry.name]):
            entries[entry.name].append(entry)
    return entries


def _loaded(name: str) -> Pipeline[Any]:
    entry, *others = _entries()[name]
    if others:
        values = " and ".join(each.value for each in (entry, *others))
        raise BadInput(f"pipeline {name} is installed twice, as {values}: remove one package")
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:  # whatever the package does as it is imported
        reason = f"pipeline {name} ({entry.value}) cannot be imported: {error!r}"
        raise BadInput(reason) from error
    if isinstance(found, Flow):
        return Pipeline(flow=found)
    if isinstance(found, Pipeline):
        return found
    raise BadInput(f"pipeline {name} ({entry.value}) is neither a Pipeline nor a Flow")
