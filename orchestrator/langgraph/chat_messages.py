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

from orchestrator.langgraph.tool_calls import AnswerText, ToolProtocol, tool_call_text
from serving.errors import InvalidRequest
from serving.generation import Completion, EngineInfo, Message, Role, Token

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
    """The turns of a chat; adjacent messages of one role become one turn, for chat templates.

    Not every chat template supports tools. So tool calls are written in the assistant's text, in
    the format that the instructions ask for, and tool results are turns of the user.

    Raises:
        InvalidRequest: a message contains more than text, or has an unknown role.
    """
    turns = [Message("system", tools.instructions())] if tools else []
    for message in messages:
        turn = _turn(message)
        if turns and turns[-1].role == turn.role:
            turn = Message(turn.role, f"{turns[-1].content}\n\n{turn.content}".strip())
            turns.pop()
        turns.append(turn)
    return tuple(turns)


def message_of(
    completion: Completion, info: EngineInfo, tools: ToolProtocol | None = None
) -> AIMessage:
    """The answer with its tool calls, token usage and metadata."""
    reply = AIMessage(completion.text) if tools is None else tools.reply(completion)
    reply.usage_metadata = usage_of(completion)
    reply.response_metadata = response_metadata_of(completion, info)
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

    def __init__(self, tools: ToolProtocol | None) -> None:
        self._tools = tools
        self._answer = AnswerText()
        self._num_sent = 0  # characters

    def chunk(self, piece: str) -> ChatGenerationChunk | None:
        """A piece of the answer as a chunk; None if it holds only JSON syntax or a tool call."""
        text = piece if self._tools is None else self._answer.feed(piece)
        self._num_sent += len(text)
        return ChatGenerationChunk(message=AIMessageChunk(content=text)) if text else None

    def last(self, completion: Completion, info: EngineInfo) -> ChatGenerationChunk:
        """The last chunk: text not sent yet, tool calls, token usage and metadata."""
        whole = message_of(completion, info, self._tools)
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
            return Message("user", f"Result of {message.name or 'the tool'}:\n{text}")
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
