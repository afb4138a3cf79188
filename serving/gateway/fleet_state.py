"""The replicas that the gateway knows, and which of them may answer a request."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import NamedTuple
from urllib.parse import urlsplit

from serving.errors import InvalidEngineConfig
from serving.gateway.body import Body
from serving.gateway.prefixes import blocks_of
from serving.gateway.replica_state import ReplicaState
from serving.gateway.token_estimates import TokenEstimates
from serving.router.choose import Route, Router
from serving.router.snapshot import ReplicaSnapshot, RoutedRequest
from serving.slo import from_tags, remaining


class Nobody(Enum):
    """Why no replica can be asked."""

    UNKNOWN_MODEL = "no replica serves the model"
    NONE_LEFT = "all that serve it were asked, drain, or have never answered"


class Choice(NamedTuple):
    """Where a request goes.

    Attributes:
        replicas: with several, it goes to the one at which its turn comes first.
        request: the request as the router saw it.
        is_demoted: it is served as best effort, as no replica can meet its SLO.
        blocks: keys of its prompt's blocks.
    """

    replicas: tuple[ReplicaState, ...]
    request: RoutedRequest
    is_demoted: bool
    blocks: tuple[int, ...]


class Fleet:
    """The replicas, the router between them, and what it must be told of requests.

    Args:
        urls: addresses of the first replicas (`set_replicas`).
    Attributes:
        replicas: those that there are now, in the order of their addresses.
    """

    def __init__(self, urls: Sequence[str], router: Router) -> None:
        self.replicas: tuple[ReplicaState, ...] = ()
        self.estimates = TokenEstimates()
        self._router = router
        self._by_url: dict[str, ReplicaState] = {}
        self._num_routed = 0
        self.set_replicas(urls)

    def set_replicas(self, urls: Sequence[str]) -> None:
        """Have these replicas from now on; those that stay keep their state.

        Args:
            urls: their addresses, each `http://HOST:PORT` or with the path `/v1`.
        Raises:
            InvalidEngineConfig: an address is invalid, or given twice.
        """
        plain = [replica_url(url) for url in urls]
        if len(set(plain)) < len(plain):
            raise InvalidEngineConfig("replica", ", ".join(urls), "an address is given twice")
        self._by_url = {url: self._by_url.get(url) or ReplicaState(url) for url in plain}
        self.replicas = tuple(self._by_url.values())

    def find(self, url: str) -> ReplicaState | None:
        """The replica with this address."""
        try:
            return self._by_url.get(replica_url(url))
        except InvalidEngineConfig:
            return None

    def models(self) -> tuple[str, ...]:
        """The models that replicas serve, in their order."""
        return tuple(dict.fromkeys(name for each in self.replicas for name in each.models or ()))

    def choose(
        self, body: Body, *, spent_s: float, now_s: float, tried: Collection[ReplicaState] = ()
    ) -> Choice | Nobody:
        """The replica for a request, or for its next attempt.

        Args:
            spent_s: seconds that it has spent in the gateway.
            tried: replicas that failed to answer it.
        """
        candidates = self._candidates(body.model, now_s, tried)
        if isinstance(candidates, Nobody):
            return candidates
        request = self._request(body, spent_s)
        blocks = blocks_of(body.slo.program, body.prompt)
        snapshots = [self._snapshot(each, body, request, blocks, now_s) for each in candidates]
        route = self._router(request, snapshots)
        self._num_routed += 1
        replicas = tuple(self._by_url[each] for each in route.replicas)
        if not self._waits_for_turn(replicas, body, route, now_s):
            replicas = replicas[:1]
        return Choice(replicas, request, route.best_effort, blocks)

    def _waits_for_turn(
        self, replicas: Sequence[ReplicaState], body: Body, route: Route, now_s: float
    ) -> bool:
        """Whether a request's turn at the first replica may come later than at another one.

        Where nothing waits, it comes at once. A turn is told only by a server of ours, and only of
        a request with tags.
        """
        if not body.tags or route.best_effort or not all(each.makes_reports for each in replicas):
            return False
        return replicas[0].snapshot(now_s).num_waiting > 0

    def _candidates(
        self, model: str, now_s: float, tried: Collection[ReplicaState]
    ) -> list[ReplicaState] | Nobody:
        serving = [each for each in self.replicas if not model or model in (each.models or ())]
        if not serving:  # those that have never answered may serve it
            serving = [each for each in self.replicas if each.models is None]
            if self.replicas and not serving:
                return Nobody.UNKNOWN_MODEL
        able = [each for each in serving if not each.is_draining and each not in tried]
        trusted = [each for each in able if not each.is_suspect(now_s)]
        return trusted or able or Nobody.NONE_LEFT

    def _request(self, body: Body, spent_s: float) -> RoutedRequest:
        slo = body.slo
        if body.tags:
            slo = from_tags(remaining(body.tags, slo, spent_s=spent_s))
        prompt_tokens = self.estimates.prompt_tokens(body.model, body.prompt_characters)
        return RoutedRequest(
            request_id=str(self._num_routed),
            number=self._num_routed,
            prompt_tokens=prompt_tokens,
            max_tokens=body.max_tokens or self.estimates.answer_tokens(body.model),
            slo=slo,
            prefix=slo.program,
            prefix_tokens=prompt_tokens,
        )

    def _snapshot(
        self,
        replica: ReplicaState,
        body: Body,
        request: RoutedRequest,
        blocks: tuple[int, ...],
        now_s: float,
    ) -> ReplicaSnapshot:
        snapshot = replica.snapshot(now_s)
        characters = replica.prefixes.shared_characters(blocks)
        if not characters:
            return snapshot
        cached = self.estimates.prompt_tokens(body.model, characters)
        return snapshot._replace(prefix_tokens={request.prefix: cached})


def replica_url(url: str) -> str:
    """The address of a replica, without the path of its API.

    Raises:
        InvalidEngineConfig: it is no such address.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    plain = parts.path.rstrip("/") in ("", "/v1") and not parts.query and not parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not plain:
        raise InvalidEngineConfig("replica", url, "must be like http://127.0.0.1:8001")
    if parts.username is not None or parts.password is not None:
        reason = "must not contain a password; clients send their keys"
        raise InvalidEngineConfig("replica", parts.hostname, reason)
    return f"{parts.scheme}://{parts.netloc.lower()}"
