"""ChatOrchestrate: a LangChain chat model on the engine of the current run or runtime.

Importing it loads LangChain, which `import orchestrator` does not:

    from orchestrator.chat_model import ChatOrchestrate
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import BaseModel, ConfigDict

from orchestrator.cancellation import until_ended
from orchestrator.execution.call_options import CallOptions
from orchestrator.langgraph.callbacks import LLM_TYPE, recorder_of
from orchestrator.langgraph.chat_calls import ChatAnswer, ChatRequest, GraphCall, run_chat_call
from orchestrator.langgraph.chat_messages import (
    StreamedReply,
    message_of,
    native_turns_of,
    turns_of,
)
from orchestrator.langgraph.event_loops import (
    await_on_loop,
    loop_for_sync_call,
    loop_of_run,
    run_on_loop,
)
from orchestrator.langgraph.structured_output import parsed_as
from orchestrator.sdk.schemas import AnswerForm
from orchestrator.tools.asking import ToolRequest
from serving.errors import InvalidRequest
from serving.generation import GenerationRequest
from serving.schema_bound import protocol_of
from serving.schema_transforms import closed_schema

_WHAT = "ChatOrchestrate"

_CALL_ARGUMENTS = frozenset(
    {
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "json_schema",
    }
)
_ACCEPTED = frozenset({"strict", "parallel_tool_calls", "stream"})
"""Arguments of other models that are accepted. With `strict`, or without `parallel_tool_calls`, the
model is asked for JSON: its arguments satisfy their schema, and a reply has one call at most.
LangChain reads `stream` itself."""


class ChatOrchestrate(BaseChatModel):
    """A chat model on the engine of the current run or runtime.

    Within a run, as in a flow or an attached graph, each call is recorded with its causal parents
    and carries its sub-deadline to the engine. Outside a run it goes to the engine of the open
    runtime, or of one opened for the call, as best effort.

    It may be called from any thread and any event loop; cancelling a call aborts it in the engine.
    Tools are called in the model's own format if the engine reads that (`tool_parser` in the
    settings). If not, or with `tool_choice`, constrained decoding is used: a reply is one call of
    one of the tools, with arguments that satisfy its schema, or an answer.

    Attributes:
        max_tokens: most output tokens; None: as many as the context window allows.
        temperature, top_p, seed: as in GenerationRequest.
        logprobs: whether a reply has the log-probabilities of its tokens, as ChatOpenAI's have:
            `response_metadata["logprobs"]["content"]`.
        top_logprobs: with logprobs, how many alternatives to each token, 0 to MAX_LOGPROBS.
        engine, model: which engine of the runtime answers, and which of its models, as in `llm`.
    Raises:
        ValidationError (of pydantic): an argument is unknown, or has the wrong type.
    Raises (each call):
        InvalidRequest: an argument of the call, or of `bind`, is unknown.
        ServingError: the engine could not answer; see serving.errors.
        DeadlineExceeded, RunEnded: the deadline passed or the run ended first.
        WouldBlock: a synchronous call on the event loop that has to do the work.
    """

    model_config = ConfigDict(extra="forbid")

    max_tokens: int | None = None
    temperature: float = 0.7
    top_p: float = 1.0
    seed: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    engine: str | None = None
    model: str | None = None

    @property
    def _llm_type(self) -> str:
        return LLM_TYPE

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "logprobs": self.logprobs,
            "top_logprobs": self.top_logprobs,
            "engine": self.engine,
            "model": self.model,
        }

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: Any = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The same model with tools that it may call.

        Args:
            tool_choice: "auto" or None: it may call one; "any", "required" or True: it must call
                one; "none": it must not; or the name of the tool that it must call.
            kwargs: as for `bind`; with `strict=True` or `parallel_tool_calls=False` constrained
                decoding is used.
        Raises:
            InvalidRequest: a tool is not a function, `tool_choice` names none of the tools, or an
                argument is unknown.
        """
        _require_known(kwargs)
        openai_tools = [convert_to_openai_tool(tool) for tool in tools]
        for tool in openai_tools:
            if "function" not in tool:
                kind = tool.get("type")
                raise InvalidRequest(_WHAT, f"a tool of type {kind!r} is not a function")
        protocol_of(openai_tools, tool_choice)
        return self.bind(tools=openai_tools, tool_choice=tool_choice, **kwargs)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """The same model with answers that satisfy a schema.

        Args:
            schema: a pydantic model: answers are instances of it; or a TypedDict, a JSON schema or
                an OpenAI function: answers are dicts.
            include_raw: return {"raw", "parsed", "parsing_error"} instead of raising.
            kwargs: `method` and `strict` are accepted and ignored.
        Raises (each call):
            StructuredOutputInvalid: the answer does not satisfy the schema, usually because it
                was cut off.
        """
        if unknown := kwargs.keys() - {"method", "strict"}:
            names = ", ".join(sorted(unknown))
            raise ValueError(f"with_structured_output does not accept: {names}")
        form = AnswerForm.of(
            schema
            if isinstance(schema, type) and issubclass(schema, BaseModel)
            else closed_schema(convert_to_json_schema(schema))
        )
        bound = self.bind(
            json_schema=form.schema,
            ls_structured_output_format={"kwargs": {"method": "json_schema"}, "schema": schema},
        )
        return parsed_as(form, bound, include_raw=include_raw)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = self._request_of(messages, stop, kwargs)
        graph_call = recorder_of(run_manager)
        with loop_for_sync_call(_loop_of(graph_call)) as loop:
            answer = run_on_loop(loop, _WHAT, lambda: self._call(request, graph_call))
            return _result(answer)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = self._request_of(messages, stop, kwargs)
        graph_call = recorder_of(run_manager)
        loop = _loop_of(graph_call) or loop_of_run()
        answer = await await_on_loop(loop, lambda: self._call(request, graph_call))
        return _result(answer)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        request = self._request_of(messages, stop, kwargs)
        graph_call, reply = recorder_of(run_manager), StreamedReply()
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with loop_for_sync_call(_loop_of(graph_call)) as loop:
            running: list[asyncio.Task[ChatAnswer]] = []

            async def begin() -> None:
                task = asyncio.create_task(self._call(request, graph_call, pieces.put))
                task.add_done_callback(lambda _: pieces.put(None))
                running.append(task)

            async def end() -> None:
                running[0].cancel()
                await until_ended(running)

            async def answer() -> ChatAnswer:
                return await running[0]

            run_on_loop(loop, _WHAT, begin)
            try:
                while (piece := pieces.get()) is not None:
                    yield reply.chunk(piece)
                yield reply.last(*run_on_loop(loop, _WHAT, answer))
            finally:
                run_on_loop(loop, _WHAT, end)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        request = self._request_of(messages, stop, kwargs)
        graph_call, reply = recorder_of(run_manager), StreamedReply()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def on_text(piece: str) -> None:
            here.call_soon_threadsafe(pieces.put_nowait, piece)

        loop = _loop_of(graph_call) or loop_of_run()
        running = asyncio.create_task(
            await_on_loop(loop, lambda: self._call(request, graph_call, on_text))
        )
        # The end mark is sent like the text, so that it arrives after the last piece.
        running.add_done_callback(lambda _: here.call_soon_threadsafe(pieces.put_nowait, None))
        try:
            while (piece := await pieces.get()) is not None:
                yield reply.chunk(piece)
            yield reply.last(*await running)
        finally:
            running.cancel()
            await until_ended([running])

    async def _call(
        self,
        request: ChatRequest,
        graph_call: GraphCall | None,
        on_text: Callable[[str], None] | None = None,
    ) -> ChatAnswer:
        options = CallOptions(engine=self.engine, model=self.model)
        return await run_chat_call(request, graph_call, on_text, options)

    def _request_of(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: Mapping[str, Any]
    ) -> ChatRequest:
        _require_known(kwargs)
        tools = protocol_of(kwargs.get("tools") or (), kwargs.get("tool_choice"))
        request = GenerationRequest(
            request_id="",
            prompt=turns_of(messages, tools),
            schema=kwargs.get("json_schema") if tools is None else tools.schema(),
            max_tokens=kwargs.get("max_tokens", self.max_tokens),
            temperature=kwargs.get("temperature", self.temperature),
            top_p=kwargs.get("top_p", self.top_p),
            seed=kwargs.get("seed", self.seed),
            stop=tuple(stop or ()),
            logprobs=_num_logprobs(
                kwargs.get("logprobs", self.logprobs),
                kwargs.get("top_logprobs", self.top_logprobs),
            ),
        )
        if tools is None:
            return request
        is_free = kwargs.get("parallel_tool_calls") is not False and not kwargs.get("strict")
        native = None
        if is_free and not tools.must_call:
            turns = native_turns_of(messages)
            native = replace(request, prompt=turns, schema=None, tools=tuple(tools.tools))
        return ToolRequest(tools, request, native)


def _require_known(kwargs: Mapping[str, Any]) -> None:
    if unknown := kwargs.keys() - _CALL_ARGUMENTS - _ACCEPTED - {"stop"}:
        known = ", ".join(sorted(_CALL_ARGUMENTS | {"stop"}))
        reason = f"unknown arguments: {', '.join(sorted(unknown))}; it accepts {known}"
        raise InvalidRequest(_WHAT, reason)


def _num_logprobs(logprobs: object, top_logprobs: Any) -> int | None:
    """OpenAI's two arguments as that of a request."""
    if logprobs is not None and not isinstance(logprobs, bool):
        raise InvalidRequest(_WHAT, "logprobs must be true or false; top_logprobs is a number")
    if not logprobs and top_logprobs is not None:
        raise InvalidRequest(_WHAT, "top_logprobs needs logprobs=True")
    return (top_logprobs or 0) if logprobs else None


def _loop_of(graph_call: GraphCall | None) -> asyncio.AbstractEventLoop | None:
    return None if graph_call is None else graph_call[0].loop


def _result(answer: ChatAnswer) -> ChatResult:
    message = message_of(*answer)
    return ChatResult(generations=[ChatGeneration(message=message)])
