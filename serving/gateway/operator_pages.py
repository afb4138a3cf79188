"""The gateway's own pages: health, models, metrics, and the draining of a replica."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from serving.gateway.access import GatewayAccess
from serving.gateway.attempt import error_response
from serving.gateway.fleet_state import Fleet
from serving.gateway.metrics import CONTENT_TYPE, GatewayMetrics
from serving.router.prediction import pressure

Page = Callable[[web.BaseRequest], web.Response]


class OperatorPages:
    """Pages by method and path.

    Args:
        now_s: the monotonic clock of the replicas' states.
    """

    def __init__(
        self,
        fleet: Fleet,
        metrics: GatewayMetrics,
        access: GatewayAccess,
        now_s: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._access = access
        self._now_s = now_s
        self._pages: dict[tuple[str, str], Page] = {
            ("GET", "/health"): self._health,
            ("HEAD", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics_page,
            ("GET", "/orchestrate/replicas"): self._replicas,
            ("POST", "/orchestrate/drain"): self._drain,
            ("DELETE", "/orchestrate/drain"): self._drain,
        }

    def find(self, request: web.BaseRequest) -> Page | None:
        """The page that a request asks for."""
        return self._pages.get((request.method, request.path))

    def _health(self, _: web.BaseRequest) -> web.Response:
        """200 if a replica answers and takes requests."""
        now_s = self._now_s()
        able = (
            not each.is_suspect(now_s) and not each.is_draining for each in self._fleet.replicas
        )
        if any(able):
            return web.Response()
        return error_response(503, "no replica answers and takes requests", kind="no_replica")

    def _models(self, _: web.BaseRequest) -> web.Response:
        """The union of the replicas' models, in the form of OpenAI's API."""
        models = [
            {"id": name, "object": "model", "created": 0, "owned_by": "orchestrate"}
            for name in self._fleet.models()
        ]
        return web.json_response({"object": "list", "data": models})

    def _metrics_page(self, _: web.BaseRequest) -> web.Response:
        return web.Response(body=self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    def _replicas(self, _: web.BaseRequest) -> web.Response:
        """The state of each replica."""
        now_s = self._now_s()
        states = [
            {
                "url": each.url,
                "models": list(each.models or ()),
                "is_suspect": each.is_suspect(now_s),
                "failure": each.failure or None,
                "makes_reports": each.makes_reports,
                "is_draining": each.is_draining,
                "num_open": each.num_open,
                "pressure": pressure(each.snapshot(now_s)),
            }
            for each in self._fleet.replicas
        ]
        return web.json_response({"replicas": states})

    def _drain(self, request: web.BaseRequest) -> web.Response:
        """POST: send a replica no new requests; DELETE: send it some again."""
        if not self._access.may_operate(request):
            message = "a gateway without a key drains replicas only for requests from its machine"
            return error_response(403, message, kind="forbidden")
        url = request.query.get("replica", "")
        replica = self._fleet.find(url)
        if replica is None:
            known = ", ".join(each.url for each in self._fleet.replicas)
            message = f"unknown replica {url!r}; known: {known}"
            return error_response(404, message, kind="not_found", param="replica")
        replica.drain(request.method == "POST")
        state = {"is_draining": replica.is_draining, "num_open": replica.num_open}
        return web.json_response({"replica": replica.url, **state})
