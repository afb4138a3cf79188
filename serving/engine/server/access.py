"""Who may use which path of the server: API keys, their users and limits; closed paths.

AccessMiddleware is always there; without keys every path is open but the closed ones. vLLM creates
it, so it takes the keys from the arguments in the state of vLLM's application.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextvars import ContextVar

from serving.engine.server.api_keys import ApiKey, digest_of
from serving.engine.server.rate_limits import RateLimits
from serving.engine.server.responses import App, Receive, Scope, Send, path_of, send_error

OPEN_PATHS = frozenset({"/health", "/ping"})
"""Paths that need no API key: probes of load balancers have none, and learn nothing but "ready"."""

CLOSED_PATHS = frozenset(
    {"/scale_elastic_ep", "/is_scaling_elastic_ep", "/inference/v1/abort_requests"}
)
"""Paths of vLLM that are answered 404: an operator's, and one that ends others' requests."""

USER_IN_SCOPE = "orchestrate.user"
"""Where a request's ASGI scope has the user of its key, for the access log."""

_key: ContextVar[ApiKey | None] = ContextVar("key", default=None)


def key_of_request() -> ApiKey | None:
    """The key that the present request has; None on a server without keys."""
    return _key.get()


class ApiAccess:
    """The keys of a server, and the requests of each; an empty one lets everybody in."""

    def __init__(self, keys: Iterable[ApiKey], limits: RateLimits | None = None) -> None:
        self.limits = limits or RateLimits(time.monotonic)
        self._keys = {key.digest: key for key in keys}

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Know these keys from now on; what the kept ones have counted still counts."""
        self._keys = {key.digest: key for key in keys}

    @property
    def needs_key(self) -> bool:
        """Whether clients must send a key."""
        return bool(self._keys)

    def key_of(self, scope: Scope) -> ApiKey | None:
        """The key that a request has; None if it has none, or an unknown one.

        Keys are looked up by digest, so the time it takes tells nothing of them.
        """
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = authorization.partition(b" ")
        return self._keys.get(digest_of(key)) if scheme.lower() == b"bearer" else None


class AccessMiddleware:
    """Answers 404 on closed paths, 401 without a valid key, 429 beyond the limits of a key.

    Limits count POST requests: those that make the model work. CORS preflights carry no key and are
    let through.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or websocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path = path_of(scope).rstrip("/")
        access: ApiAccess = scope["app"].state.args.api_access
        method = scope.get("method")  # a websocket has none
        is_probe = path in OPEN_PATHS and method in ("GET", "HEAD")
        is_open = not access.needs_key or is_probe or method == "OPTIONS"
        key = None if is_open else access.key_of(scope)
        if path in CLOSED_PATHS:
            await _refuse(scope, receive, send, 404, "there is no such path")
        elif is_open:
            await self._app(scope, receive, send)
        elif key is None:
            await _refuse(scope, receive, send, 401, "a valid API key is required")
        else:
            await self._limited(access, key, scope, receive, send)

    async def _limited(
        self, access: ApiAccess, key: ApiKey, scope: Scope, receive: Receive, send: Send
    ) -> None:
        token = _key.set(key)
        scope[USER_IN_SCOPE] = key.user
        counts = scope.get("method", "POST") == "POST"  # a websocket has no method
        try:
            retry_s = access.limits.begin(key) if counts else None
            if retry_s is not None:
                counts = False
                message = f"this key's limit on requests is reached; try again in {retry_s} s"
                await _refuse(scope, receive, send, 429, message, retry_s=retry_s)
            else:
                await self._app(scope, receive, send)
        finally:
            if counts:
                access.limits.end(key)
            _key.reset(token)


_KINDS = {401: "unauthorized", 404: "not_found", 429: "rate_limit_exceeded"}


async def _refuse(
    scope: Scope,
    receive: Receive,
    send: Send,
    status: int,
    message: str,
    *,
    retry_s: int | None = None,
) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [] if retry_s is None else [(b"retry-after", str(retry_s).encode())]
    await send_error(send, status, message, kind=_KINDS[status], param=None, headers=headers)
