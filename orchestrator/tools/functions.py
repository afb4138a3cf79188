"""Functions as tools: described by their signature and docstring, arguments checked by pydantic."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.json_schema import PydanticJsonSchemaWarning

from orchestrator.durability.callables import applied
from orchestrator.durability.values import hints_of
from orchestrator.environment.workspace_tools import workspace_parameter
from orchestrator.execution.flow_spec import FlowSpec
from orchestrator.sdk.functions import acts_in_workspace, awaitable, name_of, records_itself
from orchestrator.sdk.steps import tool
from orchestrator.tools.docstrings import described
from serving.generation import ToolSpec

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ArgumentsInvalid(Exception):
    """Arguments do not fit a tool; the message is for the model."""


@runtime_checkable
class DescribedTool(Protocol):
    """A tool that brings its own description, such as one of an MCP server."""

    @property
    def spec(self) -> ToolSpec:
        """The tool as models see it."""
        ...

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise ArgumentsInvalid if the arguments do not fit."""
        ...

    async def __call__(self, /, **arguments: Any) -> Any:
        """Call the tool; within a run the call is recorded."""
        ...


AnyTool = Callable[..., Any] | DescribedTool
"""A function, async or plain; a tool, step or flow; or a tool of an MCP server."""


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A tool of an agent.

    Attributes:
        read: arguments from JSON -> keyword arguments; raises ArgumentsInvalid.
        call: calls the tool with them; within a run the call is recorded.
        acts_in_workspace: it cannot be called while another such tool is.
    """

    spec: ToolSpec
    read: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    call: Callable[..., Awaitable[Any]]
    acts_in_workspace: bool = False


def agent_tools(tools: Iterable[AnyTool]) -> dict[str, AgentTool]:
    """Tools by their names.

    Raises:
        ValueError: two have the same name, or one cannot be described; or it is one tool, and not
            several.
    """
    if callable(tools):
        raise ValueError(f"tools is {tools!r}; it must be a list of tools")
    by_name: dict[str, AgentTool] = {}
    for each in tools:
        made = agent_tool(each)
        if made.spec.name in by_name:
            raise ValueError(f"two tools have the name {made.spec.name!r}: rename one of them")
        by_name[made.spec.name] = made
    return by_name


def agent_tool(given: AnyTool) -> AgentTool:
    """A function, or a tool with a description of its own, as an agent's tool.

    A function that is no tool, step or flow becomes a tool with external effects: what it does is
    not known. The first part of its docstring describes it, and "Args:" its parameters.

    Raises:
        ValueError: models cannot call it: it has no proper name, a parameter without a name, or one
            with a type that pydantic cannot read.
    """
    if isinstance(given, DescribedTool):
        return AgentTool(given.spec, _checked_by(given), given.__call__)
    if isinstance(given, type) or not callable(given):
        raise ValueError(f"{given!r} cannot be a tool: give a function, or a tool of mcp_tools()")
    function = given.body if isinstance(given, FlowSpec) else given
    name = name_of(function).replace("-", "_")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a tool: use a function with a name of its own")
    documented, _, _ = applied(function, (), {})  # a partial's own docstring is that of its class
    summary, parameters = described(inspect.getdoc(documented) or "")
    arguments = _model_of(function, name, parameters)
    call = given if isinstance(given, FlowSpec) or records_itself(given) else tool(given)
    return AgentTool(
        ToolSpec(name, summary, _schema_of(arguments, name)),
        lambda values: _read_by(arguments, values),
        awaitable(call),
        acts_in_workspace(call),
    )


def _checked_by(given: DescribedTool) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    def read(values: Mapping[str, Any]) -> Mapping[str, Any]:
        given.check(values)
        return values

    return read


def _model_of(
    function: Callable[..., Any], name: str, descriptions: Mapping[str, str]
) -> type[BaseModel]:
    """A model with a field for each parameter.

    Its fields have names of their own, and the parameters' as aliases: a parameter may have the
    name of one of BaseModel's attributes.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be a tool: {error}") from error
    hints, fields = hints_of(function), {}
    own = workspace_parameter(function)
    for index, parameter in enumerate(parameters):
        if parameter.name == own:
            continue  # it gets the current workspace
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue  # a model has nothing to give there
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise ValueError(f"{name} cannot be a tool: give a list in place of *{parameter.name}")
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ValueError(f"{name} cannot be a tool: its parameter {parameter.name} has no name")
        details: dict[str, Any] = {"alias": parameter.name}
        if parameter.name in descriptions:
            details["description"] = descriptions[parameter.name]
        if parameter.default is not inspect.Parameter.empty:
            details["default"] = parameter.default
        fields[f"field{index}"] = (hints.get(parameter.name, Any), Field(**details))
    try:
        definitions: dict[str, Any] = dict(fields)
        return create_model(name, __config__=ConfigDict(extra="forbid"), **definitions)
    except Exception as error:  # pydantic's own, and what a type's own hooks raise
        reason = " ".join(str(error).split())
        raise ValueError(f"{name} cannot be a tool: {reason}") from error


def _schema_of(arguments: type[BaseModel], name: str) -> Mapping[str, Any]:
    """The JSON schema, without the titles that pydantic makes of names."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PydanticJsonSchemaWarning)  # a default is no JSON
            schema = arguments.model_json_schema()
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{name} cannot be a tool: {reason}") from error
    schema.pop("title", None)
    for part in schema.get("properties", {}).values():
        part.pop("title", None)
    return {"properties": {}} | schema


def _read_by(arguments: type[BaseModel], values: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        read = arguments.model_validate(values)
    except ValidationError as error:
        raise ArgumentsInvalid(_faults(error)) from None
    fields = arguments.model_fields
    return {
        fields[name].alias or name: getattr(read, name)
        for name in fields
        if name in read.model_fields_set
    }


def _faults(error: ValidationError) -> str:
    faults = []
    for fault in error.errors(include_url=False):
        where = ".".join(str(part) for part in fault["loc"])
        faults.append(f"{where}: {fault['msg']}" if where else fault["msg"])
    return "; ".join(faults)
