"""The engines of a runtime: which one answers a call, and when each is started."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from orchestrator.errors import OrchestrateError, UnknownEngine, UnknownModel
from serving.errors import ModelNotServed, ServingError
from serving.generation import Engine, EngineInfo, EngineInProcess, ModelServer

logger = logging.getLogger("orchestrate")

DEFAULT = ""
"""The name of the engine of calls that name none."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The engine of one call.

    Attributes:
        name: in the runtime; DEFAULT for the default one.
        info: its description; if there is no engine, what is known of the one that was named.
        failure: why no engine can be asked; raised by `engine`.
    """

    name: str
    info: EngineInfo
    found: Engine | None = None
    failure: Exception | None = None

    @property
    def engine(self) -> Engine:
        """The engine itself; raises the failure if there is none."""
        if self.found is None:
            assert self.failure is not None
            raise self.failure
        return self.found


class Engines:
    """The default engine of a runtime, and others by name.

    The default one is started with the first run, each other one with the first call of it. An
    engine that cannot start, or dies, ends its own calls only.
    """

    def __init__(self, default: Engine, named: Mapping[str, Engine] | None = None) -> None:
        self.default = default
        self._engines = {DEFAULT: default, **(named or {})}
        # What a model is called here must not change when its server is first asked.
        self._configured = {name: each.info.model for name, each in self._engines.items()}
        self._warned: set[tuple[str, str]] = set()
        # What answered, by what the calls asked for.
        self._answering: dict[tuple[str | None, str | None], EngineInfo] = {}

    def __iter__(self) -> Iterator[str]:
        """The names of the engines; DEFAULT is the first."""
        return iter(self._engines)

    @property
    def in_process(self) -> list[EngineInProcess]:
        """Those that run in this process."""
        return [each for each in self._engines.values() if isinstance(each, EngineInProcess)]

    def info(self, name: str = DEFAULT) -> EngineInfo:
        """The description of an engine, complete once it has been started."""
        return self._engines[name].info

    def configured_model(self, name: str) -> str:
        """The model of an engine as it was configured; "" if its server decides."""
        return self._configured[name]

    def info_for(self, name: str | None, model: str | None) -> EngineInfo:
        """The description of what answers such calls, as far as it is known here."""
        known = self._answering.get((name, model))
        if known is not None:
            return known
        engine = self._engines.get(name or DEFAULT)
        info = EngineInfo("", "", False, None) if engine is None else engine.info
        return replace(info, model=model or info.model)

    @property
    def models(self) -> str:
        """The configured models of all engines, as one text; that of the default one if alone."""
        default, *others = self._engines
        named = (f"{name}={self._configured[name]}" for name in sorted(others))
        return "\n".join([self.info(default).model, *named])

    async def start(self, name: str = DEFAULT) -> None:
        """Start an engine; idempotent. Its model's caveat is logged the first time.

        Raises:
            ServingError: it cannot start.
        """
        engine = self._engines[name]
        await engine.start()
        self._warn_of(name, engine.info)

    async def select(self, name: str | None = None, model: str | None = None) -> Selected:
        """The engine for a call, started.

        Args:
            name: of the engine; None: the default one, or one that serves the model.
            model: a model that it serves; None: its own.
        Raises:
            UnknownEngine: there is no engine of this name.
            UnknownModel: no engine serves the model.
            ModelNotServed: the named engine does not serve the model.
            ServingError: the engine cannot start; without a name, one that may serve the model.
        """
        selected = await self._find(name, model)
        self._warn_of(selected.name, selected.info)
        self._answering[name, model] = selected.info
        return selected

    async def try_select(self, name: str | None = None, model: str | None = None) -> Selected:
        """The same as `select`, but its errors are raised when the engine is asked for."""
        try:
            return await self.select(name, model)
        except (ServingError, OrchestrateError) as error:
            return Selected(name or DEFAULT, self.info_for(name, model), None, error)

    async def close(self) -> None:
        """Close all engines, the default one first; an error does not keep the others open."""
        async with AsyncExitStack() as closing:
            for engine in reversed(self._engines.values()):
                closing.push_async_callback(engine.close)

    async def _find(self, name: str | None, model: str | None) -> Selected:
        if name is not None:
            if name == DEFAULT or name not in self._engines:
                raise UnknownEngine(str(name), tuple(self._engines)[1:])
            await self.start(name)
            return self._selected(name, await self._of_model(name, model))
        if model is None:  # it was started with the run
            return self._selected(DEFAULT, self.default)
        return await self._serving(model)

    def _warn_of(self, name: str, info: EngineInfo) -> None:
        caveat = "random weights: its text is meaningless" if info.random_weights else info.caveat
        if caveat and (name, info.model) not in self._warned:
            self._warned.add((name, info.model))
            where = f"engine {name}: " if name else ""
            logger.warning("%smodel %s has %s", where, info.model, caveat)

    def _selected(self, name: str, engine: Engine) -> Selected:
        return Selected(name, engine.info, engine)

    async def _of_model(self, name: str, model: str | None) -> Engine:
        engine = self._engines[name]
        if model is None or engine.info.model == model:
            return engine
        if isinstance(engine, ModelServer):
            return await engine.of_model(model)
        raise ModelNotServed(f"engine {name}", model, (engine.info.model,))

    async def _serving(self, model: str) -> Selected:
        """An engine that serves a model: one whose own model it is, else a server with several."""
        for name, engine in self._engines.items():
            if engine.info.model == model:
                await self.start(name)
                return self._selected(name, engine)
        served: list[str] = []
        failure: ServingError | None = None
        for name, engine in self._engines.items():
            if not isinstance(engine, ModelServer):
                served.append(engine.info.model)
                continue
            try:
                await self.start(name)
                models = await engine.models()
            except ServingError as error:  # another one may serve it
                failure = failure or error
                continue
            if model in models:
                return self._selected(name, await engine.of_model(model))
            served += models
        if failure is not None:
            raise failure
        raise UnknownModel(model, tuple(dict.fromkeys(served)))
