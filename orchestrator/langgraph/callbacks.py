"""LangChain's callbacks -> what a graph's recorder is told.

All of it is public API of langchain-core, with two habits of it that tests hold: a handler that
runs inline is called in the context of what it tells of, so that a ContextVar which it sets is
seen there; and `invocation_params` of a chat model have its `_llm_type` as `_type`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.callbacks.manager import BaseRunManager
from langchain_core.messages import BaseMessage, get_buffer_string
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.constants import TAG_HIDDEN

from orchestrator.execution.context import set_context
from orchestrator.langgraph.recording import NAMESPACE, GraphRecorder

LLM_TYPE = "orchestrate"
"""What ChatOrchestrate calls itself, so that it is not taken for a foreign model."""

_asked: ContextVar[tuple[GraphRecorder, UUID] | None] = ContextVar(
    "orchestrate_model_call", default=None
)


def recorder_of(manager: BaseRunManager | None) -> tuple[GraphRecorder, UUID] | None:
    """What records the graph that a chat model's call is part of, and the call's id there.

    Args:
        manager: of the call; None where LangChain gives none, as to a model that streams.
    """
    for handler in () if manager is None else manager.handlers:
        if isinstance(handler, GraphCallbacks):
            assert manager is not None
            return handler.recorder, manager.run_id
    return _asked.get()


class GraphCallbacks(BaseCallbackHandler):
    """Tells a recorder of all that begins and ends; refuses what begins after its run has ended."""

    run_inline = True
    raise_error = True

    def __init__(self, recorder: GraphRecorder) -> None:
        self.recorder = recorder

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """A graph, a node or any other runnable begins."""
        recorder, facts = self.recorder, metadata or {}
        recorder.require_open()
        hidden = TAG_HIDDEN in (tags or ())
        is_here = recorder.post(
            lambda: recorder.chain_began(run_id, parent_run_id, facts, hidden=hidden)
        )
        if is_here and NAMESPACE in facts and (context := recorder.context(run_id)):
            set_context(context)

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **facts: Any,
    ) -> None:
        """A tool begins."""
        recorder = self.recorder
        recorder.require_open()
        name = str(facts.get("name") or (serialized or {}).get("name") or "tool")
        recorder.post(lambda: recorder.tool_began(run_id, parent_run_id, name))

    def on_retriever_start(
        self,
        serialized: dict[str, Any] | None,
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **facts: Any,
    ) -> None:
        """A retriever begins: to a run it is a tool."""
        self.on_tool_start(serialized, query, run_id=run_id, parent_run_id=parent_run_id, **facts)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        """A chat model is asked."""
        parameters = facts.get("invocation_params") or {}
        ours = parameters.get("_type") == LLM_TYPE
        prompt = "" if ours else get_buffer_string([each for turns in messages for each in turns])
        self._model_start(run_id, parent_run_id, prompt, parameters, metadata, ours=ours)
        _asked.set((self.recorder, run_id))

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        """A model that is not for chats is asked."""
        parameters = facts.get("invocation_params") or {}
        self._model_start(run_id, parent_run_id, "\n".join(prompts), parameters, metadata)

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **_: Any) -> None:
        """A model goes on with its answer."""
        self.recorder.post(lambda: self.recorder.token_came(run_id))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """A model has answered."""
        self.recorder.post(lambda: self.recorder.model_ended(run_id, response))

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """Something has ended."""
        self.recorder.post(lambda: self.recorder.ended(run_id))

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """A tool has ended."""
        self.recorder.post(lambda: self.recorder.ended(run_id))

    def on_retriever_end(self, documents: Sequence[Any], *, run_id: UUID, **_: Any) -> None:
        """A retriever has ended."""
        self.recorder.post(lambda: self.recorder.ended(run_id))

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Something has failed, was cancelled, or waits for its user."""
        self.recorder.post(lambda: self.recorder.ended(run_id, error=error))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A tool has failed."""
        self.recorder.post(lambda: self.recorder.ended(run_id, error=error))

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A retriever has failed."""
        self.recorder.post(lambda: self.recorder.ended(run_id, error=error))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A model has failed."""
        self.recorder.post(lambda: self.recorder.ended(run_id, error=error))

    def _model_start(
        self,
        run_id: UUID,
        parent_run_id: UUID | None,
        prompt: str,
        parameters: dict[str, Any],
        metadata: dict[str, Any] | None,
        *,
        ours: bool = False,
    ) -> None:
        recorder = self.recorder
        recorder.require_open()
        recorder.post(
            lambda: recorder.model_began(
                run_id,
                parent_run_id,
                ours=ours,
                prompt=prompt,
                parameters=parameters,
                metadata=metadata or {},
            )
        )


def with_callbacks(config: RunnableConfig | None, callbacks: GraphCallbacks) -> RunnableConfig:
    """A config with our callbacks besides its own; LangGraph adds those around and of the graph."""
    own = _without_ours((config or {}).get("callbacks"))
    if isinstance(own, BaseCallbackManager):
        own.add_handler(callbacks)
    else:
        own = [*(own or ()), callbacks]
    return cast("RunnableConfig", {**(config or {}), "callbacks": own})


def around_without_ours() -> RunnableConfig | None:
    """The config of what runs here, as LangGraph would pass it on, without callbacks of ours.

    A graph within a graph has a recorder of its own, and is not to be recorded twice. None where
    nothing of ours is around.
    """
    try:
        config = get_config()
    except RuntimeError:  # not within a graph
        return None
    around = config.get("callbacks")
    if not isinstance(around, BaseCallbackManager) or not _ours(around.handlers):
        return None
    return cast("RunnableConfig", {**config, "callbacks": _without_ours(around)})


def _without_ours(callbacks: Any) -> Any:
    if isinstance(callbacks, BaseCallbackManager):
        callbacks = callbacks.copy()
        for handler in _ours(callbacks.handlers):
            callbacks.remove_handler(handler)
        return callbacks
    return callbacks and [each for each in callbacks if not isinstance(each, GraphCallbacks)]


def _ours(handlers: Sequence[BaseCallbackHandler]) -> list[BaseCallbackHandler]:
    return [handler for handler in handlers if isinstance(handler, GraphCallbacks)]
