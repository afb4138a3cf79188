"""The composition root: settings -> engine, store, runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING

from orchestrator.clock import Clock
from orchestrator.errors import InvalidSettings
from orchestrator.events import Listener
from orchestrator.execution.context import TraceHeaders, no_trace_headers
from orchestrator.execution.engines import Engines
from orchestrator.runtime.runtime import Runtime
from orchestrator.settings import (
    EMBEDDED,
    ENV_PREFIX,
    Settings,
    check_engine_name,
    payload_codec,
    read_settings,
)
from serving.generation import Engine

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from serving.engine.setup.config import EngineConfig

_opened: ContextVar[Runtime | None] = ContextVar("orchestrate_runtime", default=None)
_loop: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("orchestrate_loop", default=None)


@asynccontextmanager
async def open_runtime(
    settings: Settings | None = None,
    *,
    engine: Engine | None = None,
    engines: Mapping[str, Engine] | None = None,
    on_event: Listener | None = None,
    clock: Clock | None = None,
    start: bool = False,
) -> AsyncIterator[Runtime]:
    """Open a store and engines; flows awaited in the block run there.

    Runs that are still in progress at the block's end are ended: calls that wait for the engine
    raise EngineClosed, and tasks that wait for anything else are cancelled. Each run is recorded as
    failed or cancelled, and can be resumed.

    Args:
        settings: read from the environment by default.
        engine: used instead of the one that the settings name; it is closed at the end too.
        engines: further engines by name, for `llm(engine=)`, beside those of the settings or in
            their place; each is started when it is first used, and closed at the end.
        on_event: called with every event of every run, for display.
        clock: for tests; the system's clock by default.
        start: start the engine before the block, which for vLLM takes seconds, instead of with the
            first run.
    Raises:
        StoreError, ServingError: the store or the engine cannot be opened, or with `start` not
            started; the message says why, and nothing stays open.
        InvalidSettings: telemetry is enabled, but the OTEL_* variables are not valid.
        ValueError: what is given as an engine's name is none.
    """
    async with AsyncExitStack() as resources:
        runtime = await enter_runtime(
            resources,
            settings,
            engine=engine,
            engines=engines,
            on_event=on_event,
            clock=clock,
        )
        if start:
            await runtime.engines.start()
        token, loop_token = _opened.set(runtime), _loop.set(asyncio.get_running_loop())
        try:
            yield runtime
        finally:
            _opened.reset(token)
            _loop.reset(loop_token)


def runtime_around() -> Runtime | None:
    """The runtime of the `open_runtime` block around; None outside of one."""
    return _opened.get()


def loop_around() -> asyncio.AbstractEventLoop | None:
    """The event loop of the `open_runtime` block around; None outside of one."""
    return _loop.get()


async def enter_runtime(
    resources: AsyncExitStack,
    settings: Settings | None = None,
    *,
    engine: Engine | None = None,
    engines: Mapping[str, Engine] | None = None,
    on_event: Listener | None = None,
    clock: Clock | None = None,
) -> Runtime:
    """As `open_runtime`, but `resources` closes it, and no flow runs in it by default.

    Nothing that is open then is an async generator: the end of an event loop would close that by
    itself, out of order.
    """
    # SQLAlchemy and NumPy take 0.5 s to import: opening a runtime needs them, defining flows not.
    from orchestrator.environment.states.location import environments_place
    from orchestrator.learning.background_fit import BackgroundFit
    from orchestrator.learning.knowledge import Learner
    from orchestrator.learning.model_files import models_folder
    from store.session import open_store

    settings = settings or read_settings()
    named = dict(engines or {})
    for name in named:
        check_engine_name(name)
    engine = engine or engine_of(settings)
    listeners: list[Listener] = [] if on_event is None else [on_event]
    trace_headers: TraceHeaders = no_trace_headers
    try:
        for name in settings.engines:
            named[name] = named.get(name) or engine_of(settings.of_engine(name))
        if settings.telemetry:
            spans = await resources.enter_async_context(_telemetry().open_telemetry())
            listeners.append(spans)
            trace_headers = spans.headers_of
        store = await open_store(settings.store, codec=payload_codec(settings))
        resources.push_async_callback(store.close)
        learner = Learner(
            store,
            models=models_folder(settings.store),
            fit=BackgroundFit(settings.store) if settings.fit_every else None,
            fit_every=settings.fit_every,
        )
        runtime = Runtime(
            engine,
            store,
            engines=named,
            learner=learner,
            durable=settings.durable,
            record_text=settings.record_text,
            user=settings.user,
            lease_s=settings.lease_s,
            code_version=settings.code_version,
            environments=environments_place(settings.store, settings.environments),
            on_event=listeners,
            trace_headers=trace_headers,
            clock=clock,
        )
    except BaseException:
        await Engines(engine, named).close()
        raise
    resources.push_async_callback(runtime.end_runs)
    # Called first, so that the ends of its calls are still recorded.
    resources.push_async_callback(runtime.engines.close)
    return runtime


def engine_config(settings: Settings) -> EngineConfig:
    """The embedded engine's configuration; raises InvalidEngineConfig."""
    from serving.engine.setup.config import EngineConfig, default_model
    from serving.policies.table import DEFAULT_POLICY, PolicySpec

    return EngineConfig(
        model=default_model() if settings.model is None else settings.model,
        policy=PolicySpec(settings.policy or DEFAULT_POLICY, settings.policy_params),
        slots=settings.slots,
        step_tokens=settings.step_tokens,
        max_model_tokens=settings.max_model_tokens,
        kv_cache_bytes=settings.kv_cache_bytes,
        cpu_threads=settings.cpu_threads,
        dtype=settings.dtype,
        tool_parser=settings.tool_parser,
        engine_args=settings.engine_args,
        restarts=settings.restarts,
        keep_scheduler_state=bool(settings.keep_scheduler_state),
        seed=settings.seed,
        verbose=settings.verbose,
    )


def server_tracing(settings: Settings, service: str) -> AbstractAsyncContextManager[Tracer] | None:
    """The tracer of a server of ours with this name in traces; None: it makes no spans.

    Raises:
        InvalidSettings: telemetry is enabled, and OpenTelemetry is not installed.
    """
    return _telemetry().open_tracer(service) if settings.telemetry else None


def _telemetry() -> ModuleType:
    """The module of telemetry; OpenTelemetry is an optional extra."""
    try:
        from orchestrator.telemetry import telemetry
    except ModuleNotFoundError as missing:
        raise InvalidSettings(
            f"{ENV_PREFIX}TELEMETRY: {missing.name} is not installed;"
            " pip install 'orchestrate-llm[telemetry]'"
        ) from missing
    return telemetry


def engine_of(settings: Settings) -> Engine:
    """The engine that the settings name, not started yet."""
    if settings.engine == EMBEDDED:
        from serving.engine.clients.embedded import EmbeddedEngine

        return EmbeddedEngine(engine_config(settings))
    from serving.engine.clients.remote import RemoteEngine

    return RemoteEngine(
        settings.engine,
        model=settings.model,
        api_key=settings.api_key,
        tool_parser=settings.tool_parser,
    )
