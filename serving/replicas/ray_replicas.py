"""The replicas of a model on Ray, as the gateway's process controls them."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from serving.errors import RayUnreachable, ReplicaFailed
from serving.replicas.address_book import NAMESPACE, AddressBook
from serving.replicas.ray_replica import RayReplica, scale_by_slack
from serving.replicas.replica_spec import ReplicaSpec

STOP_S = 10.0
"""Seconds beside its drain that a replica has to end, before Ray kills it."""

HEALTH_PERIOD_S, HEALTH_TIMEOUT_S = 1.0, 10.0
"""How often Ray looks after a replica; three failures and it starts another one."""

LOOK_BACK_S, REPORT_S = 15.0, 1.0
"""Time over which the pressure is averaged, and how often a replica reports it."""

UPSCALE_S, DOWNSCALE_S = 5.0, 300.0
"""How long more replicas must be wanted until some are added, or fewer until some are removed."""

START_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": str(REPORT_S),
}
"""What Ray reads in the environment when it starts; values that users set count over these."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How many replicas there are, and what each needs.

    Attributes:
        fewest, most: between them Ray adds and removes replicas by the slack of the deadlines.
        gpus: that Ray sets aside for each.
        downscale_s: how long fewer must be enough until some are removed.
    """

    fewest: int
    most: int
    gpus: int = 0
    downscale_s: float = DOWNSCALE_S


class RayReplicas:
    """The replicas of one application; belongs to one event loop.

    Args:
        name: of the application; one of the same name is replaced, and keeps its replicas if
            nothing has changed.
        address: of the Ray cluster; None: Ray is started on this machine, and ends with this.
        verbose: show Ray's log.
    """

    def __init__(
        self, name: str, spec: ReplicaSpec, scale: Scale, *, address: str | None, verbose: bool
    ) -> None:
        self._name = name
        self._spec = spec
        self._scale = scale
        self._address = address
        self._verbose = verbose
        self._book: Any = None

    async def connect(self) -> None:
        """Connect to Ray, or start it.

        Raises:
            RayUnreachable: there is no cluster at the address, or Ray cannot start.
        """
        try:
            await asyncio.to_thread(self._connect)
        except (RayError, ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise RayUnreachable(self._address or "this machine", str(error)) from error

    async def deploy(self) -> None:
        """Start the replicas; returns when the fewest that are wanted are ready.

        Raises:
            ReplicaFailed: they cannot start.
        """
        try:
            await asyncio.to_thread(
                serve.run, self._application(), name=self._name, route_prefix=None
            )
        except RuntimeError as error:
            message = self._message()
            raise ReplicaFailed(message or str(error)) from error

    async def urls(self) -> list[str]:
        """The addresses of the replicas that are ready; those that drain included."""
        urls: list[str] = await self._book.urls.remote()
        return urls

    async def close(self) -> None:
        """Let the replicas answer their open requests, and end them; and Ray, if it was started."""
        await asyncio.to_thread(self._close)

    def _connect(self) -> None:
        for key, value in START_VARIABLES.items():
            os.environ.setdefault(key, value)
        level = logging.INFO if self._verbose else logging.ERROR
        local = {} if self._address else {"include_dashboard": False, "num_cpus": self._num_cpus()}
        ray.init(
            self._address or "local",
            namespace=NAMESPACE,
            logging_level=level,
            log_to_driver=self._verbose,
            **local,
        )
        logging.getLogger("ray.serve").setLevel(level)
        serve.start(proxy_location="Disabled")
        book = ray.remote(num_cpus=0)(AddressBook)
        self._book = book.options(name=self._name, namespace=NAMESPACE).remote()

    def _num_cpus(self) -> int:
        """CPUs of a local Ray: its count of them shall never keep a replica from starting."""
        return max(os.cpu_count() or 1, self._scale.most)

    def _application(self) -> Any:
        scale = self._scale
        autoscaling = AutoscalingConfig(
            min_replicas=scale.fewest,
            max_replicas=scale.most,
            upscale_delay_s=UPSCALE_S,
            downscale_delay_s=scale.downscale_s,
            look_back_period_s=LOOK_BACK_S,
            policy=AutoscalingPolicy(
                policy_function=f"{scale_by_slack.__module__}:{scale_by_slack.__name__}"
            ),
        )
        deployment = serve.deployment(
            name="replica",
            ray_actor_options={"num_cpus": 1, "num_gpus": scale.gpus},
            autoscaling_config=autoscaling if scale.fewest < scale.most else None,
            num_replicas=scale.fewest if scale.fewest == scale.most else None,
            health_check_period_s=HEALTH_PERIOD_S,
            health_check_timeout_s=HEALTH_TIMEOUT_S,
            graceful_shutdown_timeout_s=self._spec.drain_s + STOP_S,
        )(RayReplica)
        return deployment.bind(self._spec, self._name)

    def _message(self) -> str:
        """What Ray says of the application's state."""
        try:
            return str(serve.status().applications[self._name].message)
        except (RayError, KeyError, RuntimeError):
            return ""

    def _close(self) -> None:
        if not ray.is_initialized():
            return
        try:
            serve.delete(self._name)
        finally:
            ray.shutdown()  # a Ray that was started here ends with it
