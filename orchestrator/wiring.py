"""The composition root: settings -> engine, store, runtime."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from orchestrator.clock import Clock
from orchestrator.display.notebook import NotebookProgress, in_notebook
from orchestrator.errors import InvalidSettings
from orchestrator.events import Listener
from orchestrator.execution.engines import Engines
from orchestrator.learning.background_fit import BackgroundFit
from orchestrator.learning.knowledge import Learner
from orchestrator.learning.model_files import models_folder
from orchestrator.runtime.runtime import Runtime
from orchestrator.settings import (
    EMBEDDED,
    ENV_PREFIX,
    Settings,
    check_engine_name,
    payload_codec,
    read_settings,
)
from serving.engine.setup.config import EngineConfig, default_model
from serving.generation import Engine
from serving.policies.table import DEFAULT_POLICY, PolicySpec
from store.session import open_store

Opener = Callable[[], AbstractAsyncContextManager[Runtime]]

_opened: ContextVar[Runtime | None] = ContextVar("orchestrate_runtime", default=None)
_loop: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("orchestrate_loop", default=None)


@dataclass(slots=True)
class _Shared:
    """A runtime that several flows use at the same time; the last one closes it.

    Attributes:
        kept_with: the settings with which it was opened, if a notebook keeps it open between its
            cells; else None.
    """

    lock: asyncio.Lock
    num_users: int = 0
    kept_with: Settings | None = None
    runtime: Runtime | None = None
    resources: AsyncExitStack | None = None


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


@asynccontextmanager
async def open_runtime(
    settings: Settings | None = None,
    *,
    engine: Engine | None = None,
    engines: Mapping[str, Engine] | None = None,
    on_event: Listener | None = None,
    clock: Clock | None = None,
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
    Raises:
        StoreError, ServingError: the store or the engine cannot be opened; the message says why.
        InvalidSettings: telemetry is enabled, but the OTEL_* variables are not valid.
        ValueError: what is given as an engine's name is none.
    """
    await _close_kept()
    async with unannounced_runtime(
        settings, engine=engine, engines=engines, on_event=on_event, clock=clock
    ) as runtime:
        token, loop_token = _opened.set(runtime), _loop.set(asyncio.get_running_loop())
        try:
            yield runtime
        finally:
            _opened.reset(token)
            _loop.reset(loop_token)


def opened_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of the runtime that is open here; None if none is."""
    return _loop.get() or _kept_loop()


@asynccontextmanager
async def unannounced_runtime(
    settings: Settings | None = None,
    *,
    engine: Engine | None = None,
    engines: Mapping[str, Engine] | None = None,
    on_event: Listener | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Runtime]:
    """The same as `open_runtime`, but flows awaited in the block do not run in it by default."""
    settings = settings or read_settings()
    named = dict(engines or {})
    for name in named:
        check_engine_name(name)
    engine = engine or engine_of(settings)
    async with AsyncExitStack() as resources:
        listeners = [] if on_event is None else [on_event]
        try:
            for name in settings.engines:
                named[name] = named.get(name) or engine_of(settings.of_engine(name))
            if settings.telemetry:
                listeners.append(await resources.enter_async_context(_telemetry()))
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
                on_event=listeners,
                clock=clock,
            )
        except BaseException:
            await Engines(engine, named).close()
            raise
        resources.push_async_callback(runtime.end_runs)
        # Called first, so that the ends of its calls are still recorded.
        resources.push_async_callback(runtime.engines.close)
        yield runtime


@asynccontextmanager
async def shared_runtime(opener: Opener = unannounced_runtime) -> AsyncIterator[Runtime]:
    """The runtime that is open here; else one shared by all concurrent users on this event loop.

    In a notebook it stays open for the next cell, and shows what its runs do.

    Args:
        opener: opens the shared runtime. Another task than the one that opened it may close it.
    """
    opened = _opened.get()
    if opened is not None:
        yield opened
        return
    shared = _shared.setdefault(asyncio.get_running_loop(), _Shared(asyncio.Lock()))
    keeps = opener is unannounced_runtime and _is_cell()
    if keeps and shared.kept_with not in (None, read_settings()):
        await _close_kept()  # the settings have changed since
    async with shared.lock:
        if shared.runtime is None:
            shared.resources = AsyncExitStack()
            opener = _notebook_runtime if keeps else opener
            shared.runtime = await shared.resources.enter_async_context(opener())
            shared.kept_with = read_settings() if keeps else None
        runtime = shared.runtime
        shared.num_users += 1
    try:
        yield runtime
    finally:
        async with shared.lock:
            shared.num_users -= 1
            if shared.kept_with is None:
                await _close_if_unused(shared)


async def _close_if_unused(shared: _Shared) -> None:
    if not shared.num_users and shared.resources is not None:
        resources, shared.resources, shared.runtime = shared.resources, None, None
        shared.kept_with = None
        await resources.aclose()


def _is_cell() -> bool:
    """Whether this is the event loop on which a notebook's cells are executed."""
    return in_notebook() and threading.current_thread() is threading.main_thread()


def _kept_loop() -> asyncio.AbstractEventLoop | None:
    """This thread's running loop, if a notebook keeps a runtime open on it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    shared = _shared.get(loop)
    return None if shared is None or shared.kept_with is None else loop


async def _close_kept() -> None:
    """Close the runtime that a notebook keeps open here, unless runs use it.

    A process has one embedded engine: another runtime could not open its own.
    """
    shared = _shared.get(asyncio.get_running_loop())
    if shared is not None and shared.kept_with is not None:
        async with shared.lock:
            await _close_if_unused(shared)


@asynccontextmanager
async def _notebook_runtime() -> AsyncIterator[Runtime]:
    """A runtime that shows the progress of its runs in the notebook's cells."""
    settings, progress = read_settings(), NotebookProgress()
    if settings.engine == EMBEDDED:
        model = engine_config(settings).model
        progress.say(f"starting vLLM with the model {model}: 10 to 20 s, once for the notebook")
    async with unannounced_runtime(settings, on_event=progress.on_event) as runtime:
        await runtime.engine.start()
        yield runtime


def engine_config(settings: Settings) -> EngineConfig:
    """The embedded engine's configuration; raises InvalidEngineConfig."""
    return EngineConfig(
        model=default_model() if settings.model is None else settings.model,
        policy=PolicySpec(settings.policy or DEFAULT_POLICY, settings.policy_params),
        slots=settings.slots,
        step_tokens=settings.step_tokens,
        max_model_tokens=settings.max_model_tokens,
        kv_cache_bytes=settings.kv_cache_bytes,
        cpu_threads=settings.cpu_threads,
        dtype=settings.dtype,
        seed=settings.seed,
        verbose=settings.verbose,
    )


def _telemetry() -> AbstractAsyncContextManager[Listener]:
    try:
        from orchestrator.telemetry.telemetry import open_telemetry
    except ModuleNotFoundError as missing:
        raise InvalidSettings(
            f"{ENV_PREFIX}TELEMETRY: {missing.name} is not installed;"
            " pip install 'orchestrate-llm[telemetry]'"
        ) from missing
    return open_telemetry()


def engine_of(settings: Settings) -> Engine:
    """The engine that the settings name, not started yet."""
    if settings.engine == EMBEDDED:
        from serving.engine.clients.embedded import EmbeddedEngine

        return EmbeddedEngine(engine_config(settings))
    from serving.engine.clients.remote import RemoteEngine

    return RemoteEngine(settings.engine, model=settings.model, api_key=settings.api_key)
