"""The engine's status in the API server: received from its process, in /metrics and for routers.

The sender is `serving.engine.scheduler.status_sender`, which also says what a status holds.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.engine.scheduler.status_sender import ADDRESS_VARIABLE
from serving.engine.server.responses import App, Receive, Scope, Send, path_of, send_json

SNAPSHOT_PATH = "/orchestrate/snapshot"


class EngineStatus(Collector):
    """The latest status of the engine, received while an event loop runs; a Prometheus collector.

    It listens from its creation on, and sets the environment variable that tells the engine's
    process where, so it must be created before that process starts.

    Attributes:
        boot_id: another one at each start of the engine, as a router sees by it that the replica
            has started anew.
    """

    def __init__(
        self,
        models: tuple[str, ...],
        *,
        registry: CollectorRegistry = REGISTRY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.boot_id = uuid.uuid4().hex
        self._models = models
        self._clock = clock
        self._registry = registry
        self._latest: dict[str, Any] | None = None
        self._received_s = 0.0
        self._folder = tempfile.TemporaryDirectory(prefix="orchestrate-")
        address = f"ipc://{Path(self._folder.name) / 'status'}"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.bind(address)
        os.environ[ADDRESS_VARIABLE] = address
        self._task: asyncio.Task[None] | None = None
        registry.register(self)

    def start(self) -> None:
        """Receive, until `close`; call it in the server's event loop."""
        self._task = asyncio.create_task(self._receive(), name="engine-status")

    def close(self) -> None:
        """Stop receiving, and forget the address."""
        os.environ.pop(ADDRESS_VARIABLE, None)
        self._registry.unregister(self)
        if self._task is not None:
            self._task.cancel()
        self._context.destroy(linger=0)
        self._folder.cleanup()

    @property
    def age_s(self) -> float:
        """Seconds since the latest status of an engine with requests; 0 of an idle one.

        An idle engine sends nothing, because nothing changes.
        """
        assert self._latest is not None, "a status was received"
        snapshot = self._latest["snapshot"]
        is_idle = not snapshot["num_running"] + snapshot["num_waiting"]
        return 0.0 if is_idle else self._clock() - self._received_s

    def document(self) -> dict[str, Any] | None:
        """What routers ask for; None before the first status."""
        if self._latest is None:
            return None
        return {
            "boot_id": self.boot_id,
            "models": list(self._models),
            "age_s": self.age_s,
            "snapshot": self._latest["snapshot"],
        }

    def forget(self) -> None:
        """The engine has died: the next one begins without requests, and with an empty cache."""
        self._latest = None
        self.boot_id = uuid.uuid4().hex

    def take(self, message: bytes) -> None:
        """A status arrives."""
        self._latest, self._received_s = json.loads(message), self._clock()

    def collect(self) -> Iterator[Metric]:
        """The metrics, for Prometheus' registry."""
        if self._latest is None:
            return
        queue = GaugeMetricFamily(
            "orchestrate_queue_requests",
            "Requests in the engine by kind of SLO and state.",
            labels=("kind", "state"),
        )
        for kind, states in self._latest["queue"].items():
            for state, number in states.items():
                queue.add_metric((kind, state), number)
        yield queue
        for name, text in _COUNTERS.items():
            value = self._latest["counters"][name]
            yield CounterMetricFamily(f"orchestrate_{_METRIC_NAMES.get(name, name)}", text, value)
        work_s = self._latest["snapshot"]["work_s"]
        yield GaugeMetricFamily(
            "orchestrate_work_seconds", "Predicted machine seconds of all open requests.", work_s
        )
        yield GaugeMetricFamily(
            "orchestrate_status_age_seconds", "Age of these metrics of the engine.", self.age_s
        )

    async def _receive(self) -> None:
        while True:
            self.take(await self._socket.recv())


_COUNTERS = {
    "plans": "Plans of the scheduling policy.",
    "plan_s": "Seconds that these plans took.",
    "steps": "Steps of the engine.",
    "step_s": "Seconds that these steps took, planning included.",
    "recomputed_tokens": "Tokens of requests that lost their KV cache.",
}
_METRIC_NAMES = {"plan_s": "plan_seconds", "step_s": "step_seconds"}


class StatusMiddleware:
    """Answers GET SNAPSHOT_PATH: the engine's state for a router; 503 while it is being started."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http" or path_of(scope).rstrip("/") != SNAPSHOT_PATH:
            await self._app(scope, receive, send)
            return
        arguments = scope["app"].state.args
        status: EngineStatus = arguments.engine_status
        # A last status of a dead engine may arrive while the next one is being started.
        document = status.document() if arguments.supervisor.is_running else None
        if document is None:
            await send_json(send, 503, {"error": "the engine is being started"})
        else:
            await send_json(send, 200, document | {"draining": arguments.drain.is_draining})
