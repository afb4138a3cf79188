"""embed: texts as vectors."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.execution.call_options import CallOptions
from orchestrator.execution.context import current_context
from orchestrator.execution.embedding_calls import run_embedding_call


async def embed(
    texts: Sequence[str], *, engine: str | None = None, model: str | None = None
) -> list[list[float]]:
    """Compute a vector for each text, by an engine that can: a server of an embedding model.

    It is one call of the run, recorded as a tool: a resumed run gets the same numbers. Many texts
    are sent in several requests.

    Args:
        texts: any number of them; without any nothing is called.
        engine, model: as in `llm`.
    Returns:
        The vectors in the order of the texts, all of one length.
    Raises:
        EmbeddingsNotSupported: the engine only generates text, as an embedded one does.
        UnknownEngine, UnknownModel, ModelNotServed: there is no such engine, or none serves the
            model.
        DeadlineExceeded: the current deadline passed first.
        ServingError: the engine could not answer; see serving.errors.
        OutsideRun: not within a flow.
        ValueError: it is no list of texts.
    """
    context = current_context("embed()")
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ValueError(f"embed() takes a list of texts, not {texts!r:.80}")
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"embed() takes texts, not {text!r:.80}")
    if not texts:
        return []
    return await run_embedding_call(context, texts, CallOptions(engine=engine, model=model))
