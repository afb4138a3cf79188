"""Which tool parser reads the tool calls of a server's model."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from serving.engine.setup.config import EngineConfig
from serving.engine.setup.model_size import num_parameters
from serving.engine.setup.random_model import has_random_weights
from serving.engine.setup.tool_formats import NO_PARSER, tool_parser_for
from serving.schema_bound import bounds_for

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_FLAGS = frozenset({"tool_call_parser", "enable_auto_tool_choice"})


def set_tool_parser(
    parsed: Namespace, config: EngineConfig, given: Mapping[str, Any], engine: AsyncLLM
) -> None:
    """Choose a parser by the model, if no setting and no flag does; else ours, for calls in JSON.

    Models whose chats vLLM renders by code of their own get the parser that is named, or none.

    Args:
        parsed: arguments of vLLM's server, in which the parser is set.
        given: a user's own flags, which count over all else.
    Raises:
        InvalidEngineConfig: the parser that the setting names does not fit the model's tokenizer.
    """
    from vllm.renderers.hf import HfRenderer

    tokenizer = engine.renderer.tokenizer
    if _FLAGS & given.keys() or config.tool_parser in NO_PARSER or tokenizer is None:
        return
    model_type = str(getattr(engine.model_config.hf_config, "model_type", ""))
    name = tool_parser_for(config.tool_parser, config.model, model_type, tokenizer)
    if not name and isinstance(engine.renderer, HfRenderer) and model_type != "gpt_oss":
        from serving.engine.server.schema_bound_parser import PARSER, use_schema_bound_tools

        path = engine.model_config.model
        is_random = has_random_weights(path)
        parameters = num_parameters(config.model, path)
        use_schema_bound_tools(
            engine.renderer, bounds_for(random_weights=is_random, parameters=parameters)
        )
        name = PARSER
    if name:
        vars(parsed).update(tool_call_parser=name, enable_auto_tool_choice=True)
