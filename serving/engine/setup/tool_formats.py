"""Which of vLLM's tool parsers reads a model's tool calls.

Source: vLLM's documentation, "Tool Calling" (docs.vllm.ai/en/latest/features/tool_calling), which
names a parser for each family of models. Families that it lists with a chat template from vLLM's
examples are not here: with their own template the parser would not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from serving.errors import InvalidEngineConfig

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
