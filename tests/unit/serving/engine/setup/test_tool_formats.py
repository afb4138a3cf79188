"""Which tool parser a model gets, by its type and chat template."""

from __future__ import annotations

from typing import Any

import pytest

from serving.engine.setup.tool_formats import TOOL_FORMATS, knows_tools, parser_of

QWEN25 = '{%- if tools %}...<tool_call>\n{"name": "...", "arguments": ...}\n</tool_call>'
QWEN3_CODER = "{% for tool in tools %}<tool_call>\n<function=...>\n</function>\n</tool_call>"
LLAMA31 = "{%- if tools is not none %}Environment: ipython{{ tools }}"


@pytest.mark.parametrize(
    ("model_type", "template", "parser"),
    [
        ("qwen2", QWEN25, "hermes"),
        ("qwen3", QWEN25, "hermes"),
        ("qwen3_moe", QWEN3_CODER, "qwen3_xml"),
        ("llama", LLAMA31, "llama3_json"),
        ("llama", QWEN25, "hermes"),
        ("mistral", "{{ tools }}[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral"),
        ("granitemoehybrid", QWEN25, "granite4"),
        ("qwen2", {"default": "no", "tool_use": QWEN25}, "hermes"),
        ("qwen2", {"default": QWEN25}, "hermes"),
        ("qwen2", "<|im_start|><tool_call>", ""),  # it is not shown the tools
        ("qwen2", "{{ tools }}", ""),  # it is taught another format
        ("mamba", QWEN25, ""),
        ("llama", None, ""),
        ("", "", ""),
    ],
)
def test_a_parser_is_chosen_if_the_template_teaches_its_format(
    model_type: str, template: Any, parser: str
) -> None:
    assert parser_of(model_type, template) == parser


def test_a_template_knows_tools_if_it_names_them() -> None:
    assert knows_tools(QWEN25)
    assert not knows_tools("{% for message in messages %}")
    assert not knows_tools(None)


def test_no_format_of_the_table_is_hidden_by_one_before_it() -> None:
    for index, each in enumerate(TOOL_FORMATS):
        for model_type in each.model_types:
            template = "tools " + " ".join(each.marks)
            before = [other for other in TOOL_FORMATS[:index] if model_type in other.model_types]
            assert not any(set(other.marks) <= set(each.marks) for other in before)
            assert parser_of(model_type, template) == each.parser
