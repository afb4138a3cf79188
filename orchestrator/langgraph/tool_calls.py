"""Tool calls by constrained decoding: the model writes JSON that is either one tool call or an
answer, and cannot write anything else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.messages.tool import invalid_tool_call, tool_call

from orchestrator.sdk.schemas import closed_schema, with_references_below
from serving.errors import InvalidRequest
from serving.generation import Completion

_ANSWER = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
_TOOL = re.compile(r'\s*\{\s*"tool"\s*:\s*"((?:[^"\\]|\\.)*)"\s*(?:,\s*"arguments"\s*:)?')
_CHARACTERS = re.compile(r'(?:[^"\\]|\\(?:[^u]|u[0-9a-fA-F]{4}))*', re.DOTALL)
_HIGH_SURROGATE_AT_END = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


@dataclass(frozen=True, slots=True)
class ToolProtocol:
    """The tools that a model may call in its reply.

    Attributes:
        functions: in OpenAI's format, each with name, description and parameters.
        must_call: the reply must be a tool call.
    """

    functions: Sequence[Mapping[str, Any]]
    must_call: bool = False

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]], choice: Any = None) -> ToolProtocol | None:
        """The protocol for OpenAI's `tools` and `tool_choice`; None if no tool may be called.

        Args:
            choice: "auto" or None; "any", "required" or True; "none"; a tool's name, or
                {"type": "function", "function": {"name": ...}}.
        Raises:
            InvalidRequest: it names none of the tools.
        """
        functions = [tool["function"] for tool in tools]
        if not functions or choice == "none":
            return None
        if choice in (None, False, "auto"):
            return cls(functions)
        if choice in (True, "any", "required"):
            return cls(functions, must_call=True)
        name = choice["function"]["name"] if isinstance(choice, Mapping) else choice
        chosen = [function for function in functions if function["name"] == name]
        if not chosen:
            raise InvalidRequest("chat", f"tool_choice={name!r} names none of the tools")
        return cls(chosen, must_call=True)

    def schema(self) -> dict[str, Any]:
        """The JSON schema of a reply.

        Parameters that refer to parts of themselves are among its `$defs`.
        """
        shapes, definitions = [], {}
        for index, function in enumerate(self.functions):
            parameters = _parameters(function)
            name = f"arguments{index}"
            pointer = f"#/$defs/{name}"
            moved = with_references_below(parameters, pointer)
            if moved != parameters:
                definitions[name] = moved
                parameters = {"$ref": pointer}
            shapes.append(_object(tool={"enum": [function["name"]]}, arguments=parameters))
        if not self.must_call:
            shapes.insert(0, _object(answer={"type": "string"}))
        reply = shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
        return reply | {"$defs": definitions} if definitions else reply

    def instructions(self) -> str:
        """The instructions for the model's system message."""
        lines = ["Reply in JSON, with one object and nothing else.", "To call a tool:"]
        lines.append('{"tool": its name, "arguments": an object}')
        if not self.must_call:
            lines += ["To give your final answer:", '{"answer": your text}']
        lines.append("The tools:")
        for function in self.functions:
            description = f": {function['description']}" if function.get("description") else ""
            arguments = json.dumps(_parameters(function))
            lines.append(f"- {function['name']}{description} (arguments: {arguments})")
        return "\n".join(lines)

    def reply(self, completion: Completion) -> AIMessage:
        """A model's reply as a message; a reply cut off is a partial answer or an invalid call."""
        call_id = f"call-{completion.request_id}"
        try:
            value = json.loads(completion.text, strict=False)
        except ValueError as error:
            if match := _TOOL.match(completion.text):
                rest = completion.text[match.end() :]
                invalid = invalid_tool_call(name=match[1], args=rest, id=call_id, error=str(error))
                return AIMessage("", invalid_tool_calls=[invalid])
            is_partial_json = completion.text.lstrip().startswith("{")
            text = AnswerText().feed(completion.text) if is_partial_json else completion.text
            return AIMessage(text)
        if isinstance(value, dict) and isinstance(value.get("tool"), str):
            arguments = value.get("arguments") or {}
            call = tool_call(name=value["tool"], args=arguments, id=call_id)
            return AIMessage("", tool_calls=[call])
        answer = value.get("answer") if isinstance(value, dict) else None
        return AIMessage(answer if isinstance(answer, str) else completion.text)


class AnswerText:
    """The text of an answer, decoded from its JSON as it streams."""

    def __init__(self) -> None:
        self._json = ""
        self._num_decoded: int | None = None  # characters; None before the text begins

    def feed(self, piece: str) -> str:
        """Add a piece of the JSON; returns the text that it adds, possibly none."""
        self._json += piece
        if self._num_decoded is None:
            start = _ANSWER.match(self._json)
            if start is None:
                return ""
            self._num_decoded = start.end()
        characters = _CHARACTERS.match(self._json, self._num_decoded)
        assert characters is not None, "the pattern also matches the empty string"
        complete = _HIGH_SURROGATE_AT_END.sub("", characters[0])
        self._num_decoded += len(complete)
        return str(json.loads(f'"{complete}"', strict=False))


def tool_call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A tool call in the format in which the model writes it."""
    return json.dumps({"tool": name, "arguments": arguments}, default=str)


def _parameters(function: Mapping[str, Any]) -> Any:
    return closed_schema(function.get("parameters") or {"type": "object", "properties": {}})


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
