"""Flags of vLLM's API server that users give themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from serving.engine.server.vllm_flags import SERVER_RESERVED, given_flags, set_flags
from serving.engine.setup.config import EngineConfig
from serving.engine.setup.engine_args import RESERVED
from serving.errors import InvalidEngineConfig

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("imported_vllm")]


def test_only_what_is_given_is_set() -> None:
    flags = ["--tensor-parallel-size", "2", "--enable-auto-tool-choice", "--speculative-config.k=1"]
    assert given_flags(flags) == {
        "tensor_parallel_size": 2,
        "enable_auto_tool_choice": True,
        "speculative_config": {"k": 1},
    }
    assert given_flags([]) == {}


def test_a_reserved_flag_is_refused_with_what_to_do_in_its_place() -> None:
    with pytest.raises(InvalidEngineConfig, match="start several servers"):
        given_flags(["--data-parallel-size", "2"])
    with pytest.raises(InvalidEngineConfig, match="before --"):
        given_flags(["some/model"])


def test_every_reserved_name_is_an_argument_of_vllm() -> None:
    """So that a new version of vLLM, which renames one, is noticed."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    known = {action.dest for action in make_arg_parser(FlexibleArgumentParser())._actions}
    assert SERVER_RESERVED.keys() - known == {"policy"}


def test_given_values_count_over_ours_and_our_middleware_stays_outermost() -> None:
    parsed: Any = SimpleNamespace(generation_config="vllm", middleware=["ours.First", "ours.Last"])
    set_flags(parsed, {"generation_config": "auto", "middleware": ["theirs"]})
    assert parsed.generation_config == "auto"
    assert parsed.middleware == ["theirs", "ours.First", "ours.Last"]


def test_arguments_of_an_embedded_engine_are_checked_too() -> None:
    config = EngineConfig(engine_args={"tensor_parallel_size": 2})
    assert config.vllm_arguments("/model", "gpu")["tensor_parallel_size"] == 2
    for name in RESERVED:
        with pytest.raises(InvalidEngineConfig, match=name):
            EngineConfig(engine_args={name: 1})
