"""Tool calls in a model's own format, read by vLLM's tool parsers.

A parser is for one answer: it keeps what it has read. Parsers use the tokenizer, so all of this
runs on the thread for short prompts (see `Prompts`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from serving.engine.clients.chat_turns import openai_tool, with_unique_ids
from serving.engine.setup.model_loading import error_summary
from serving.errors import (
    InvalidRequest,
    RequestFailed,
    ServingError,
    ToolsNotSupported,
)
from serving.generation import (
    Chunk,
    Completion,
    EngineInfo,
    GenerationRequest,
    ToolCall,
    ToolSpec,
)

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.tokenizers import TokenizerLike

logger = logging.getLogger("orchestrate")


@dataclass(frozen=True, slots=True)
class TokenChunk(Chunk):
    """A chunk with the ids of its tokens, which streaming parsers need."""

    token_ids: tuple[int, ...] = ()


def reader_for(
    request: GenerationRequest, info: EngineInfo, tokenizer: TokenizerLike
) -> ToolReader:
    """What reads the tool calls in the answer to a request with tools.

    Raises:
        ToolsNotSupported: the engine has no parser.
        InvalidRequest: a tool cannot be shown to the model.
    """
    if not info.tool_parser:
        reason = f"no tool parser is known for {info.model}; the setting tool_parser names one"
        raise ToolsNotSupported(request.request_id, reason)
    try:
        return ToolReader(info.tool_parser, tokenizer, request.tools)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(request.request_id, error_summary(error)) from error


class ToolReader:
    """Reads the tool calls in one answer.

    Args:
        name: of the parser.
        tools: that the model may call.
    """

    def __init__(self, name: str, tokenizer: TokenizerLike, tools: Iterable[ToolSpec]) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager

        chat: Any = ChatCompletionRequest(
            messages=[], tools=[openai_tool(tool) for tool in tools], tool_choice="auto"
        )
        self.name = name
        make = ToolParserManager.get_tool_parser(name)
        self._whole, self._growing = make(tokenizer, chat.tools), make(tokenizer, chat.tools)
        for parser in (self._whole, self._growing):
            if hasattr(parser, "skip_reasoning_parsing"):
                parser.skip_reasoning_parsing = True  # reasoning is text here
        self._chat = self._whole.adjust_request(chat)
        self._text = ""
        self._tokens: list[int] = []
        self._shown = ""
        self._holds_back = False

    def adjust(self, params: SamplingParams) -> None:
        """Let vLLM give the text as the parser needs it: in many formats with special tokens."""
        params.skip_special_tokens = self._chat.skip_special_tokens
        params.spaces_between_special_tokens = self._chat.spaces_between_special_tokens

    def calls(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """The text beside the calls in a finished answer, and the calls."""
        found = self._whole.extract_tool_calls(text, self._chat)
        if not found.tools_called:
            is_legacy = not self._whole.engine_based_streaming
            return text if is_legacy else found.content or "", ()
        calls = [
            ToolCall(call.id or "", call.function.name, call.function.arguments)
            for call in found.tool_calls
        ]
        content = found.content or ""
        return content if content.strip() else "", with_unique_ids(calls)

    def read(self, chunk: Chunk, *, shows_text: bool) -> Chunk | ServingError:
        """A chunk with the text beside the calls only; the last one has the calls.

        Args:
            shows_text: whether the text of a growing answer is wanted.
        """
        shown = self._new_text(chunk) if shows_text else ""
        if chunk.completion is None:
            return Chunk(shown)
        completion = chunk.completion
        try:
            text, calls = self.calls(completion.text)
        except Exception as error:  # of any class: it must not end the engine
            fault = f"the tool parser {self.name} failed: {error_summary(error)}"
            return RequestFailed(completion.request_id, fault)
        rest = text.removeprefix(self._shown) if text.startswith(self._shown) else ""
        read: Completion = replace(completion, text=text, tool_calls=calls)
        return Chunk(rest, read)

    def _new_text(self, chunk: Chunk) -> str:
        """The text that a chunk adds beside the calls, as far as it can be told apart yet."""
        new_tokens = chunk.token_ids if isinstance(chunk, TokenChunk) else ()
        before, tokens_before = self._text, list(self._tokens)
        self._text += chunk.text
        self._tokens += new_tokens
        if self._holds_back or chunk.completion is not None:
            return ""
        try:
            delta = self._growing.extract_tool_calls_streaming(
                before,
                self._text,
                chunk.text,
                tokens_before,
                list(self._tokens),
                list(new_tokens),
                self._chat,
            )
        except Exception:  # of any class: the rest of the text then comes with the last chunk
            logger.warning("tool parser %s: the text of an answer comes at its end", self.name)
            self._holds_back = True
            return ""
        if delta is not None and delta.tool_calls:
            self._holds_back = True  # what follows the first call comes with the last chunk
        shown = "" if delta is None else delta.content or ""
        self._shown += shown
        return shown
