"""Tool calls by constrained decoding: the model writes JSON that is either one tool call or an
answer, and cannot write anything else.

It is for models without a format of their own for tool calls. An answer has one call at most:
models that need this fill a list of calls with repetitions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from serving.errors import InvalidRequest
from serving.generation import Message, ToolCall, ToolSpec
from serving.model_json import json_of
from serving.schema_transforms import bounded_schema, closed_schema, with_references_below

_ANSWER = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
_TOOL = re.compile(r'\s*\{\s*"tool"\s*:\s*"((?:[^"\\]|\\.)*)"\s*(?:,\s*"arguments"\s*:)?')
_CHARACTERS = re.compile(r'(?:[^"\\]|\\(?:[^u]|u[0-9a-fA-F]{4}))*', re.DOTALL)
_ESCAPE = re.compile(r'\\(["\\/bfnrtu]?)')  # without its letter it is none
_HIGH_SURROGATE_AT_END = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class Bounds(NamedTuple):
    """Limits on what a model writes, for small models, which may repeat themselves without end.

    They apply where a schema has none of its own.

    Attributes:
        answer_characters: of the answer's text.
        text_characters: of each other text.
        items: of each list.
    """

    answer_characters: int
    text_characters: int
    items: int


SMALL_MODEL_PARAMETERS = 2_000_000_000
"""Below it a model that writes JSON is kept within SMALL_BOUNDS."""

SMALL_BOUNDS = Bounds(answer_characters=1_000, text_characters=200, items=10)


def bounds_for(*, random_weights: bool, parameters: int | None) -> Bounds | None:
    """The bounds for a model; None for one that is large, or of unknown size.

    Args:
        parameters: number of its weights; None: not known.
    """
    is_small = random_weights or (parameters is not None and parameters < SMALL_MODEL_PARAMETERS)
    return SMALL_BOUNDS if is_small else None


class Reply(NamedTuple):
    """What a model wrote.

    Attributes:
        text: the answer; of one with a schema its JSON text.
        calls: at most one; its arguments are not JSON if it was cut off.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolProtocol:
    """The tools that a model may call in its reply.

    Attributes:
        must_call: the reply must be a tool call.
        must_answer: the reply must be an answer.
        answer: JSON schema of the answer; None: a text.
        bounds: None: what the tools and the answer have.
    """

    tools: Sequence[ToolSpec]
    must_call: bool = False
    must_answer: bool = False
    answer: Mapping[str, Any] | None = None
    bounds: Bounds | None = None

    def schema(self) -> dict[str, Any]:
        """The JSON schema of a reply.

        Schemas that refer to parts of themselves are among its `$defs`.
        """
        definitions: dict[str, Any] = {}
        shapes = []
        if not self.must_call:
            shapes.append(_object(answer=_placed(self._answer_schema(), "answer", definitions)))
        for index, tool in enumerate(() if self.must_answer else self.tools):
            arguments = self._bounded(_parameters(tool))
            placed = _placed(arguments, f"arguments{index}", definitions)
            shapes.append(_object(tool={"enum": [tool.name]}, arguments=placed))
        reply = shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
        return reply | {"$defs": definitions} if definitions else reply

    def instructions(self) -> str:
        """The instructions for the model's system message."""
        lines = ["Reply in JSON, with one object and nothing else.", "To call a tool:"]
        lines.append('{"tool": its name, "arguments": an object}')
        if not self.must_call:
            answer = "your text" if self.answer is None else "a value of this JSON schema: "
            answer += "" if self.answer is None else json.dumps(self._answer_schema())
            lines += ["To give your final answer:", f'{{"answer": {answer}}}']
        lines.append("The tools:")
        for tool in self.tools:
            description = f": {tool.description}" if tool.description else ""
            arguments = json.dumps(_parameters(tool))
            lines.append(f"- {tool.name}{description} (arguments: {arguments})")
        return "\n".join(lines)

    def turns(self, turns: Sequence[Message]) -> tuple[Message, ...]:
        """A chat with tool calls as texts, after the instructions.

        Not every chat template supports tools. So calls are written in the assistant's text, in the
        format that the instructions ask for, and results are turns of the user.
        """
        names = {call.id: call.name for turn in turns for call in turn.tool_calls}
        written = (_as_text(turn, names) for turn in turns)
        return merged((Message("system", self.instructions()), *written))

    def read(self, text: str, call_id: str) -> Reply:
        """A model's reply; one that was cut off is a partial answer, or a call that is not JSON.

        Args:
            call_id: of the tool call, if it is one.
        """
        try:
            value = json_of(text)
        except ValueError:
            return self._read_part(text, call_id)
        if isinstance(value, dict) and isinstance(value.get("tool"), str):
            arguments = json.dumps(value.get("arguments") or {})
            return Reply("", (ToolCall(call_id, value["tool"], arguments),))
        if not isinstance(value, dict) or "answer" not in value:
            return Reply(text)
        is_text = self.answer is None and isinstance(value["answer"], str)
        return Reply(value["answer"] if is_text else json.dumps(value["answer"]))

    def _read_part(self, text: str, call_id: str) -> Reply:
        if match := _TOOL.match(text):
            arguments = text[match.end() :].strip() or "{"  # cut off before them: no JSON either
            return Reply("", (ToolCall(call_id, match[1], arguments),))
        is_partial_json = text.lstrip().startswith("{") and self.answer is None
        return Reply(AnswerText().feed(text) if is_partial_json else text)

    def _answer_schema(self) -> Mapping[str, Any]:
        if self.answer is not None:
            return self._bounded(self.answer)
        limit = {} if self.bounds is None else {"maxLength": self.bounds.answer_characters}
        return {"type": "string", **limit}

    def _bounded(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.bounds is None:
            return schema
        bounded: Mapping[str, Any] = bounded_schema(
            schema, characters=self.bounds.text_characters, items=self.bounds.items
        )
        return bounded


class AnswerText:
    """The text of an answer, decoded from its JSON as it streams."""

    def __init__(self) -> None:
        self._json = ""
        self._shown = ""
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
        readable = _ESCAPE.sub(lambda match: match[0] if match[1] else r"\\", complete)
        text = str(json_of(f'"{readable}"'))
        self._shown += text
        return text

    def rest(self, text: str) -> str:
        """What the pieces did not show of the reply's text: all of it, if that is no JSON string.

        Args:
            text: of the whole reply, as it is read (`ToolProtocol.read`).
        """
        return text.removeprefix(self._shown) if text.startswith(self._shown) else ""


def protocol_of(
    tools: Sequence[Mapping[str, Any]], choice: Any = None, **options: Any
) -> ToolProtocol | None:
    """The protocol for OpenAI's `tools` and `tool_choice`; None if no tool may be called.

    Args:
        choice: "auto" or None; "any", "required" or True; "none"; a tool's name, or
            {"type": "function", "function": {"name": ...}}.
        options: `answer` and `bounds` of the protocol.
    Raises:
        InvalidRequest: it names none of the tools.
    """
    specs = [_spec_of(tool["function"]) for tool in tools]
    if not specs or choice == "none":
        return None
    if choice in (None, False, "auto"):
        return ToolProtocol(specs, **options)
    if choice in (True, "any", "required"):
        return ToolProtocol(specs, must_call=True, **options)
    name = choice["function"]["name"] if isinstance(choice, Mapping) else choice
    chosen = [spec for spec in specs if spec.name == name]
    if not chosen:
        raise InvalidRequest("chat", f"tool_choice={name!r} names none of the tools")
    return ToolProtocol(chosen, must_call=True, **options)


def tool_call_text(name: str, arguments: Any) -> str:
    """A tool call in the format in which the model writes it."""
    return json.dumps({"tool": name, "arguments": arguments}, default=str)


def result_text(name: str, text: str) -> str:
    """A tool's result as the text of a turn of the user.

    Args:
        name: of the tool; "" if it is not known.
    """
    return f"Result of {name or 'the tool'}:\n{text}"


def result_turn(name: str, text: str) -> Message:
    """A tool's result as a turn of the user."""
    return Message("user", result_text(name, text))


def merged(turns: Sequence[Message]) -> tuple[Message, ...]:
    """The turns with adjacent texts of one role as one turn, for chat templates."""
    alternating: list[Message] = []
    for turn in turns:
        last = alternating[-1] if alternating else None
        if last is not None and last.role == turn.role and _are_plain(last, turn):
            alternating[-1] = Message(turn.role, f"{last.content}\n\n{turn.content}".strip())
        else:
            alternating.append(turn)
    return tuple(alternating)


def _are_plain(*turns: Message) -> bool:
    return all(
        isinstance(turn.content, str) and not turn.tool_calls and not turn.tool_call_id
        for turn in turns
    )


def _as_text(turn: Message, names: Mapping[str, str]) -> Message:
    if turn.role == "tool":
        return result_turn(names.get(turn.tool_call_id, ""), turn.text)
    if not turn.tool_calls:
        return turn
    calls = [tool_call_text(call.name, _value(call.arguments)) for call in turn.tool_calls]
    content = "\n".join([turn.text, *calls] if turn.text else calls)
    return replace(turn, content=content, tool_calls=())


def _spec_of(function: Mapping[str, Any]) -> ToolSpec:
    description = str(function.get("description") or "")
    return ToolSpec(function["name"], description, function.get("parameters") or {})


def _value(arguments: str) -> Any:
    try:
        return json_of(arguments)
    except ValueError:
        return arguments


def _parameters(tool: ToolSpec) -> Any:
    """The schema of a tool's arguments, which are an object also if it does not say so."""
    return closed_schema({"type": "object"} | (dict(tool.parameters) or {"properties": {}}))


def _placed(schema: Any, name: str, definitions: dict[str, Any]) -> Any:
    """A schema for a place within another one, where its references find what they refer to."""
    pointer = f"#/$defs/{name}"
    moved = with_references_below(schema, pointer)
    if moved == schema:
        return schema
    definitions[name] = moved
    return {"$ref": pointer}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
