"""Structured output of a LangChain model: answers are parsed and checked against a schema."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda, RunnableMap, RunnablePassthrough

from orchestrator.sdk.schemas import AnswerForm
from serving.generation import Completion, Usage


def parsed_as(
    form: AnswerForm, model: Runnable[LanguageModelInput, AIMessage], *, include_raw: bool
) -> Runnable[LanguageModelInput, Any]:
    """The model with its answers parsed as a form says; include_raw as in LangChain."""
    parser = RunnableLambda(lambda message: _value(form, message), name="parsed")
    if not include_raw:
        return model | parser
    parsed = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
    )
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def _value(form: AnswerForm, message: AIMessage) -> Any:
    """The value of an answer; raises StructuredOutputInvalid."""
    metadata = message.response_metadata
    completion = Completion(
        request_id=str(metadata.get("request_id", "chat")),
        text=str(message.text),
        finish_reason="length" if metadata.get("finish_reason") == "length" else "stop",
        usage=Usage(0, 0),
        ttft_s=0.0,
        e2el_s=0.0,
    )
    return form.value_in(completion)
