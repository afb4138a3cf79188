"""vLLM's own OpenAI-compatible server, with our scheduler and SLO tags in requests."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.engine.server.access import AccessMiddleware, ApiAccess
from serving.engine.server.access_log import AccessLog, AccessLogMiddleware
from serving.engine.server.advice.client import AnalyzerClient
from serving.engine.server.advice.middleware import AdviceMiddleware
from serving.engine.server.api_keys import ApiKey, digest_of, read_api_keys
from serving.engine.server.draining import DEFAULT_DRAIN_S, Drain, DrainMiddleware
from serving.engine.server.engine_status import EngineStatus, StatusMiddleware
from serving.engine.server.engine_wrapper import EngineWrapper
from serving.engine.server.listening import cannot_listen, check_port, when_listening
from serving.engine.server.local_host import LocalHostMiddleware, is_loopback
from serving.engine.server.slo_middleware import SloMiddleware
from serving.engine.server.supervisor import EngineSupervisor
from serving.engine.server.tool_calling import set_tool_parser
from serving.engine.server.vllm_flags import given_flags, set_flags
from serving.engine.setup.config import RANDOM_MODEL, EngineConfig, check_api_key, vllm_platform
from serving.engine.setup.model_loading import error_summary, model_path, silence_warnings
from serving.engine.setup.random_model import has_random_weights
from serving.engine.setup.tool_formats import NO_PARSER, require_parser
from serving.errors import (
    InvalidEngineConfig,
    ModelNotLoaded,
    ServingError,
)

if TYPE_CHECKING:
    from argparse import Namespace

    from opentelemetry.trace import Tracer

logger = logging.getLogger("orchestrate")

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
KEEP_ALIVE_S = 10
"""Seconds between comments in a silent stream: they show clients that the server is alive."""

CLOSING_S = 2
"""Seconds to finish responses after a signal; most never end, as their engine has stopped."""


def serve(
    config: EngineConfig,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    api_key: str | None = None,
    keys_file: Path | None = None,
    access_log: str | None = None,
    drain_s: float = DEFAULT_DRAIN_S,
    vllm_flags: Sequence[str] = (),
    analyzer: str | None = None,
    tracing: AbstractAsyncContextManager[Tracer | None] | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve a model until a signal; runs on the main thread, and blocks.

    SIGTERM drains: open requests are finished first. SIGINT, or a second SIGTERM, stops at once.
    SIGHUP reads the file of keys again, and opens the access log anew.

    GET /health answers 200 once the server is ready. The engine core runs in a process of its own,
    which ends with this one; if it dies, it is started again, as often as `config.restarts` allows
    (`supervisor`). A model with random weights is served under the name "random".

    Args:
        host: address to listen on; with an address other than loopback, require a key too.
        api_key: bearer token that clients must send, without a user or limits.
        keys_file: more of them, with users and limits; without any key none is needed.
        access_log: file of the access log; "-" for the standard output, None for none.
        drain_s: seconds that open requests have after SIGTERM.
        vllm_flags: further flags of vLLM's API server (`vllm_flags`).
        analyzer: the module of the analyzer's process (`advice.client`); None: there is none.
        tracing: gives the tracer of requests' spans, and exports the last ones at its end.
        on_ready: called when the server accepts requests.
    Raises:
        EngineMissing: vLLM is not installed, or not in the pinned version.
        InvalidEngineConfig: it cannot listen on this host and port, a key, a flag or drain_s is
            invalid, or the access log cannot be written.
        InvalidApiKeys: the file of keys is invalid.
        ModelNotLoaded: the model cannot be loaded.
        EngineDied: the engine core's process ended, more often than it is started again.
        KeyboardInterrupt: a signal arrived before the server was ready.
    """
    if not 1 <= port <= 65535:
        raise InvalidEngineConfig("port", port, "must be from 1 to 65535")
    drain = Drain(drain_s)
    own_keys = []
    if api_key is not None:
        check_api_key(api_key)
        own_keys.append(ApiKey(digest_of(api_key.encode())))

    def read_keys() -> list[ApiKey]:
        return [*own_keys, *(() if keys_file is None else read_api_keys(keys_file))]

    access = ApiAccess(read_keys())
    log = None if access_log is None else AccessLog(access_log)
    platform = vllm_platform()
    check_port(host, port)
    for name, value in config.environment(platform).items():
        os.environ.setdefault(name, value)
    if not config.verbose:
        silence_warnings()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"  # an embedded engine in this process sets 0
    path = model_path(config)
    arguments = server_arguments(
        config,
        path,
        platform,
        served_model=RANDOM_MODEL if has_random_weights(path) else config.model,
        host=host,
        port=port,
        needs_key=access.needs_key,
    )
    import uvloop

    given = given_flags(vllm_flags)
    parsed = parse_arguments(arguments, given)
    vars(parsed).update(api_access=access, access_log=log, drain=drain)  # for middleware

    def reload() -> None:
        try:
            access.replace(read_keys())
            if log is not None:
                log.reopen()
        except ServingError as error:
            logger.error("still with the former keys and log: %s", error)

    try:
        uvloop.run(
            _run(config, parsed, given, reload, tracing or nullcontext(), on_ready, analyzer)
        )
    except _Interrupted:  # a signal before vLLM installed its own handlers
        raise KeyboardInterrupt from None


