"""`orchestrate serve`: vLLM's API server with our scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands import options
from cli.terminal.output import say

_SERVER = "The server"


def serve(
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
    """Serve a model by the OpenAI API with deadline scheduling, until Ctrl-C."""
    from cli.errors import BadInput
    from orchestrator.settings import read_settings
    from orchestrator.wiring import engine_config
    from serving.engine.server.api_keys import read_api_keys
    from serving.engine.server.local_host import is_loopback

    if api_key is not None and api_keys is not None:
        raise BadInput("give either --api-key or --api-keys")
    settings = read_settings(model=model, policy=policy, api_key=api_key, verbose=verbose)
    config = engine_config(settings)
    keys = () if api_keys is None else read_api_keys(api_keys)
    single_key = settings.api_key if api_keys is None else None
    if not (is_loopback(host) or keys or single_key is not None or insecure):
        raise BadInput(
            f"any client that can reach {host}:{port} could use the model: set "
            "ORCHESTRATE_API_KEY, give --api-keys, a loopback --host, or --insecure"
        )
    from serving.engine.server.server import serve as serve_model
    from serving.engine.setup.config import CAVEATS

    caveat = f" ({CAVEATS[config.model]})" if config.model in CAVEATS else ""
    say(f"starting {config.model}{caveat} at http://{host}:{port}/v1, policy {config.policy.label}")
    serve_model(config, host=host, port=port, api_key=single_key, api_keys=keys)
