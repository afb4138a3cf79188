"""A flow's signature -> options of a command, and what was typed -> the flow's arguments.

| parameter's type | option |
|---|---|
| text, numbers, dates, paths, enums, Literal | `--name VALUE` |
| bool | `--name / --no-name` |
| list, set or tuple of any length, of these | `--name VALUE --name VALUE` |
| pydantic models, dataclasses, dicts, anything else | `--name JSON`, or `--name @FILE` to read it |

Types, limits and help come from the annotations (pydantic's); help also from the docstring's Args.
A parameter without an annotation has the type of its default, or is a text.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.fields import FieldInfo

from cli.errors import BadInput
from orchestrator import Flow

_METAVARS = {"integer": "N", "number": "X", "string": "TEXT"}
_FORMATS = {
    "date": "DATE",
    "date-time": "TIME",
    "duration": "DURATION",
    "directory-path": "DIR",
    "file-path": "FILE",
    "path": "PATH",
    "uuid": "UUID",
    "uri": "URL",
}


class Shape(Enum):
    """How a parameter is typed on a command line."""

    TEXT = "text"
    FLAG = "flag"
    REPEATED = "repeated"
    JSON = "json"


@dataclass(frozen=True, eq=False)
class FlowParameter:
    """One parameter of a flow.

    Attributes:
        option: its name on the command line, without dashes; it differs from `name` where an
            option of the command itself has that name.
        annotation: its type, with pydantic's metadata; Any without one.
        default: `inspect.Parameter.empty` if it must be given.
        description: what it is, in the docstring's words.
    """

    name: str
    option: str
    annotation: Any
    default: Any
    description: str

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    @cached_property
    def shape(self) -> Shape:
        """How it is typed."""
        schema = self._schema
        kinds = _kinds_in(schema, schema.get("$defs", {}))
        if kinds == {"boolean"} or kinds == {"boolean", "null"}:
            return Shape.FLAG
        items = _items_in(schema)
        if (
            kinds <= {"array", "null"}
            and items
            and _kinds_in(items, schema.get("$defs", {})) <= (_METAVARS.keys())
        ):
            return Shape.REPEATED
        return Shape.JSON if kinds & {"array", "object", "any"} else Shape.TEXT

    @property
    def metavar(self) -> str:
        """What stands for its value in the help."""
        if self.shape is Shape.JSON:
            return "JSON|@FILE"
        schema = _items_in(self._schema) or self._schema
        choices = _choices_in(schema, self._schema.get("$defs", {}))
        if choices:
            return "|".join(choices)
        return _FORMATS.get(
            str(schema.get("format")), _METAVARS.get(str(schema.get("type")), "TEXT")
        )

    @property
    def help(self) -> str:
        """What it is, and its limits."""
        text = str(self._schema.get("description", self.description))
        least, most = self._schema.get("minimum"), self._schema.get("maximum")
        if least is not None and most is not None:
            return f"{text} From {least} to {most}.".strip()
        return f"{text} At least {least}.".strip() if least is not None else text

    @property
    def typed_default(self) -> str | bool | None:
        """The default as one would type it; None where it is shown as the flow has it."""
        if self.shape is Shape.FLAG:
            return None if self.default is None else bool(self.default)
        if self.default is None or self.shape is not Shape.TEXT:
            return None
        return str(self._dumped_default)

    @property
    def shown_default(self) -> str | None:
        """The default in the help, where it is none of `typed_default`; None without one."""
        if self.is_required or self.default is None or self.typed_default is not None:
            return None
        dumped = self._dumped_default
        if self.shape is Shape.REPEATED:
            return ", ".join(map(str, dumped)) or None
        return json.dumps(dumped)

    @property
    def _dumped_default(self) -> Any:
        return self._adapter.dump_python(self.default, mode="json", warnings=False)

    def read(self, typed: str | bool | list[str]) -> Any:
        """The argument that was typed.

        Raises:
            BadInput: it does not fit the parameter's type or limits, or its file cannot be read.
        """
        shown = typed if isinstance(typed, str) else json.dumps(typed)
        try:
            if self.shape is Shape.JSON and isinstance(typed, str):
                text = _file_content(typed[1:]) if typed.startswith("@") else typed
                return self._adapter.validate_json(text)
            return self._adapter.validate_python(typed)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, each['loc']))}: {each['msg']}" if each["loc"] else each["msg"]
                for each in error.errors(include_url=False)
            )
            raise BadInput(f"--{self.option} {shown[:200]}: {problems}") from None

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(self.annotation)
        except PydanticSchemaGenerationError as error:
            reason = f"{self.name} has a type that pydantic cannot read: {self.annotation!r}"
            raise BadInput(reason) from error

    @cached_property
    def _schema(self) -> dict[str, Any]:
        try:
            return self._adapter.json_schema()
        except PydanticInvalidForJsonSchema:  # of a type that reads itself from a text
            return {"type": "string"}


def parameters_of(flow: Flow[..., Any], *, taken: Collection[str]) -> list[FlowParameter]:
    """The parameters of a flow, in their order.

    Args:
        taken: names of options that the command has itself.
    Raises:
        BadInput: the flow takes arguments without names, or an annotation cannot be resolved.
    """
    body = inspect.unwrap(flow.body)
    try:
        hints = get_type_hints(body, include_extras=True)
    except Exception as error:  # names that exist for type checkers alone
        raise BadInput(f"flow {flow.name}: its annotations cannot be resolved: {error}") from error
    described = _descriptions_in(inspect.getdoc(body) or "")
    found: list[FlowParameter] = []
    for parameter in inspect.signature(body).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise BadInput(f"flow {flow.name} takes *{parameter.name}: give each argument a name")
        if isinstance(parameter.default, FieldInfo):
            raise BadInput(
                f"flow {flow.name}: {parameter.name} = Field(...) has no default for the flow"
                f" itself; write {parameter.name}: Annotated[TYPE, Field(...)] = DEFAULT"
            )
        option = parameter.name.replace("_", "-").strip("-")
        option = f"arg-{option}" if option in taken else option
        same = next((each.name for each in found if each.option == option), None)
        if same is not None:
            names = f"{same} and {parameter.name}"
            raise BadInput(f"flow {flow.name}: {names} would both be --{option}: rename one")
        found.append(
            FlowParameter(
                name=parameter.name,
                option=option,
                annotation=hints.get(parameter.name, _type_of(parameter.default)),
                default=parameter.default,
                description=described.get(parameter.name, ""),
            )
        )
    return found


def named_arguments(flow: Flow[..., Any], typed: Sequence[str]) -> dict[str, Any]:
    """Arguments of a flow that were typed as NAME=VALUE, by the names of its parameters.

    A parameter that takes several values is typed several times.

    Raises:
        BadInput: the flow has no such parameter, or the value does not fit.
    """
    parameters = {each.option: each for each in parameters_of(flow, taken=())} if typed else {}
    values: dict[str, list[str]] = {}
    for each in typed:
        name, equals, value = each.partition("=")
        option = name.strip("-").replace("_", "-")
        if not equals or option not in parameters:
            known = ", ".join(f"{option}=" for option in parameters) or "none"
            raise BadInput(f"{each}: give arguments as NAME=VALUE; flow {flow.name} has {known}")
        values.setdefault(option, []).append(value)
    arguments: dict[str, Any] = {}
    for option, texts in values.items():
        parameter = parameters[option]
        if parameter.shape is not Shape.REPEATED and len(texts) > 1:
            raise BadInput(f"{option}= is given twice, and takes one value")
        read: str | list[str] = texts if parameter.shape is Shape.REPEATED else texts[0]
        arguments[parameter.name] = parameter.read(read)
    return arguments


def _type_of(default: object) -> Any:
    """The type of a parameter without an annotation."""
    return str if default is inspect.Parameter.empty or default is None else type(default)


def summary_of(flow: Flow[..., Any]) -> str:
    """What a flow does: the first paragraph of its docstring."""
    return (inspect.getdoc(inspect.unwrap(flow.body)) or "").partition("\n\n")[0]


def bound(flow: Flow[..., Any], values: Mapping[str, Any]) -> inspect.BoundArguments:
    """The values as a call of the flow has them, by position or by name."""
    signature = inspect.signature(inspect.unwrap(flow.body))
    call = signature.bind_partial()
    call.arguments.update({name: values[name] for name in signature.parameters if name in values})
    call.apply_defaults()
    return call


def _items_in(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema of the items of a list, also of one that may be null; None for anything else."""
    parts = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    return parts[0].get("items") if len(parts) == 1 and "prefixItems" not in parts[0] else None


def _kinds_in(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> set[str]:
    """The JSON types that a value of a schema may have; "any" where it says nothing."""
    if "$ref" in schema:
        return _kinds_in(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return set().union(*(_kinds_in(each, definitions) for each in schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        return {"string"}
    return {str(schema.get("type", "any"))}


def _choices_in(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[str]:
    if "$ref" in schema:
        return _choices_in(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return [str(each) for each in schema.get("enum", ())]


def _file_content(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"@{name} cannot be read: {reason}") from error


def _descriptions_in(docstring: str) -> dict[str, str]:
    """Parameter -> what a Google-style docstring says of it under `Args:`."""
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)*)", docstring, re.MULTILINE)
    found: dict[str, str] = {}
    name = ""
    for line in section.group(1).splitlines() if section else ():
        started = re.match(r"^ {4}(\w+)[^:]*: (.*)", line)
        if started:
            name, found[started.group(1)] = started.groups()
        elif name and line.strip():
            found[name] += " " + line.strip()
    return {each: text[:1].upper() + text[1:] for each, text in found.items()}
