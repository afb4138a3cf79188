"""vLLM's own OpenAI API server, with our scheduler and the SLO contract on its wire."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from serving.engine.server.slo_middleware import DROPPED_STATUS, KeyGuard, SloMiddleware, note_drop
from serving.engine.setup.config import DEMO_MODEL, EngineConfig, vllm_platform
from serving.engine.setup.demo_model import has_random_weights
from serving.engine.setup.model_loading import model_path, quieten, telling_line
from serving.errors import (
    EngineDied,
    InvalidEngineConfig,
    ModelNotLoaded,
    RequestDropped,
    error_of_stop_reason,
)

if TYPE_CHECKING:
    from argparse import Namespace

    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
KEEP_ALIVE_S = 10
"""Seconds of silence after which a stream carries a comment: a queue is not a dead server."""

CLOSING_S = 2
"""Seconds that answers under way have after a signal; without their engine most never end."""


def serve(
    config: EngineConfig,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    api_key: str | None = None,
) -> None:
    """Serve a model until SIGINT or SIGTERM; runs on the main thread, and blocks.

    GET /health answers 200 once it serves. The engine core has a process of its own, which ends
    with this one. A model with random weights is served under the name "demo".

    Args:
        host: address to listen on; beyond loopback, give an api_key too.
        api_key: what clients must send as a bearer token; None: nothing.
    Raises:
        EngineMissing: vLLM is not installed as needed.
        InvalidEngineConfig: nothing can listen on this host and port, or the key is empty.
        ModelNotLoaded: the model cannot be loaded.
        EngineDied: the engine core's process failed while it served.
        KeyboardInterrupt: a signal came before it served.
    """
    if not 1 <= port <= 65535:
        raise InvalidEngineConfig("port", port, "must be from 1 to 65535")
    if api_key is not None and not api_key.strip():
        raise InvalidEngineConfig("api_key", "", "must not be empty; leave it out for none")
    platform = vllm_platform()
    for name, value in config.environment(platform).items():
        os.environ.setdefault(name, value)
    if not config.verbose:
        quieten()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"  # an embedded engine here sets it to 0
    path = model_path(config)
    arguments = server_arguments(
        config,
        path,
        platform,
        served_model=DEMO_MODEL if has_random_weights(path) else config.model,
        host=host,
        port=port,
        api_key=api_key,
    )
    import uvloop

    try:
        uvloop.run(_run(config, _parsed(arguments)))
    except _Interrupted:  # a signal before vLLM takes signals over
        raise KeyboardInterrupt from None


def server_arguments(
    config: EngineConfig,
    path: str,
    platform: str,
    *,
    served_model: str,
    host: str,
    port: int,
    api_key: str | None = None,
) -> list[str]:
    """The command line with which vLLM's API server does what `serve` promises."""
    middleware = [SloMiddleware] if api_key is None else [SloMiddleware, KeyGuard]
    arguments = config.vllm_arguments(path, platform) | {
        "served_model_name": served_model,
        "host": host,
        "port": port,
        "middleware": [f"{each.__module__}.{each.__qualname__}" for each in middleware],
        # vLLM documents `priority` for this policy only; our scheduler orders by its own.
        "scheduling_policy": "priority",
        # What a request leaves out is neutral, as in the embedded engine, not the model's choice.
        "generation_config": "vllm",
        "enable_prompt_tokens_details": True,
        "sse_keep_alive_interval": KEEP_ALIVE_S,
        "uvicorn_log_level": "info" if config.verbose else "warning",
    }
    if config.is_demo and platform == "cpu":
        # vLLM would give the model a third process, for the sake of its OpenMP threads; the demo
        # model has one, and starts ten seconds sooner in the engine core's own process.
        arguments["distributed_executor_backend"] = (
            "vllm.v1.executor.uniproc_executor.UniProcExecutor"
        )
    if api_key is not None:
        arguments["api_key"] = [api_key]
    return [flag for name, value in arguments.items() for flag in _flags(name, value)]


