"""Tool calls in JSON at the server, for models without a format of their own.

vLLM asks a tool parser for the constraint of a request, and gives it the answer to read. This one
constrains an answer to JSON with either the text or one call, whatever `tool_choice` is, in chat
completions and responses. It imports vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
    structured_outputs_from_response_format,
)
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError
from vllm.renderers.chat_utils import make_tool_call_id
from vllm.sampling_params import StructuredOutputsParams
from vllm.tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager
from vllm.tool_parsers.utils import get_function_tools

from serving import generation
from serving.engine.server.slo_middleware import record_tool_schema
from serving.engine.server.tools_as_text import tools_as_text
from serving.engine.structured_output.bounds import json_fault
from serving.errors import InvalidRequest
from serving.model_json import arguments_of
from serving.schema_bound import AnswerText, Bounds, Reply, ToolProtocol, protocol_of

if TYPE_CHECKING:
    from vllm.renderers.hf import HfRenderer
    from vllm.renderers.params import ChatParams
    from vllm.tokenizers import TokenizerLike

PARSER = "orchestrate"
"""The name of this parser."""


def use_schema_bound_tools(renderer: HfRenderer, bounds: Bounds | None) -> None:
    """Register the parser, and let a server's renderer tell the model of tools in the prompt.

    Args:
        bounds: on what the model writes.
    """
    ToolParserManager.register_module(
        PARSER, module=type("BoundedParser", (SchemaBoundParser,), {"bounds": bounds})
    )
    render = renderer.render_messages_async

    async def render_messages_async(messages: Sequence[Any], params: ChatParams) -> Any:
        return await render(*_told(messages, params, bounds))

    renderer.render_messages_async = render_messages_async


class SchemaBoundParser(ToolParser):  # type: ignore[misc]
    """vLLM's parser of one answer."""

    bounds: ClassVar[Bounds | None] = None

    # vLLM has another JSON for these, with lists of calls, and reads it itself.
    supports_required_and_named = False

    # Each piece of a stream is given once, and the end is told.
    engine_based_streaming = True

    def __init__(self, tokenizer: TokenizerLike, tools: list[Any] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self._names = {_function(tool)["name"] for tool in get_function_tools(tools or ())}
        self._text = ""
        self._answer = AnswerText()
        self._has_called = False

    def adjust_request(self, request: Any) -> Any:
        """Constrain the answer to a request with tools.

        Raises:
            VLLMValidationError: of status 400: the tools, or the form of the answer, cannot be
                told in a JSON schema.
        """
        if not self._reads(request):
            return request
        tools = [{"function": _function(tool)} for tool in get_function_tools(request.tools)]
        answer = _answer_schema(request.extract_structured_outputs())
        protocol = _protocol(tools, request.tool_choice, answer, self.bounds)
        record_tool_schema()
        request.structured_outputs = StructuredOutputsParams(json=protocol.schema())
        if isinstance(request, ResponsesRequest):
            request.text = None
        else:
            request.response_format = None
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        """The text or the call of a whole answer; of one that was cut off in a call neither."""
        if not self._reads(request):
            return ExtractedToolCallInformation(
                tools_called=False, tool_calls=[], content=model_output
            )
        reply = self._read(model_output)
        calls = [
            ToolCall(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))
            for call in reply.calls
        ]
        # With tools_called=False vLLM may show the JSON in place of the text.
        return ExtractedToolCallInformation(
            tools_called=True, tool_calls=calls, content=reply.text or None
        )

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> DeltaMessage | None:
        """What a piece of an answer adds: text as it grows, a call once it is whole."""
        if not self._reads(request):
            return DeltaMessage(content=delta_text) if delta_text else None
        self._text += delta_text
        if text := self._answer.feed(delta_text):
            return DeltaMessage(content=text)
        if self._has_called or "}" not in delta_text:
            return None
        calls = self._read(self._text).calls
        self._has_called = bool(calls)
        return DeltaMessage(tool_calls=[_delta(call) for call in calls]) if calls else None

    def finish_streaming(self) -> DeltaMessage | None:
        """What the pieces did not show of an answer's text."""
        text = "" if self._has_called else self._answer.rest(self._read(self._text).text)
        return DeltaMessage(content=text) if text else None

    def _reads(self, request: Any) -> bool:
        return bool(self._names) and request.tool_choice != "none"

    def _read(self, text: str) -> Reply:
        reply = ToolProtocol(()).read(text, make_tool_call_id())
        return Reply(reply.text, tuple(filter(self._is_whole, reply.calls)))

    def _is_whole(self, call: generation.ToolCall) -> bool:
        try:
            arguments_of(call.arguments)
        except ValueError:
            return False
        return call.name in self._names


