"""Models other than ChatOrchestrate: LangChain's callbacks report their answers, to be recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from orchestrator.execution.carried_slo import SloHandover
from serving.analyzer.words import estimate_prompt_tokens
from serving.generation import Chunk, Completion, EngineInfo, FinishReason, GenerationRequest, Usage

_CUT = ("length", "max_tokens", "MAX_TOKENS")


@dataclass(frozen=True, slots=True)
class ExternalReply:
    """An answer as a callback reported it; times in seconds since the call began."""

    result: LLMResult
    ttft_s: float | None
    e2el_s: float


class ExternalModel:
    """An Engine that records one call, which LangChain makes: `generate` waits for its answer.

    Args:
        handover: gets the SLO of the call, for the HTTP request that executes it.
    """

    def __init__(
        self, model: str, reply: asyncio.Future[ExternalReply], handover: SloHandover
    ) -> None:
        self._model = model
        self._reply = reply
        self._handover = handover

    @property
    def info(self) -> EngineInfo:
        """The model's name; nothing else is known."""
        return EngineInfo("langchain", self._model, random_weights=False, max_model_tokens=None)

    async def start(self) -> None:
        """Nothing to do."""

    async def generate(self, request: GenerationRequest) -> Completion:
        """The answer, once the callback has reported it; raises what the model raised."""
        self._handover.give(request.slo)
        reply = await self._reply
        text, usage, finish_reason = _read(reply.result, request)
        return Completion(
            request_id=request.request_id,
            text=text,
            finish_reason=finish_reason,
            usage=usage,
            ttft_s=reply.e2el_s if reply.ttft_s is None else reply.ttft_s,
            e2el_s=reply.e2el_s,
        )

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """The answer in one piece."""
        completion = await self.generate(request)
        yield Chunk(completion.text, completion)

    async def close(self) -> None:
        """Nothing to do."""


def model_name(parameters: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """The name of a LangChain model; if it reports none, its type."""
    for name in (
        metadata.get("ls_model_name"),
        parameters.get("model"),
        parameters.get("model_name"),
        parameters.get("_type"),
    ):
        if isinstance(name, str) and name:
            return name
    return "model"


def _read(result: LLMResult, request: GenerationRequest) -> tuple[str, Usage, FinishReason]:
    """An answer's text, token usage and finish reason; missing token counts are estimated."""
    prompt = request.prompt if isinstance(request.prompt, str) else ""
    if not result.generations or not result.generations[0]:
        return "", Usage(estimate_prompt_tokens(prompt), 0), "stop"
    generation = result.generations[0][0]
    text, metadata = generation.text, dict(generation.generation_info or {})
    usage: Mapping[str, Any] = (result.llm_output or {}).get("token_usage") or {}
    if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
        metadata |= generation.message.response_metadata
        usage = cast("Mapping[str, Any]", generation.message.usage_metadata) or usage
    details = usage.get("input_token_details") or {}
    counted = Usage(
        _num_tokens(usage, "input_tokens", "prompt_tokens", text=prompt),
        _num_tokens(usage, "output_tokens", "completion_tokens", text=text),
        details.get("cache_read") or 0,
    )
    is_cut = metadata.get("finish_reason") in _CUT or metadata.get("stop_reason") in _CUT
    return text, counted, "length" if is_cut else "stop"


def _num_tokens(usage: Mapping[str, Any], *names: str, text: str) -> int:
    """The first count that is reported under one of these names; else an estimate for the text."""
    for name in names:
        if isinstance(usage.get(name), int):
            return int(usage[name])
    return estimate_prompt_tokens(text)
