"""A pipeline: a flow as `orchestrate run NAME` offers it, with how its result is shown.

A package adds one by an entry point of the group `orchestrate.pipelines` in its pyproject.toml:

    [project.entry-points."orchestrate.pipelines"]
    deep-research = "agents.deep_research.command:PIPELINE"

The flow's parameters become the command's options: see `cli.work.flow_arguments`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from orchestrator import Flow, RunResult
from serving.generation import EngineInfo

ENTRY_POINT_GROUP = "orchestrate.pipelines"

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Generic[R]):
    """A flow, and what a command needs to know beside its signature.

    Attributes:
        argument: the parameter that is given without an option's name; None: none is.
        example: a command line, shown by --help.
        expected_stages: from the arguments, how many stages a run will have; by default as the
            flow says.
        to_markdown: the result as people read it; by default text as it is, anything else as JSON.
        to_json: the result as one JSON-ready object; by default the value with the run's facts.
        file_name: of the files that `--out` saves, without suffix.
    """

    flow: Flow[..., R]
    argument: str | None = None
    example: str = ""
    expected_stages: Callable[[Mapping[str, Any]], int] | None = None
    to_markdown: Callable[[RunResult[R], EngineInfo], str] | None = None
    to_json: Callable[[RunResult[R], EngineInfo], object] | None = None
    file_name: str = "result"
