"""A gateway and its replicas on Ray, from the start to the end of the last stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from serving.gateway.gateway import Gateway, GatewaySettings, stop_signals
from serving.replicas.ray_replicas import RayReplicas

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_FOLLOW_S = 0.5
"""Seconds between two looks at where the replicas are."""


def run_replicas(
    settings: GatewaySettings,
    replicas: RayReplicas,
    say: Callable[[str], None],
    tracing: AbstractAsyncContextManager[Tracer | None] | None = None,
) -> None:
    """Start the replicas and a gateway to them; runs until SIGINT or SIGTERM, and blocks.

    The gateway answers as soon as the first replica does.

    Args:
        say: is told of each replica that answers or has gone.
        tracing: gives the tracer of the gateway's spans.
    Raises:
        InvalidEngineConfig: nothing can listen at the gateway's address.
        RayUnreachable: there is no cluster at the address, or Ray cannot start.
        ReplicaFailed: the replicas cannot start.
    """
    import uvloop

    uvloop.run(_run(settings, replicas, say, tracing or nullcontext()))


async def _run(
    settings: GatewaySettings,
    replicas: RayReplicas,
    say: Callable[[str], None],
    tracing: AbstractAsyncContextManager[Tracer | None],
) -> None:
    async with tracing as tracer:
        gateway = Gateway(settings, tracer)
        try:
            await gateway.start()
            await replicas.connect()
            with stop_signals() as stopped:  # after Ray has installed its own handlers
                await _follow(gateway, replicas, stopped, say)
        finally:
            await gateway.stop()
            await replicas.close()


async def _follow(
    gateway: Gateway, replicas: RayReplicas, stopped: asyncio.Event, say: Callable[[str], None]
) -> None:
    """Deploy the replicas, and have the gateway use those that there are, until it is stopped."""
    deployment = asyncio.create_task(replicas.deploy())
    is_deployed = False
    known: list[str] = []
    while not stopped.is_set():
        urls = await replicas.urls()
        if urls != known:
            await gateway.set_replicas(urls)
            for each in urls:
                if each not in known:
                    say(f"replica {each} answers, {len(urls)} do")
            for each in known:
                if each not in urls:
                    say(f"replica {each} has ended, {len(urls)} answer")
            known = urls
        if not is_deployed and deployment.done():
            deployment.result()
            is_deployed = True
            say("ready")
        with suppress(TimeoutError):
            async with asyncio.timeout(_FOLLOW_S):
                await stopped.wait()
