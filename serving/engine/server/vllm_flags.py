"""Flags of vLLM's API server that users give themselves (`orchestrate serve MODEL -- --flag ...`).

They count over ours, but for those that would break the scheduler or its server: these are refused
by name, with what to do in their place.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from serving.engine.setup.engine_args import RESERVED, check_names
from serving.errors import InvalidEngineConfig

if TYPE_CHECKING:
    from argparse import Namespace

_ONE_SERVER = "one process serves one engine; start several servers, with a gateway before them"

SERVER_RESERVED: Mapping[str, str] = MappingProxyType(
    {
        **RESERVED,
        "api_key": "give it before --, or set ORCHESTRATE_API_KEY",
        "api_server_count": _ONE_SERVER,
        "config": "name a file of settings by ORCHESTRATE_CONFIG",
        "data_parallel_multi_port_external_lb": _ONE_SERVER,
        "grpc": "serving by gRPC would pass SLO tags and keys by",
        "headless": _ONE_SERVER,
        "host": "give it before --",
        "port": "give it before --",
        "tokens_only": "it serves none of the paths that carry SLO tags",
        "uds": "the server listens on --host and --port",
        "enable_log_outputs": "answers may be private; run the server of vLLM itself to debug them",
    }
)
"""Name of an argument of vLLM's server -> why it cannot be set, or what to do in its place."""

_HELP = ("-h", "--help")


def given_flags(flags: Sequence[str]) -> dict[str, Any]:
    """The values that these flags set, by the argument's name in vLLM; without any defaults.

    Raises:
        InvalidEngineConfig: vLLM knows no such flag, its value is invalid, or it is reserved.
    """
    if not flags:
        return {}
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise InvalidEngineConfig("vLLM's flags", " ".join(flags), message)

    for flag in flags:
        if flag.partition("=")[0] in _HELP:
            raise InvalidEngineConfig(
                "vLLM's flags", flag, "vLLM's own documentation lists them: `vllm serve --help=all`"
            )
    parser = make_arg_parser(Parser(prog="vllm serve"))
    # argparse has no other way to leave defaults out.
    for action in parser._actions:  # noqa: SLF001
        action.default = argparse.SUPPRESS
    given: dict[str, Any] = vars(parser.parse_args(list(flags)))
    check_names(given, SERVER_RESERVED)
    return given


def set_flags(parsed: Namespace, given: Mapping[str, Any]) -> None:
    """Put a user's values over those of our own command line.

    Middleware is added before ours, because the last one is outermost: ours decides who may enter.
    """
    for name, value in given.items():
        if name == "middleware":
            value = [*value, *parsed.middleware]
        setattr(parsed, name, value)
