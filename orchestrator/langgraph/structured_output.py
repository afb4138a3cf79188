"""Answers of a LangChain model in a given shape, checked."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda, RunnableMap, RunnablePassthrough

from orchestrator.sdk.schemas import Shape, answer_in
from serving.generation import Completion, Usage


def parsed_as(
    shape: Shape, model: Runnable[LanguageModelInput, AIMessage], *, include_raw: bool
) -> Runnable[LanguageModelInput, Any]:
    """A model's answers as values of a shape; include_raw as LangChain has it."""
    parser = RunnableLambda(lambda message: _value(shape, message), name="parsed")
    if not include_raw:
        return model | parser
    parsed = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
    )
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def _value(shape: Shape, message: AIMessage) -> Any:
    """Raises StructuredOutputInvalid."""
    facts = message.response_metadata
    completion = Completion(
        request_id=str(facts.get("request_id", "chat")),
        text=str(message.text),
        finish_reason="length" if facts.get("finish_reason") == "length" else "stop",
        usage=Usage(0, 0),
        ttft_s=0.0,
        e2el_s=0.0,
    )
    return answer_in(shape, completion)