def server_arguments(
    config: EngineConfig,
    path: str,
    platform: str,
    *,
    served_model: str,
    host: str,
    port: int,
    needs_key: bool = False,
) -> list[str]:
    """The command line that makes vLLM's API server behave as `serve` documents."""
    middleware: list[type] = [
        AdviceMiddleware,
        SloMiddleware,
        StatusMiddleware,
        DrainMiddleware,
        AccessMiddleware,
    ]
    if not needs_key and is_loopback(host):
        middleware.append(LocalHostMiddleware)
    middleware.append(AccessLogMiddleware)  # the last one is outermost
    arguments = config.vllm_arguments(path, platform) | {
        "served_model_name": served_model,
        "host": host,
        "port": port,
        "disable_fastapi_docs": True,
        "middleware": [f"{each.__module__}.{each.__qualname__}" for each in middleware],
        # vLLM documents `priority` under this policy only; our scheduler replaces the policy.
        "scheduling_policy": "priority",
        # Sampling defaults are vLLM's, as in the embedded engine, not those of the model.
        "generation_config": "vllm",
        "enable_prompt_tokens_details": True,
        "sse_keep_alive_interval": KEEP_ALIVE_S,
        "uvicorn_log_level": "info" if config.verbose else "warning",
    }
    if config.tool_parser is not None and config.tool_parser not in NO_PARSER:
        require_parser(config.tool_parser)
        arguments |= {"enable_auto_tool_choice": True, "tool_call_parser": config.tool_parser}
    if config.is_packaged and platform == "cpu":
        # vLLM would start a third process for the model, to bind its OpenMP threads. Threads are
        # not bound, and a small model loads ten seconds faster in the engine core's process.
        arguments["distributed_executor_backend"] = (
            "vllm.v1.executor.uniproc_executor.UniProcExecutor"
        )
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


def parse_arguments(arguments: list[str], given: Mapping[str, Any] | None = None) -> Namespace:
    """The arguments as vLLM's API server takes them.

    Args:
        given: a user's own, by vLLM's names; they count over the others.
    Raises:
        InvalidEngineConfig: vLLM refuses their combination.
    """
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    parsed: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    set_flags(parsed, given or {})
    configure_logging_from_args(parsed)
    try:
        validate_parsed_serve_args(parsed)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidEngineConfig("vLLM's flags", " ".join(given or ()), str(error)) from error
    return parsed


