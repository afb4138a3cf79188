"""`orchestrate gateway`: one address for several replicas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands import options
from cli.commands.servers.addresses import require_key, url_of
from cli.terminal.output import say

if TYPE_CHECKING:
    from serving.gateway.gateway import Gateway

EPILOG = (
    "Example: orchestrate gateway http://gpu1:8000 http://gpu2:8000 --port 8080\n\n"
    "Example: orchestrate gateway http://gpu1:8000 http://gpu2:8000 --router slos_serve "
    "--router-param share=0.9"
)

_GATEWAY = "The gateway"


def _routers() -> list[str]:
    """The names of all routers, for the shell's completion."""
    from serving.router.table import ROUTERS

    return list(ROUTERS)


def gateway(
    urls: Annotated[
        list[str],
        typer.Argument(metavar="URL...", help="Addresses of the replicas.", show_default=False),
    ],
    router: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How a replica is chosen: power_of_k, slos_serve, least_loaded or round_robin.",
            autocompletion=_routers,
        ),
    ] = "power_of_k",
    router_param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A parameter of the router, such as k=3; repeatable.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on.", rich_help_panel=_GATEWAY)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT", min=1, max=65535, help="Port to listen on.", rich_help_panel=_GATEWAY
        ),
    ] = 8080,
    drain_s: Annotated[
        float,
        typer.Option(
            "--drain-s",
            metavar="S",
            min=0,
            help="Seconds that open requests have after SIGTERM or Ctrl-C.",
            rich_help_panel=_GATEWAY,
        ),
    ] = 30.0,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Key that clients must send, and that the gateway sends to the replicas. "
            "ORCHESTRATE_API_KEY is safer: ps shows options.",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file of keys that clients may send. ORCHESTRATE_API_KEY is then only what "
            "the gateway sends to the replicas.",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen on an address of the network without a key.",
            rich_help_panel=_GATEWAY,
        ),
    ] = False,
    verbose: options.Verbose = None,
) -> None:
    """Route the requests of OpenAI clients to replicas by deadline and load, until Ctrl-C.

    A replica is `orchestrate serve`, or another OpenAI-compatible server.
    """
    from orchestrator.settings import read_settings
    from orchestrator.wiring import server_tracing
    from serving.engine.server.api_keys import ApiKey, digest_of, read_api_keys
    from serving.gateway.gateway import GatewaySettings, gateway_router, run_gateway

    read = read_settings(api_key=api_key, verbose=verbose)
    own_key = read.api_key
    keys: Sequence[ApiKey] = ()
    if api_keys is not None:
        keys = read_api_keys(api_keys)
    elif own_key is not None:
        keys = (ApiKey(digest_of(own_key.encode())),)
    require_key(host, port, has_keys=bool(keys), insecure=insecure, used="the replicas")
    settings = GatewaySettings(
        urls,
        gateway_router(router, _params(router_param or ())),
        host=host,
        port=port,
        keys=keys,
        api_key=own_key,
        drain_s=drain_s,
    )

    def ready(running: Gateway, port: int) -> None:
        say(
            f"gateway at {url_of(host, port)} is ready, router {router}: "
            f"{running.num_answering} of {len(urls)} replicas answer"
        )

    say(f"starting a gateway to {', '.join(urls)}")
    run_gateway(settings, ready, server_tracing(read, "orchestrate-gateway"))
    say("the gateway has stopped")


def _params(written: Sequence[str]) -> dict[str, Any]:
    """The values of parameters: numbers, true, false, or texts."""
    from cli.errors import BadInput

    params: dict[str, Any] = {}
    for each in written:
        key, equals, value = (part.strip() for part in each.partition("="))
        if not (key and equals and value) or key in params:
            raise BadInput(f"--router-param {each!r}: write KEY=VALUE, each key once")
        try:
            params[key] = json.loads(value)
        except ValueError:
            params[key] = value
        if not isinstance(params[key], bool | int | float | str):
            raise BadInput(f"--router-param {each!r}: a value is a number, true, false or a text")
    return params
