"""A replica as Ray Serve runs it: a server in a process beside it, announced and watched."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any

import aiohttp
import ray
from ray import serve
from ray.exceptions import RayError

from serving.gateway.reports import parse_report
from serving.replicas.address_book import ANNOUNCE_S, NAMESPACE
from serving.replicas.replica_spec import ReplicaSpec
from serving.replicas.scaling import wanted_replicas
from serving.replicas.server_process import ServerProcess
from serving.router.prediction import pressure

PRESSURE = "pressure"
"""Name of the figure that the autoscaling policy decides by."""

_ANSWER_S = 5.0
"""Limit on the server's answer to a question about its health."""


class RayReplica:
    """One replica; Ray Serve calls its methods by their names.

    Its constructor waits until the server has loaded. A server that ends takes this process with
    it, and Ray starts another replica.

    Raises:
        ReplicaFailed: the server cannot start.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, spec: ReplicaSpec, address_book: str
    ) -> None:
        self._id = serve.get_replica_context().replica_id.unique_id
        self._address_book = address_book
        host = spec.host or ray.util.get_node_ip_address()
        self._server = await ServerProcess.start(spec, host)
        headers = {} if spec.api_key is None else {"Authorization": f"Bearer {spec.api_key}"}
        self._session = aiohttp.ClientSession(
            headers=headers, timeout=aiohttp.ClientTimeout(total=_ANSWER_S)
        )
        self._tasks = [asyncio.create_task(each) for each in (self._announce(), self._watch())]

    async def check_health(self) -> None:
        """Raise if the server does not answer; one that restarts its engine does."""
        async with self._session.get(f"{self._server.url}/health"):
            pass

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The pressure of the deadlines on this replica."""
        async with self._session.get(f"{self._server.url}/orchestrate/snapshot") as answer:
            if answer.status != 200:  # its engine restarts
                return {PRESSURE: 0.0}
            return {PRESSURE: pressure(parse_report(await answer.read()).snapshot)}

    async def __del__(self) -> None:
        """Let the server answer its open requests, and end; Ray awaits this."""
        if not hasattr(self, "_tasks"):  # it never was ready
            return
        for task in self._tasks:
            task.cancel()
        with suppress(RayError, ValueError):
            await self._book().withdraw.remote(self._id)
        await self._server.stop()
        await self._session.close()

    async def _announce(self) -> None:
        while True:
            with suppress(RayError, ValueError):  # the gateway starts anew, or has ended
                await self._book().announce.remote(self._id, self._server.url)
            await asyncio.sleep(ANNOUNCE_S)

    async def _watch(self) -> None:
        await self._server.wait()
        os._exit(1)

    def _book(self) -> Any:
        return ray.get_actor(self._address_book, namespace=NAMESPACE)


def scale_by_slack(context: Any) -> tuple[int, dict[str, Any]]:
    """Ray Serve's autoscaling policy: as many replicas as the deadlines need."""
    pressures = list((context.aggregated_metrics or {}).get(PRESSURE, {}).values())
    return wanted_replicas(pressures, context.target_num_replicas), {}