async def _run(
    config: EngineConfig,
    parsed: Namespace,
    given: Mapping[str, Any],
    reload: Callable[[], None],
    tracing: AbstractAsyncContextManager[Tracer | None],
    on_ready: Callable[[], None],
    analyzer: str | None,
) -> None:
    """vLLM's `run_server`, with named errors."""
    from vllm.entrypoints.launchers.api_server.entry import (
        build_and_serve,
        build_async_engine_client,
    )
    from vllm.entrypoints.launchers.launcher import setup_server

    from serving.engine.server.timed_protocol import TimedHttpProtocol

    # Loading blocks this thread for seconds, so only a handler that raises can stop it. vLLM
    # installs its own handlers when the server is ready.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    try:
        address, listening = setup_server(parsed, reuse_port=False)
    except OSError as error:  # taken since `check_port`
        raise cannot_listen(parsed.host, parsed.port, error) from error
    try:
        async with AsyncExitStack() as stack:
            status = EngineStatus(tuple(vars(parsed)["served_model_name"]))
            stack.callback(status.close)
            status.start()
            vars(parsed).update(engine_status=status)
            try:
                engine = await stack.enter_async_context(build_async_engine_client(parsed))
            except Exception as error:
                raise ModelNotLoaded(config.model, error_summary(error)) from error
            set_tool_parser(parsed, config, given, engine)
            supervisor = EngineSupervisor(
                engine, config.model, config.restarts, on_death=status.forget
            )
            advisor = _analyzer_of(analyzer, vars(parsed)["served_model_name"])
            vars(parsed).update(supervisor=supervisor, analyzer=advisor)
            if advisor is not None:
                stack.push_async_callback(advisor.close)
                advisor.start()
            stack.push_async_callback(supervisor.close)
            # Here, as the engine's process may be a fork: it would inherit the exporter's thread.
            tracer = await stack.enter_async_context(tracing)
            wrapper = EngineWrapper(engine, supervisor, tracer)
            stack.callback(wrapper.close)
            ready = asyncio.create_task(
                when_listening(listening, partial(_accept, parsed.drain, on_ready))
            )
            stack.callback(ready.cancel)
            serving = asyncio.create_task(
                build_and_serve(
                    engine,
                    address,
                    listening,
                    parsed,
                    timeout_graceful_shutdown=CLOSING_S,
                    http=TimedHttpProtocol,
                )
            )
            closing = await _until_ended(serving, supervisor)
            died = None if supervisor.is_stopped else supervisor.end
        await closing
    finally:
        listening.close()
    if died is not None:
        raise died


def _analyzer_of(module: str | None, models: Sequence[str]) -> AnalyzerClient | None:
    if module is None:
        return None
    return AnalyzerClient([sys.executable, "-P", "-m", module, *models])


def _accept(drain: Drain, on_ready: Callable[[], None]) -> None:
    """The server is ready: from now on SIGTERM drains, in place of vLLM's own handler."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, drain.begin)
    on_ready()


async def _until_ended(
    serving: asyncio.Task[Awaitable[None]], supervisor: EngineSupervisor
) -> Awaitable[None]:
    """Supervise the engine until the server ends, or ends because its engine is gone for good.

    Returns:
        What closes the connections, once the engine has been closed.
    """
    supervising = asyncio.create_task(supervisor.run())
    try:
        await asyncio.wait([serving, supervising], return_when=asyncio.FIRST_COMPLETED)
        if not supervisor.is_stopped:  # without a signal, vLLM would serve without an engine
            serving.cancel()
        await asyncio.wait([serving])
        if supervising.done():
            supervising.result()
        return asyncio.sleep(0) if serving.cancelled() else serving.result()
    finally:
        supervising.cancel()


class _Interrupted(BaseException):
    """A signal while the model loads; vLLM would swallow a KeyboardInterrupt there, and hang."""


def _interrupt(*_: object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # ignored while the engine core's process ends
    raise _Interrupted
