"""Ray Serve's own data path to servers that run already: the comparison of `benchmarks.gateway`.

    python -m benchmarks.ray_data_path --port PORT URL...

Ray Serve's HTTP proxy listens at the port, and an actor for each server passes requests on to it,
so a request goes client, proxy, actor, server, where Ray chooses the actor. Runs until SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

import aiohttp
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

# On a loaded machine the proxy takes longer than Ray's 5 s to answer its first checks.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


class Forwarder:
    """Passes requests on to one of the servers: each replica to another one."""

    def __init__(self, urls: list[str]) -> None:
        self._url = urls[serve.get_replica_context().rank.rank % len(urls)]
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
            self._session = aiohttp.ClientSession(connector=connector)
        url = f"{self._url}{request.url.path}"
        content, headers = await request.body(), {"Content-Type": "application/json"}
        answer = await self._session.request(request.method, url, data=content, headers=headers)
        if answer.content_type == "text/event-stream":
            return StreamingResponse(answer.content.iter_any(), media_type="text/event-stream")
        return Response(await answer.read(), answer.status, media_type=answer.content_type)


def main() -> int:
    """Serve until SIGTERM; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("urls", nargs="+")
    given = parser.parse_args()
    num_cpus = len(given.urls) + 1
    ray.init("local", include_dashboard=False, log_to_driver=False, num_cpus=num_cpus)
    serve.start(http_options={"host": "127.0.0.1", "port": given.port})
    application: Any = serve.deployment(
        num_replicas=len(given.urls), max_ongoing_requests=1024, ray_actor_options={"num_cpus": 0}
    )(Forwarder).bind(given.urls)
    serve.run(application, name="data-path")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
