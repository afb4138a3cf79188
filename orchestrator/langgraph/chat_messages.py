"""Converts LangChain's messages to the turns of a chat, and an answer to LangChain's message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

from orchestrator.langgraph.tool_calls import calls_of, reply_of
from orchestrator.tools.asking import ToolAnswer
from serving.errors import InvalidRequest
from serving.generation import Completion, EngineInfo, Message, Role, Token
from serving.schema_bound import ToolProtocol, merged, result_turn, tool_call_text

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
}


def turns_of(
    messages: Sequence[BaseMessage], tools: ToolProtocol | None = None
) -> tuple[Message, ...]:
    """The turns of a chat in which tool calls and results are texts, as `ToolProtocol.turns`.

    Raises:
        InvalidRequest: a message contains more than text, or has an unknown role.
    """
    instructions = [Message("system", tools.instructions())] if tools else []
    return merged([*instructions, *map(_turn, messages)])


def native_turns_of(messages: Sequence[BaseMessage]) -> tuple[Message, ...]:
    """The turns of a chat with tool calls and results as such; raises as `turns_of`."""
    return merged([_native_turn(message) for message in messages])


def message_of(answer: ToolAnswer, info: EngineInfo) -> AIMessage:
    """The answer with its tool calls, token usage and metadata."""
    reply = reply_of(answer)
    reply.usage_metadata = usage_of(answer.completion)
    reply.response_metadata = response_metadata_of(answer.completion, info)
    return reply


def usage_of(completion: Completion) -> UsageMetadata:
    """An answer's token usage in LangChain's form."""
    usage = completion.usage
    return UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.prompt_tokens + usage.output_tokens,
        input_token_details=InputTokenDetails(cache_read=usage.cached_tokens),
    )


def response_metadata_of(completion: Completion, info: EngineInfo) -> dict[str, Any]:
    """An answer's metadata: finish reason, model, request id, times in seconds, logprobs."""
    metadata: dict[str, Any] = {
        "finish_reason": completion.finish_reason,
        "model_name": info.model,
        "model_provider": "orchestrate",
        "request_id": completion.request_id,
        "ttft_s": completion.ttft_s,
        "e2el_s": completion.e2el_s,
    }
    if completion.tokens:
        metadata["logprobs"] = {"content": [_logprob_of(token) for token in completion.tokens]}
    return metadata | {"random_weights": True} if info.random_weights else metadata


class StreamedReply:
    """Converts a streamed answer to LangChain's chunks: pieces of text, then the rest."""

    def __init__(self) -> None:
        self._num_sent = 0  # characters

    def chunk(self, piece: str) -> ChatGenerationChunk:
        """A piece of the answer as a chunk."""
        self._num_sent += len(piece)
        return ChatGenerationChunk(message=AIMessageChunk(content=piece))

    def last(self, answer: ToolAnswer, info: EngineInfo) -> ChatGenerationChunk:
        """The last chunk: text not sent yet, tool calls, token usage and metadata."""
        whole = message_of(answer, info)
        calls = [*whole.tool_calls, *whole.invalid_tool_calls]
        chunk = AIMessageChunk(
            content=whole.text[self._num_sent :],
            usage_metadata=whole.usage_metadata,
            response_metadata=whole.response_metadata,
            tool_call_chunks=[_call_chunk(call, index) for index, call in enumerate(calls)],
            chunk_position="last",
        )
        return ChatGenerationChunk(message=chunk)


def _logprob_of(token: Token) -> dict[str, Any]:
    """A token in OpenAI's form."""
    return {
        "token": token.text,
        "logprob": token.logprob,
        "top_logprobs": [{"token": text, "logprob": value} for text, value in token.top],
    }


def _turn(message: BaseMessage) -> Message:
    text = _text(message)
    match message:
        case ToolMessage() | FunctionMessage():
            return result_turn(message.name or "", text)
        case AIMessage():
            calls = [tool_call_text(call["name"], call["args"]) for call in message.tool_calls]
            return Message("assistant", "\n".join([text, *calls] if text else calls))
        case SystemMessage():
            return Message("system", text)
        case HumanMessage():
            return Message("user", text)
        case ChatMessage() if message.role in _ROLES:
            return Message(_ROLES[message.role], text)
    raise InvalidRequest("chat", f"a message of type {message.type!r} has no role in a chat")


def _native_turn(message: BaseMessage) -> Message:
    match message:
        case ToolMessage():
            return Message("tool", _text(message), tool_call_id=message.tool_call_id)
        case AIMessage() if message.tool_calls:
            return Message("assistant", _text(message), tool_calls=calls_of(message))
    return _turn(message)


def _text(message: BaseMessage) -> str:
    content = message.content
    if isinstance(content, list):
        for block in content:
            kind = "text" if isinstance(block, str) else block.get("type")
            if kind not in ("text", "tool_use", "tool_call", "reasoning", "thinking"):
                raise InvalidRequest("chat", f"the model reads text only, not {kind!r}")
    return str(message.text)


def _call_chunk(call: Mapping[str, Any], index: int) -> ToolCallChunk:
    arguments = call["args"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return tool_call_chunk(name=call["name"], args=text, id=call["id"], index=index)
