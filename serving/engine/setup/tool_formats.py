"""Which of vLLM's tool parsers reads a model's tool calls.

Source: vLLM's documentation, "Tool Calling" (docs.vllm.ai/en/latest/features/tool_calling), which
names a parser for each family of models. Families that it lists with a chat template from vLLM's
examples are not here: with their own template the parser would not fit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from serving.engine.setup.model_loading import error_summary
from serving.errors import InvalidEngineConfig

if TYPE_CHECKING:
    from vllm.tokenizers import TokenizerLike

logger = logging.getLogger("orchestrate")

NO_PARSER = ("", "none")
"""Values of the setting `tool_parser` for none: tool calls by constrained decoding."""


class ToolFormat(NamedTuple):
    """A format of tool calls.

    Attributes:
        parser: the name of vLLM's parser.
        model_types: of Hugging Face's configurations.
        marks: texts that a chat template has if it teaches this format.
    """

    parser: str
    model_types: frozenset[str]
    marks: tuple[str, ...]


_QWEN = frozenset(
    {
        "qwen2",
        "qwen2_moe",
        "qwen2_5_vl",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_5",
        "qwen3_5_moe",
    }
)

TOOL_FORMATS = (
    ToolFormat("qwen3_xml", _QWEN, ("<tool_call>", "<function=")),  # Qwen3-Coder
    ToolFormat("hermes", _QWEN, ("<tool_call>",)),  # Qwen2.5, QwQ, Qwen3
    ToolFormat("hermes", frozenset({"llama", "mistral"}), ("<tool_call>",)),  # Hermes 2 Pro, 3
    ToolFormat("llama3_json", frozenset({"llama", "mllama"}), ("Environment: ipython",)),
    ToolFormat("mistral", frozenset({"mistral", "mistral3", "mixtral"}), ("[TOOL_CALLS]",)),
    ToolFormat("granite4", frozenset({"granitemoehybrid"}), ("<tool_call>",)),
    ToolFormat("granite", frozenset({"granite", "granitemoe"}), ("<|tool_call|>",)),
    ToolFormat("glm45", frozenset({"glm4_moe", "glm4_moe_lite"}), ("<tool_call>", "<arg_key>")),
    ToolFormat("kimi_k2", frozenset({"kimi_k2"}), ("<|tool_calls_section_begin|>",)),
    ToolFormat("hunyuan_a13b", frozenset({"hunyuan_v1_moe"}), ("<tool_calls>",)),
    ToolFormat("jamba", frozenset({"jamba"}), ("<tool_calls>",)),
    ToolFormat("olmo3", frozenset({"olmo3"}), ("<function_calls>",)),
)
"""The first that fits a model is used."""


def tool_parser_for(
    setting: str | None, model: str, model_type: str, tokenizer: TokenizerLike
) -> str:
    """The name of the parser that an engine uses; "" for none.

    Args:
        setting: a parser's name, "" or "none" for none; None: the model decides.
    Raises:
        InvalidEngineConfig: the name is unknown, or the parser does not fit the model's tokenizer.
    """
    template = getattr(tokenizer, "chat_template", None)
    if setting is None:
        name = parser_of(model_type, template)
        return name if name and not _fault_of(name, tokenizer) else ""
    if setting in NO_PARSER:
        return ""
    require_parser(setting)
    if fault := _fault_of(setting, tokenizer):
        raise InvalidEngineConfig("tool_parser", setting, f"does not fit {model}: {fault}")
    if not knows_tools(template):
        logger.warning(
            "the chat template of %s does not show it the tools; tool_parser=%s reads its calls",
            model,
            setting,
        )
    return setting


def parser_of(model_type: str, chat_template: object) -> str:
    """The name of the parser for a model; "" if none is known, or its template knows no tools.

    Args:
        chat_template: a text, or texts by name, as tokenizers have it; None: the model has none.
    """
    template = _tool_template(chat_template)
    if not knows_tools(chat_template):
        return ""
    fitting = (
        each.parser
        for each in TOOL_FORMATS
        if model_type in each.model_types and all(mark in template for mark in each.marks)
    )
    return next(fitting, "")


def require_parser(name: str) -> None:
    """Raise InvalidEngineConfig if vLLM has no tool parser of this name; imports vLLM."""
    from vllm.tool_parsers import ToolParserManager

    names = ToolParserManager.list_registered()
    if name not in names:
        raise InvalidEngineConfig(
            "tool_parser", name, f"must be none, or one of {', '.join(names)}"
        )


def knows_tools(chat_template: object) -> bool:
    """Whether a chat template shows a model the tools that it may call."""
    return "tools" in _tool_template(chat_template)


def _tool_template(chat_template: object) -> str:
    """The template that transformers uses for a chat with tools; "" if there is none."""
    if isinstance(chat_template, Mapping):
        chat_template = chat_template.get("tool_use") or chat_template.get("default")
    return chat_template if isinstance(chat_template, str) else ""


def _fault_of(name: str, tokenizer: TokenizerLike) -> str:
    """Why a parser cannot be used with a tokenizer; "" if it can."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    chat: Any = ChatCompletionRequest(messages=[], tools=[_PROBE], tool_choice="auto")
    try:
        parser = ToolParserManager.get_tool_parser(name)(tokenizer, chat.tools)
        parser.extract_tool_calls("", parser.adjust_request(chat))
    except Exception as error:  # of any class: a parser looks for tokens that others lack
        return error_summary(error)
    return ""


_PROBE = {
    "type": "function",
    "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}},
}
