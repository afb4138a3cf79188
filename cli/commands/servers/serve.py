"""`orchestrate serve`: vLLM's API server with our scheduler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cli.commands import options
from cli.commands.servers.addresses import require_key, url_of
from cli.commands.servers.replicas import replica_numbers, serve_replicas
from cli.terminal.output import say

_SERVER = "The server"
_REPLICAS = "Replicas"
_ANALYZER = "orchestrator.analyzer"

EPILOG = (
    "Example: orchestrate serve Qwen/Qwen3-0.6B --port 8000\n\n"
    "Flags of vLLM's server follow --: orchestrate serve Qwen/Qwen3-8B -- "
    "--tensor-parallel-size 2 --reasoning-parser qwen3\n\n"
    "Replicas on this machine: orchestrate serve Qwen/Qwen3-0.6B --replicas 2\n\n"
    "Keys with users and limits, read again on SIGHUP: orchestrate serve --api-keys keys.toml\n\n"
    "Settings may be in a TOML file that ORCHESTRATE_CONFIG names."
)


def serve(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [-- FLAGS OF VLLM]",
            help="The model, as --model; and flags that vLLM's own server takes.",
            show_default=False,
        ),
    ] = None,
    model: options.Model = None,
    policy: options.Policy = None,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on.", rich_help_panel=_SERVER)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT", min=1, max=65535, help="Port to listen on.", rich_help_panel=_SERVER
        ),
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Key that clients must send. ORCHESTRATE_API_KEY is safer: ps shows options.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file of keys with users and limits; ORCHESTRATE_API_KEY is not used then.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    access_log: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write a line of JSON for each request; - is the standard output.",
            rich_help_panel=_SERVER,
            show_default=False,
        ),
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="N|MIN-MAX",
            help="Serve replicas of the model, started by Ray, behind a gateway at the same "
            "address; of a range, as many as the deadlines need.",
            rich_help_panel=_REPLICAS,
            show_default=False,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="A running Ray cluster for the replicas, such as auto or HOST:6379; "
            "without it Ray is started on this machine.",
            rich_help_panel=_REPLICAS,
            show_default=False,
        ),
    ] = None,
    drain_s: Annotated[
        float,
        typer.Option(
            "--drain-s",
            metavar="S",
            min=0,
            help="Seconds that open requests have after SIGTERM.",
            rich_help_panel=_SERVER,
        ),
    ] = 30.0,
    analyzer: Annotated[
        bool | None,
        typer.Option(
            "--analyzer/--no-analyzer",
            help="Learn from the calls, to predict lengths and stages of clients without tags. "
            "Default: ORCHESTRATE_ANALYZER, else on.",
            rich_help_panel=_SERVER,
            show_default=False,
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen on an address of the network without a key.",
            rich_help_panel=_SERVER,
        ),
    ] = False,
    verbose: options.Verbose = None,
) -> None:
    """Serve a model by the OpenAI API with deadline scheduling, until Ctrl-C.

    SIGTERM finishes open requests first.
    """
    from cli.errors import BadInput
    from orchestrator.settings import read_settings
    from orchestrator.wiring import engine_config, server_tracing
    from serving.engine.server.api_keys import read_api_keys

    if api_key is not None and api_keys is not None:
        raise BadInput("give either --api-key or --api-keys")
    if ray is not None and replicas is None:
        raise BadInput("--ray is for replicas: say how many by --replicas")
    numbers = None if replicas is None else replica_numbers(replicas)
    if numbers is not None and access_log is not None:
        raise BadInput("--access-log is for one server; the gateway to replicas has none")
    named, vllm_flags = _model_and_flags(arguments or [])
    if named is not None and model is not None:
        raise BadInput(f"give the model once: {named}, or --model {model}")
    settings = read_settings(
        model=named or model, policy=policy, api_key=api_key, analyzer=analyzer, verbose=verbose
    )
    keep_state = settings.keep_scheduler_state is not False
    config = replace(engine_config(settings), keep_scheduler_state=keep_state)
    keys = () if api_keys is None else read_api_keys(api_keys)
    single_key = settings.api_key if api_keys is None else None
    has_keys = bool(keys) or single_key is not None
    require_key(host, port, has_keys=has_keys, insecure=insecure, used="the model")
    from serving.engine.server.server import serve as serve_model
    from serving.engine.setup.config import CAVEATS

    caveat = f" ({CAVEATS[config.model]})" if config.model in CAVEATS else ""
    address = url_of(host, port)
    say(f"starting {config.model}{caveat} at {address}, policy {config.policy.label}")
    if numbers is not None:
        serve_replicas(
            config,
            numbers=numbers,
            ray_address=ray,
            host=host,
            port=port,
            api_key=single_key,
            keys=keys,
            keys_file=api_keys,
            drain_s=drain_s,
            vllm_flags=vllm_flags,
            analyzer=_ANALYZER if settings.analyzer else None,
            tracing=server_tracing(settings, "orchestrate-gateway"),
        )
        return
    serve_model(
        config,
        host=host,
        port=port,
        api_key=single_key,
        keys_file=api_keys,
        access_log=access_log,
        drain_s=drain_s,
        vllm_flags=vllm_flags,
        analyzer=_ANALYZER if settings.analyzer else None,
        tracing=server_tracing(settings, "orchestrate-serve"),
        on_ready=lambda: say(f"ready: {address}"),
    )


def _model_and_flags(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The model before --, and the flags of vLLM after it."""
    from cli.errors import BadInput

    model = None
    if arguments and not arguments[0].startswith("-"):
        model, *arguments = arguments
    if arguments and not arguments[0].startswith("-"):
        raise BadInput(f"{arguments[0]!r}: one model is served; flags of vLLM follow --")
    return model, arguments
