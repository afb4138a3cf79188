"""model_info: what is known of the run's model."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.execution.context import current_context
from orchestrator.sdk.steps import step


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The run's model.

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


async def model_info() -> ModelInfo:
    """What is known of the run's model, for flows that ask a small one differently.

    It starts the engine. The value is recorded: a resumed run gets the same one.

    Raises:
        OutsideRun: not within a flow.
        ServingError: the engine cannot start.
    """
    current_context("model_info()")
    return await _model_info()


@step(name="model-info")
async def _model_info() -> ModelInfo:
    engine = current_context("model_info()").run.engine
    await engine.start()
    info = engine.info
    return ModelInfo(
        info.model,
        info.parameters,
        info.max_model_tokens,
        info.random_weights,
        info.tool_parser,
    )