def _flags(name: str, value: object) -> Iterator[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{flag}" if value else f"--no-{flag}"
    elif isinstance(value, list):
        yield from (f"--{flag}={item}" for item in value)
    elif isinstance(value, Mapping):
        yield f"--{flag}={json.dumps(value)}"
    else:
        yield f"--{flag}={value}"


def _parsed(arguments: list[str]) -> Namespace:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    parsed: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    configure_logging_from_args(parsed)
    validate_parsed_serve_args(parsed)
    return parsed


async def _run(config: EngineConfig, parsed: Namespace) -> None:
    """vLLM's own `run_server`, with named ends and named failures."""
    from vllm.entrypoints.launchers.api_server.entry import (
        build_and_serve,
        build_async_engine_client,
    )
    from vllm.entrypoints.launchers.launcher import setup_server

    # Loading runs on this thread for seconds: only a handler that raises can end it. vLLM takes
    # both signals over once it serves.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        address, listening = setup_server(parsed, reuse_port=False)
    except OSError as error:
        where = f"{parsed.host}:{parsed.port}"
        raise InvalidEngineConfig("port", where, f"cannot listen there: {error}") from error
    try:
        async with AsyncExitStack() as stack:
            try:
                engine = await stack.enter_async_context(build_async_engine_client(parsed))
            except Exception as error:
                raise ModelNotLoaded(config.model, telling_line(error)) from error
            ends = _NamedEnds(engine)
            closing = await build_and_serve(
                engine, address, listening, parsed, timeout_graceful_shutdown=CLOSING_S
            )
            died = not ends.stopped  # nobody asked it to end
        await closing
    finally:
        listening.close()
    if died:
        raise EngineDied("its process ended; what it printed says why")


class _Interrupted(BaseException):
    """A signal while the model loads. vLLM swallows a KeyboardInterrupt there, and hangs."""


def _interrupt(*_: object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # what follows ends the engine core's process
    raise _Interrupted


class _NamedEnds:
    """Stands before an engine's `generate` and `shutdown`, so that each call has a named end.

    Over HTTP an aborted request is an ordinary answer: 200 with finish_reason "abort", and in a
    stream that has no token yet not even that, for vLLM leaves out chunks without tokens. Calls
    that run while the engine is shut down would never hear of it.
    """

    def __init__(self, engine: AsyncLLM) -> None:
        self.stopped = False  # vLLM shuts its engine down itself only upon a signal
        self._engine = engine
        self._generate = engine.generate
        self._shutdown = engine.shutdown
        self._loop = asyncio.get_running_loop()
        engine.generate = self.generate
        engine.shutdown = self.shutdown

    async def generate(self, *args: Any, **kwargs: Any) -> AsyncIterator[RequestOutput]:
        """The engine's outputs, or an error that ends the response in its own words."""
        from vllm.exceptions import GracefulHTTPError

        async with aclosing(self._generate(*args, **kwargs)) as outputs:
            try:
                async for output in outputs:
                    for part in output.outputs:
                        # A caller's own stop string may read like a dropped request's.
                        if part.finish_reason == "abort":
                            _raise_named(part.stop_reason)
                    yield output
            except GracefulHTTPError as error:
                if not self.stopped:
                    raise
                raise _failure(str(error), HTTPStatus.SERVICE_UNAVAILABLE) from error

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        """End the calls that run, then the engine; vLLM calls it from another thread."""
        from vllm.exceptions import GracefulHTTPError

        if not self.stopped:
            self.stopped = True
            error = GracefulHTTPError("the server is stopping", HTTPStatus.SERVICE_UNAVAILABLE)
            running = self._engine.output_processor
            self._loop.call_soon_threadsafe(running.propagate_error, error)
        self._shutdown(*args, **kwargs)


def _raise_named(stop_reason: object) -> None:
    from vllm.exceptions import VLLMValidationError

    error = error_of_stop_reason("", stop_reason)
    if isinstance(error, RequestDropped):
        note_drop(str(stop_reason))
        raise _failure(str(stop_reason), HTTPStatus(DROPPED_STATUS))
    if error is not None:
        raise VLLMValidationError(str(stop_reason), parameter="vllm_xargs")


def _failure(message: str, status: HTTPStatus) -> Exception:
    """The one error that vLLM's handlers put into a response without logging a traceback."""
    from vllm.exceptions import GenerationError

    failure: Exception = GenerationError(message)
    failure.status_code = status  # type: ignore[attr-defined]
    return failure
