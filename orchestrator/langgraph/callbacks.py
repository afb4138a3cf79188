"""LangChain callbacks that report a graph's execution to its recorder.

Only public API of langchain-core is used. Two behaviours are not documented, and are tested: a
handler with `run_inline` is called in the context of the code that it reports on, so that a
ContextVar it sets is visible there; and a chat model's `invocation_params` hold its `_llm_type` as
`_type`.
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

from orchestrator.execution.carried_slo import set_handover
from orchestrator.execution.context import set_context
from orchestrator.langgraph.openai_models import carry_deadlines
from orchestrator.langgraph.recording import NAMESPACE, GraphRecorder

LLM_TYPE = "orchestrate"
"""The `_llm_type` of ChatOrchestrate, by which its calls are recognised."""

_model_call: ContextVar[tuple[GraphRecorder, UUID] | None] = ContextVar(
    "orchestrate_model_call", default=None
)


def recorder_of(manager: BaseRunManager | None) -> tuple[GraphRecorder, UUID] | None:
    """The recorder of the graph that a chat model's call is part of, and the call's id there.

    Args:
        manager: of the call; None if LangChain passes none, as in streaming.
    Returns:
        None outside a recorded graph.
    """
    for handler in () if manager is None else manager.handlers:
        if isinstance(handler, GraphCallbacks):
            assert manager is not None
            return handler.recorder, manager.run_id
    return _model_call.get()


def activity_here() -> tuple[GraphRecorder, UUID] | None:
    """The node or tool that the code here is part of, and its recorder; None outside a graph."""
    try:
        callbacks = get_config().get("callbacks")
    except RuntimeError:  # not within a graph
        return None
    if not isinstance(callbacks, BaseCallbackManager) or callbacks.parent_run_id is None:
        return None
    ours = [each for each in callbacks.handlers if isinstance(each, GraphCallbacks)]
    return (ours[-1].recorder, callbacks.parent_run_id) if ours else None


class GraphCallbacks(BaseCallbackHandler):
    """Reports starts and ends to a recorder; raises RunEnded for a start after the run's end."""

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
        """A graph, a node or another runnable begins."""
        recorder, details = self.recorder, metadata or {}
        recorder.require_open()
        hidden = TAG_HIDDEN in (tags or ())
        is_run_thread = recorder.post(
            lambda: recorder.chain_began(run_id, parent_run_id, details, hidden=hidden)
        )
        if is_run_thread and NAMESPACE in details and (context := recorder.context(run_id)):
            set_context(context)

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **details: Any,
    ) -> None:
        """A tool begins."""
        recorder = self.recorder
        recorder.require_open()
        name = str(details.get("name") or (serialized or {}).get("name") or "tool")
        recorder.post(lambda: recorder.tool_began(run_id, parent_run_id, name))

    def on_retriever_start(
        self,
        serialized: dict[str, Any] | None,
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **details: Any,
    ) -> None:
        """A retriever begins; it is recorded as a tool."""
        self.on_tool_start(serialized, query, run_id=run_id, parent_run_id=parent_run_id, **details)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **details: Any,
    ) -> None:
        """A chat model's call begins."""
        parameters = details.get("invocation_params") or {}
        is_ours = parameters.get("_type") == LLM_TYPE
        flat = [message for batch in messages for message in batch]
        prompt = "" if is_ours else get_buffer_string(flat)
        self._model_start(run_id, parent_run_id, prompt, parameters, metadata, is_ours=is_ours)
        _model_call.set((self.recorder, run_id))

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **details: Any,
    ) -> None:
        """A call of a model without a chat interface begins."""
        parameters = details.get("invocation_params") or {}
        self._model_start(run_id, parent_run_id, "\n".join(prompts), parameters, metadata)

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **_: Any) -> None:
        """A model returns a token."""
        self.recorder.post(lambda: self.recorder.token_received(run_id))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """A model has answered."""
        self.recorder.post(lambda: self.recorder.model_ended(run_id, response))

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """A runnable has ended."""
        self.recorder.post(lambda: self.recorder.ended(run_id))

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """A tool has ended."""
        self.recorder.post(lambda: self.recorder.ended(run_id))

    def on_retriever_end(self, documents: Sequence[Any], *, run_id: UUID, **_: Any) -> None:
        """A retriever has ended."""
        self.recorder.post(lambda: self.recorder.ended(run_id))

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A runnable has failed, was cancelled, or waits for the user."""
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
        is_ours: bool = False,
    ) -> None:
        recorder = self.recorder
        recorder.require_open()
        handover = None if is_ours else recorder.handover()
        if handover is not None:
            carry_deadlines()
            set_handover(handover)
        recorder.post(
            lambda: recorder.model_began(
                run_id,
                parent_run_id,
                handover=handover,
                prompt=prompt,
                parameters=parameters,
                metadata=metadata or {},
            )
        )


def with_callbacks(config: RunnableConfig | None, callbacks: BaseCallbackHandler) -> RunnableConfig:
    """A config with `callbacks` added; LangGraph adds those of the graph and of the code around."""
    own = _without_ours((config or {}).get("callbacks"))
    if isinstance(own, BaseCallbackManager):
        own.add_handler(callbacks)
    else:
        own = [*(own or ()), callbacks]
    return cast("RunnableConfig", {**(config or {}), "callbacks": own})


def outer_config_without_ours() -> RunnableConfig | None:
    """The config of the graph around the current code, without our callbacks.

    A graph within a graph has a recorder of its own, and must not be recorded twice. None if there
    is no graph around, or none with our callbacks.
    """
    try:
        config = get_config()
    except RuntimeError:  # not within a graph
        return None
    callbacks = config.get("callbacks")
    if not isinstance(callbacks, BaseCallbackManager) or not _ours(callbacks.handlers):
        return None
    return cast("RunnableConfig", {**config, "callbacks": _without_ours(callbacks)})


def _without_ours(callbacks: Any) -> Any:
    if isinstance(callbacks, BaseCallbackManager):
        callbacks = callbacks.copy()
        for handler in _ours(callbacks.handlers):
            callbacks.remove_handler(handler)
        return callbacks
    return callbacks and [each for each in callbacks if not isinstance(each, GraphCallbacks)]


def _ours(handlers: Sequence[BaseCallbackHandler]) -> list[BaseCallbackHandler]:
    return [handler for handler in handlers if isinstance(handler, GraphCallbacks)]
