"""model_info: what is known of a model of the run."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.execution.context import current_context
from orchestrator.sdk.steps import step


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that answers calls of the run.

    Attributes:
        parameters: number of its weights; None: not known.
        context_tokens: most tokens of a prompt and its answer together; None: not known.
        random_weights: its text is meaningless.
        tool_parser: how the engine reads tool calls in the model's own format; "": it does not.
    """

    name: str
    parameters: int | None
    context_tokens: int | None
    random_weights: bool
    tool_parser: str = ""


async def model_info(engine: str | None = None, *, model: str | None = None) -> ModelInfo:
    """What is known of a model, for flows that ask a small one differently.

    It starts the engine. The value is recorded: a resumed run gets the same one.

    Args:
        engine, model: as in `llm`; by default the model of the default engine.
    Raises:
        OutsideRun: not within a flow.
        UnknownEngine, UnknownModel, ModelNotServed: there is no such engine or model.
        ServingError: the engine cannot start.
    """
    current_context("model_info()")
    return await _model_info(engine, model=model)


@step(name="model-info")
async def _model_info(engine: str | None = None, model: str | None = None) -> ModelInfo:
    engines = current_context("model_info()").run.engines
    if engine is None and model is None:
        await engines.start()
    info = (await engines.select(engine, model)).info
    return ModelInfo(
        info.model,
        info.parameters,
        info.max_model_tokens,
        info.random_weights,
        info.tool_parser,
    )
