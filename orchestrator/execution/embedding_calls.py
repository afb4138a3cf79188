"""One call that computes embeddings: recorded as a tool of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import to_json

from orchestrator.durability.digests import digest_of
from orchestrator.durability.values import ValueCodec
from orchestrator.errors import ResultNotSerialisable
from orchestrator.execution.call_options import CallOptions
from orchestrator.execution.call_recording import begin_call, recorded_call
from orchestrator.execution.context import CallContext
from orchestrator.execution.step_execution import Replayed, StepSpec, begin_or_replay
from serving.embedding import EmbeddingEngine
from serving.errors import EmbeddingsNotSupported
from store.records import StepKind

Vectors = list[list[float]]


class VectorCodec(ValueCodec):
    """Writes each number with the digits that identify it, so that it is read back unchanged.

    A million numbers take a tenth of the time of ValueCodec, which compares what it reads.
    """

    def round_trip(self, value: Any) -> tuple[bytes, Vectors]:
        """The vectors as JSON, and as lists of floats.

        Raises:
            ResultNotSerialisable: a value is not finite, which JSON cannot hold.
        """
        vectors = [[float(number) for number in vector] for vector in value]
        if not all(math.isfinite(number) for vector in vectors for number in vector):
            raise ResultNotSerialisable("embeddings", "a value is not finite")
        return to_json(vectors), vectors


EMBED_STEP = StepSpec("embed", StepKind.TOOL, VectorCodec("embeddings", Vectors))


async def run_embedding_call(
    context: CallContext, texts: Sequence[str], options: CallOptions
) -> Vectors:
    """Compute a vector for each text as one call of the run, or return the recorded ones.

    It is recorded as a tool: it generates no tokens, and to repeat it does no harm.

    Raises:
        EmbeddingsNotSupported: the engine only generates text.
        And as `begin_or_replay`, and the engine.
    """
    spec = replace(EMBED_STEP, arguments=digest_of(list(texts)))
    step = await begin_or_replay(context, spec)
    if isinstance(step, Replayed):
        recorded: Vectors = step.value
        return recorded
    selected = await context.run.engines.try_select(options.engine, options.model)
    call = begin_call(step, "tool", f"{selected.info.model}:{spec.name}", selected)
    async with recorded_call(step, call) as outcome:
        engine = selected.engine
        if not isinstance(engine, EmbeddingEngine):
            raise EmbeddingsNotSupported(selected.name or selected.info.name, selected.info.model)
        vectors: Vectors
        outcome["result"], vectors = spec.codec.round_trip(await engine.embed(texts))
        return vectors
