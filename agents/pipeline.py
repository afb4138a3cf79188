"""A pipeline: a flow for `orchestrate run NAME`, with the formats of its result.

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
    """A flow, and what its command needs in addition to the flow's signature.

    Attributes:
        argument: the parameter that is a positional argument of the command; None: none is.
        example: a command line, shown by --help.
        check: raises a named error if the run's arguments ask for something impossible, such as a
            file that does not exist; called before anything slow begins.
        expected_stages: the run's arguments -> number of its stages; by default the flow's own.
        to_markdown: the result for people; by default a text as it is, other values as JSON.
        to_json: the result as a JSON object; by default the value with data about the run.
        to_files: further files that `--out` saves: what follows the file name -> text.
        file_name: of the files that `--out` saves, without suffix.
    """

    flow: Flow[..., R]
    argument: str | None = None
    example: str = ""
    check: Callable[[Mapping[str, Any]], None] | None = None
    expected_stages: Callable[[Mapping[str, Any]], int] | None = None
    to_markdown: Callable[[RunResult[R], EngineInfo], str] | None = None
    to_json: Callable[[RunResult[R], EngineInfo], object] | None = None
    to_files: Callable[[RunResult[R], EngineInfo], Mapping[str, str]] | None = None
    file_name: str = "result"
