"""`orchestrate serve --replicas`: replicas of a model on Ray, behind a gateway."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cli.commands.servers.addresses import url_of
from cli.terminal.output import say

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from opentelemetry.trace import Tracer

    from serving.engine.server.api_keys import ApiKey
    from serving.engine.setup.config import EngineConfig


def replica_numbers(written: str) -> tuple[int, int]:
    """The fewest and the most replicas of an option such as 2 or 1-4.

    Raises:
        BadInput: it is neither.
    """
    from cli.errors import BadInput

    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", written.strip())
    fewest, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= fewest <= most:
        raise BadInput(f"--replicas {written!r}: give a number such as 2, or a range such as 1-4")
    return fewest, most


def serve_replicas(
    config: EngineConfig,
    *,
    numbers: tuple[int, int],
    ray_address: str | None,
    host: str,
    port: int,
    api_key: str | None,
    keys: Sequence[ApiKey],
    keys_file: Path | None,
    drain_s: float,
    vllm_flags: Sequence[str],
    analyzer: str | None,
    tracing: AbstractAsyncContextManager[Tracer] | None,
) -> None:
    """Serve replicas of a model until a signal.

    Args:
        numbers: the fewest and the most replicas.
        ray_address: of the Ray cluster; None: Ray is started on this machine.
        api_key: the single key that clients may send.
        keys: those in `keys_file`.
        analyzer: the module of the analyzer's process beside each replica.
        tracing: of the gateway.
    Raises:
        RayMissing: Ray is not installed.
    """
    from serving.errors import RayMissing

    try:
        from serving.replicas.ray_replicas import RayReplicas, Scale
    except ModuleNotFoundError as missing:
        raise RayMissing(str(missing)) from missing
    from serving.engine.server.api_keys import ApiKey, digest_of
    from serving.engine.server.vllm_flags import given_flags
    from serving.engine.setup.config import vllm_platform
    from serving.gateway.gateway import GatewaySettings
    from serving.replicas.replica_spec import ReplicaSpec, gpus_of
    from serving.replicas.run_replicas import run_replicas

    own_key = api_key
    if keys:  # the gateway's own, for what it asks itself
        own_key = secrets.token_urlsafe(32)
    elif api_key is not None:
        keys = (ApiKey(digest_of(api_key.encode())),)
    spec = ReplicaSpec(
        config,
        host="127.0.0.1" if ray_address is None else None,
        api_key=own_key,
        keys=None if keys_file is None else keys_file.read_text(encoding="utf-8"),
        vllm_flags=tuple(vllm_flags),
        analyzer=analyzer,
        drain_s=drain_s,
    )
    arguments = {**config.engine_args, **given_flags(vllm_flags)}
    replicas = RayReplicas(
        f"orchestrate-{socket.gethostname()}-{port}",
        spec,
        Scale(*numbers, gpus=gpus_of(arguments, vllm_platform())),
        address=ray_address,
        verbose=config.verbose,
    )
    settings = GatewaySettings(
        (), host=host, port=port, keys=keys, api_key=own_key, drain_s=drain_s
    )
    url = url_of(host, port)
    run_replicas(settings, replicas, lambda text: say(f"{url}: {text}"), tracing)
    say("the replicas have stopped")
