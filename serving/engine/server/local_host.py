"""A server without a key answers only requests that were sent to this machine by its own name.

A web page in a user's browser can have the name of its own server resolved to 127.0.0.1 (DNS
rebinding), and would then reach a server that listens there. Such a request names another host.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from serving.engine.server.responses import App, Receive, Scope, Send

REFUSED = b"this server has no API key: it answers requests to localhost only"


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class LocalHostMiddleware:
    """Answers 403 to requests that name a host which is not this machine."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] not in ("http", "websocket") or _names_this_machine(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSED})


def _names_this_machine(scope: Scope) -> bool:
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    try:
        names = [urlsplit(f"//{host.decode('ascii')}").hostname or "" for host in hosts]
    except ValueError:  # no host at all
        return False
    return all(map(is_loopback, names))
