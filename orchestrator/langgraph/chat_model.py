"""ChatOrchestrate: a LangChain chat model over our engines.

Importing it loads LangChain, which `import orchestrator` does not:

    from orchestrator.chat_model import ChatOrchestrate
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import BaseModel

from orchestrator.cancellation import until_ended
from orchestrator.langgraph.callbacks import LLM_TYPE, recorder_of
from orchestrator.langgraph.chat_calls import Answered, Place, answered
from orchestrator.langgraph.chat_messages import GrowingReply, message_of, turns_of
from orchestrator.langgraph.event_loops import await_on_loop, borrowed_loop, home_loop, run_on_loop
from orchestrator.langgraph.structured_output import parsed_as
from orchestrator.langgraph.tool_calls import ToolProtocol
from orchestrator.sdk.schemas import Shape, closed_schema, json_schema_of
from serving.errors import InvalidRequest
from serving.generation import GenerationRequest

_WHAT = "ChatOrchestrate"


class ChatOrchestrate(BaseChatModel):
    """A chat model on the engine of the run, or of the runtime, in which it is used.

    Within a run, as in a flow or a graph under `attach`, each call is recorded with its causal
    parents and carries its sub-deadline to the engine. Elsewhere it goes to the engine of the
    runtime that is open, or of one opened for it, as best effort.

    It may be called from any thread and any event loop; cancelling a call aborts it in the engine.
    Tools are called by JSON to which the model is held: a reply is one call of one of the tools,
    whose arguments satisfy its schema, or an answer.

    Attributes:
        max_tokens: most output tokens; None: what the context leaves.
        temperature, top_p, seed: as GenerationRequest has them.
    Raises (each call):
        ServingError: the engine could not answer; see serving.errors.
        DeadlineExceeded, RunEnded: the run's time was over first.
        WouldBlock: a synchronous call on the very event loop that has to do the work.
    """

    max_tokens: int | None = None
    temperature: float = 0.7
    top_p: float = 1.0
    seed: int | None = None

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
            tool_choice: "auto" or None; "any", "required" or True: it must call one; "none"; or
                the name of the one that it must call.
        Raises:
            InvalidRequest: a tool that only its provider can run, or a choice that is no tool.
        """
        described = [convert_to_openai_tool(tool) for tool in tools]
        for tool in described:
            if "function" not in tool:
                raise InvalidRequest(_WHAT, f"a tool of type {tool.get('type')!r} is no function")
        ToolProtocol.of(described, tool_choice)
        return self.bind(tools=described, tool_choice=tool_choice, **kwargs)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """The same model, held to a schema.

        Args:
            schema: a pydantic model, of which it gives instances; or a TypedDict, a JSON schema
                or an OpenAI function, by which it gives dicts.
            include_raw: give {"raw", "parsed", "parsing_error"}, and do not raise.
            kwargs: `method` and `strict` are accepted and make no difference.
        Raises (each call):
            StructuredOutputInvalid: the answer does not satisfy the schema, mostly as it was cut.
        """
        if unknown := kwargs.keys() - {"method", "strict"}:
            raise ValueError(f"with_structured_output takes no {', '.join(sorted(unknown))}")
        shape: Shape = (
            schema
            if isinstance(schema, type) and issubclass(schema, BaseModel)
            else closed_schema(convert_to_json_schema(schema))
        )
        bound = self.bind(
            json_schema=json_schema_of(shape),
            ls_structured_output_format={"kwargs": {"method": "json_schema"}, "schema": schema},
        )
        return parsed_as(shape, bound, include_raw=include_raw)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call, tools = self._call_of(messages, stop, kwargs)
        place = recorder_of(run_manager)
        with borrowed_loop(_loop_of(place)) as loop:
            return _result(run_on_loop(loop, _WHAT, lambda: answered(call, place)), tools)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call, tools = self._call_of(messages, stop, kwargs)
        place = recorder_of(run_manager)
        answer = await await_on_loop(_loop_of(place) or home_loop(), lambda: answered(call, place))
        return _result(answer, tools)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        call, tools = self._call_of(messages, stop, kwargs)
        place, growing = recorder_of(run_manager), GrowingReply(tools)
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with borrowed_loop(_loop_of(place)) as loop:
            running: list[asyncio.Task[Answered]] = []

            async def begin() -> None:
                task = asyncio.create_task(answered(call, place, pieces.put))
                task.add_done_callback(lambda _: pieces.put(None))
                running.append(task)

            async def end() -> None:
                running[0].cancel()
                await until_ended(running)

            async def answer() -> Answered:
                return await running[0]

            run_on_loop(loop, _WHAT, begin)
            try:
                while (piece := pieces.get()) is not None:
                    if chunk := growing.chunk(piece):
                        yield chunk
                yield growing.last(*run_on_loop(loop, _WHAT, answer))
            finally:
                run_on_loop(loop, _WHAT, end)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        call, tools = self._call_of(messages, stop, kwargs)
        place, growing = recorder_of(run_manager), GrowingReply(tools)
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def on_text(piece: str) -> None:
            here.call_soon_threadsafe(pieces.put_nowait, piece)

        running = asyncio.create_task(
            await_on_loop(_loop_of(place) or home_loop(), lambda: answered(call, place, on_text))
        )
        # By the same way as the text, so that it comes after the last of it.
        running.add_done_callback(lambda _: here.call_soon_threadsafe(pieces.put_nowait, None))
        try:
            while (piece := await pieces.get()) is not None:
                if chunk := growing.chunk(piece):
                    yield chunk
            yield growing.last(*await running)
        finally:
            running.cancel()
            await until_ended([running])

    def _call_of(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: Mapping[str, Any]
    ) -> tuple[GenerationRequest, ToolProtocol | None]:
        tools = ToolProtocol.of(kwargs.get("tools") or (), kwargs.get("tool_choice"))
        call = GenerationRequest(
            request_id="",
            prompt=turns_of(messages, tools),
            schema=kwargs.get("json_schema") if tools is None else tools.schema(),
            max_tokens=kwargs.get("max_tokens", self.max_tokens),
            temperature=kwargs.get("temperature", self.temperature),
            top_p=kwargs.get("top_p", self.top_p),
            seed=kwargs.get("seed", self.seed),
            stop=tuple(stop or ()),
        )
        return call, tools


def _loop_of(place: Place | None) -> asyncio.AbstractEventLoop | None:
    return None if place is None else place[0].loop


def _result(answer: Answered, tools: ToolProtocol | None) -> ChatResult:
    message = message_of(answer.completion, answer.info, tools)
    return ChatResult(generations=[ChatGeneration(message=message)])