def _told(
    messages: Sequence[Any], params: ChatParams, bounds: Bounds | None
) -> tuple[list[Any], ChatParams]:
    """The messages as the model is to read them, and the parameters without tools."""
    options = dict(params.chat_template_kwargs)
    tools = options.pop("tools", None)
    instructions = None
    if tools and params.tool_choice != "none":
        constraint = structured_outputs_from_response_format(None, params.response_format)
        answer = _answer_schema(constraint)
        instructions = _protocol(tools, params.tool_choice, answer, bounds).instructions()
    told = tools_as_text(messages, instructions)
    return told, replace(params, chat_template_kwargs=options)


def _protocol(
    tools: Sequence[Mapping[str, Any]],
    choice: Any,
    answer: Mapping[str, Any] | None,
    bounds: Bounds | None,
) -> ToolProtocol:
    """The protocol for the tools of a request, which may be called.

    Args:
        choice: as a request of vLLM has it; not "none".
    """
    for tool in tools:
        _check(**tool["function"])
    named = choice
    if choice is not None and not isinstance(choice, str):
        if choice.type not in ("function", "custom"):
            raise VLLMValidationError(
                f"tool_choice of type {choice.type} is not supported for this model: it may be"
                " none, auto, required, or name a function",
                parameter="tool_choice",
            )
        named = {"function": {"name": getattr(choice, "function", choice).name}}
    try:
        protocol = protocol_of(tools, named, answer=answer, bounds=bounds)
    except InvalidRequest as error:
        raise VLLMValidationError(str(error.args[1]), parameter="tool_choice") from error
    assert protocol is not None, "it has tools that may be called"
    return protocol


def _check(name: str, parameters: Mapping[str, Any] | None, **_: Any) -> None:
    """Raise VLLMValidationError for a tool with parameters that no call could have."""
    kind = (parameters or {}).get("type", "object")
    fault = None if parameters is None else json_fault(parameters)
    if kind != "object":
        fault = f"they must be of type object, not {kind!r:.80}"
    if fault is not None:
        raise VLLMValidationError(f"the parameters of the tool {name}: {fault}", parameter="tools")


def _answer_schema(constraint: StructuredOutputsParams | None) -> Mapping[str, Any] | None:
    """The schema of an answer beside tools; None for a text."""
    if constraint is None:
        return None
    if constraint.json_object:
        return {"type": "object"}
    schema = constraint.json
    fault = "beside tools, the answer may have a JSON schema, and no other constraint"
    if schema is not None:
        fault = json_fault(schema) or ""
        try:
            schema = json.loads(schema) if isinstance(schema, str) and not fault else schema
        except ValueError:
            fault = "the schema of the answer is no JSON"
        if not fault and not isinstance(schema, Mapping):
            fault = "the schema of the answer must be an object"
    if fault or not isinstance(schema, Mapping):
        raise VLLMValidationError(fault, parameter="structured_outputs")
    return schema


def _function(tool: Any) -> dict[str, Any]:
    """A tool's name, description and parameters, of both of OpenAI's forms."""
    function: dict[str, Any] = getattr(tool, "function", tool).model_dump()
    return function


def _delta(call: generation.ToolCall) -> DeltaToolCall:
    function = DeltaFunctionCall(name=call.name, arguments=call.arguments)
    return DeltaToolCall(index=0, id=call.id, type="function", function=function)
