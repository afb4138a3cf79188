"""The composition root: settings -> engine, store, runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from orchestrator.clock import Clock
from orchestrator.errors import InvalidSettings
from orchestrator.events import Listener
from orchestrator.learning.background_fit import BackgroundFit
from orchestrator.learning.knowledge import Learner
from orchestrator.learning.model_files import models_folder
from orchestrator.runtime.runtime import Runtime
from orchestrator.settings import EMBEDDED, ENV_PREFIX, Settings, read_settings
from serving.engine.setup.config import DEMO_MODEL, EngineConfig
from serving.generation import Engine
from serving.policies.table import DEFAULT_POLICY, PolicySpec
from store.session import open_store

Opener = Callable[[], AbstractAsyncContextManager[Runtime]]

_opened: ContextVar[Runtime | None] = ContextVar("orchestrate_runtime", default=None)
_loop: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("orchestrate_loop", default=None)


@dataclass(slots=True)
class _Shared:
    """A runtime that several flows use at once, closed by the last of them."""

    lock: asyncio.Lock
    users: int = 0
    runtime: Runtime | None = None
    resources: AsyncExitStack | None = None


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


@asynccontextmanager
async def open_runtime(
    settings: Settings | None = None,
    *,
    engine: Engine | None = None,
    on_event: Listener | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Runtime]:
    """Open a store and an engine; flows awaited in the block run there.

    Runs that are still under way at the block's end are ended: what waits for the engine raises
    EngineClosed there, and whatever waits for anything else is cancelled. Each run is recorded as
    failed or cancelled, and can be resumed.

    Args:
        settings: read from the environment by default.
        engine: used instead of the one that the settings name; closed at the end all the same.
        clock: for tests; the system's by default.
    Raises:
        StoreError, ServingError: what could not be opened, and how to mend it.
        InvalidSettings: telemetry is asked for, and the OTEL_* variables cannot be used.
    """
    async with unannounced_runtime(
        settings, engine=engine, on_event=on_event, clock=clock
    ) as runtime:
        token, loop_token = _opened.set(runtime), _loop.set(asyncio.get_running_loop())
        try:
            yield runtime
        finally:
            _opened.reset(token)
            _loop.reset(loop_token)


def opened_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of the runtime that is open here; None where none is."""
    return _loop.get()


@asynccontextmanager
async def unannounced_runtime(
    settings: Settings | None = None,
    *,
    engine: Engine | None = None,
    on_event: Listener | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Runtime]:
    """The same, without making it the one in which flows run that are awaited in the block."""
    settings = settings or read_settings()
    used = engine or engine_of(settings)
    async with AsyncExitStack() as resources:
        listeners = [] if on_event is None else [on_event]
        try:
            if settings.telemetry:
                listeners.append(await resources.enter_async_context(_telemetry()))
            store = await open_store(settings.store)
            resources.push_async_callback(store.close)
            learner = Learner(
                store,
                models=models_folder(settings.store),
                fit=BackgroundFit(settings.store) if settings.fit_every else None,
                fit_every=settings.fit_every,
            )
            runtime = Runtime(
                used,
                store,
                learner=learner,
                durable=settings.durable,
                record_text=settings.record_text,
                user=settings.user,
                on_event=listeners,
                clock=clock,
            )
        except BaseException:
            await used.close()
            raise
        resources.push_async_callback(runtime.end_runs)
        resources.push_async_callback(used.close)  # first: its calls' ends are still recorded
        yield runtime


@asynccontextmanager
async def shared_runtime(opener: Opener = unannounced_runtime) -> AsyncIterator[Runtime]:
    """The runtime that is open here; else one shared by all who ask while somebody uses it.

    Args:
        opener: opens the one to share. The task that opens it need not be the one that closes it.
    """
    opened = _opened.get()
    if opened is not None:
        yield opened
        return
    shared = _shared.setdefault(asyncio.get_running_loop(), _Shared(asyncio.Lock()))
    async with shared.lock:
        if shared.runtime is None:
            shared.resources = AsyncExitStack()
            shared.runtime = await shared.resources.enter_async_context(opener())
        runtime = shared.runtime
        shared.users += 1
    try:
        yield runtime
    finally:
        async with shared.lock:
            shared.users -= 1
            if not shared.users and shared.resources is not None:
                resources, shared.resources, shared.runtime = shared.resources, None, None
                await resources.aclose()


def engine_config(settings: Settings) -> EngineConfig:
    """The embedded engine's configuration; raises InvalidEngineConfig."""
    return EngineConfig(
        model=DEMO_MODEL if settings.model is None else settings.model,
        policy=PolicySpec(settings.policy or DEFAULT_POLICY, settings.policy_params),
        slots=settings.slots,
        step_tokens=settings.step_tokens,
        max_model_tokens=settings.max_model_tokens,
        kv_cache_bytes=settings.kv_cache_bytes,
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
    """The engine that the settings name, not yet started."""
    if settings.engine == EMBEDDED:
        from serving.engine.clients.embedded import EmbeddedEngine

        return EmbeddedEngine(engine_config(settings))
    from serving.engine.clients.remote import RemoteEngine

    return RemoteEngine(settings.engine, model=settings.model, api_key=settings.api_key)
