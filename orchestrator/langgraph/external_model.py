"""A model of somebody else's, as it is recorded: its answers come from LangChain's callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from serving.analyzer.words import estimate_prompt_tokens
from serving.generation import Chunk, Completion, EngineInfo, FinishReason, GenerationRequest, Usage

_CUT = ("length", "max_tokens", "MAX_TOKENS")


@dataclass(frozen=True, slots=True)
class ExternalReply:
    """What a callback told of an answer; times in seconds since the call began."""

    result: LLMResult
    ttft_s: float | None
    e2el_s: float


class ExternalModel:
    """An engine for the record only: the one call that it is asked for is made elsewhere."""

    def __init__(self, model: str, told: asyncio.Future[ExternalReply]) -> None:
        self._model = model
        self._told = told

    @property
    def info(self) -> EngineInfo:
        """What is known of the model."""
        return EngineInfo("langchain", self._model, random_weights=False, max_model_tokens=None)

    async def start(self) -> None:
        """Nothing to do."""

    async def generate(self, request: GenerationRequest) -> Completion:
        """The answer, once it is told; raises what the model raised."""
        told = await self._told
        text, usage, finish_reason = _read(told.result, request)
        return Completion(
            request_id=request.request_id,
            text=text,
            finish_reason=finish_reason,
            usage=usage,
            ttft_s=told.e2el_s if told.ttft_s is None else told.ttft_s,
            e2el_s=told.e2el_s,
        )

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """The answer in one piece."""
        completion = await self.generate(request)
        yield Chunk(completion.text, completion)

    async def close(self) -> None:
        """Nothing to do."""


def model_name(parameters: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """What a foreign model calls itself; at worst its kind."""
    for known in (
        metadata.get("ls_model_name"),
        parameters.get("model"),
        parameters.get("model_name"),
        parameters.get("_type"),
    ):
        if isinstance(known, str) and known:
            return known
    return "model"


def _read(result: LLMResult, request: GenerationRequest) -> tuple[str, Usage, FinishReason]:
    """The text, tokens and end of an answer; tokens that nobody counted are estimated."""
    prompt = request.prompt if isinstance(request.prompt, str) else ""
    if not result.generations or not result.generations[0]:
        return "", Usage(estimate_prompt_tokens(prompt), 0), "stop"
    generation = result.generations[0][0]
    text, facts = generation.text, dict(generation.generation_info or {})
    usage: Mapping[str, Any] = (result.llm_output or {}).get("token_usage") or {}
    if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
        facts |= generation.message.response_metadata
        usage = cast("Mapping[str, Any]", generation.message.usage_metadata) or usage
    details = usage.get("input_token_details") or {}
    counted = Usage(
        _count(usage, "input_tokens", "prompt_tokens", otherwise=prompt),
        _count(usage, "output_tokens", "completion_tokens", otherwise=text),
        details.get("cache_read") or 0,
    )
    cut = facts.get("finish_reason") in _CUT or facts.get("stop_reason") in _CUT
    return text, counted, "length" if cut else "stop"


def _count(usage: Mapping[str, Any], *names: str, otherwise: str) -> int:
    for name in names:
        if isinstance(usage.get(name), int):
            return int(usage[name])
    return estimate_prompt_tokens(otherwise)
