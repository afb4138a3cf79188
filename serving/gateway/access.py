"""Which requests the gateway takes: by the rules of `orchestrate serve` for keys and addresses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from aiohttp import web

from serving.engine.server.access import OPEN_PATHS, ApiAccess
from serving.engine.server.api_keys import ApiKey
from serving.engine.server.local_host import REFUSED, is_loopback
from serving.gateway.attempt import error_response

MAX_HEADER_BYTES = 64 << 10
"""Limit on the headers of a request, as that of `orchestrate serve`."""


class GatewayAccess:
    """The keys of a gateway.

    Args:
        host: the address that it listens on. On a loopback address without keys, only requests
            that name this machine are answered, as a web page may name another one.
    """

    def __init__(self, keys: Iterable[ApiKey], host: str) -> None:
        self._access = ApiAccess(keys)
        self._is_local = is_loopback(host) and not self._access.needs_key

    @contextmanager
    def enter(self, request: web.BaseRequest) -> Iterator[web.Response | None]:
        """While a request is answered: why it is refused, or None."""
        refusal, key = self._check(request)
        if refusal is not None or key is None or request.method != "POST":
            yield refusal
            return
        retry_s = self._access.limits.begin(key)
        if retry_s is not None:
            message = f"this key's limit on requests is reached; try again in {retry_s} s"
            limited = error_response(429, message, kind="rate_limit_exceeded")
            limited.headers["Retry-After"] = str(retry_s)
            yield limited
            return
        try:
            yield None
        finally:
            self._access.limits.end(key)

    def may_operate(self, request: web.BaseRequest) -> bool:
        """Whether a request that was let in may change which replicas are used.

        Without keys only from this machine: a gateway may be open to a network (`--insecure`).
        """
        return self._access.needs_key or is_loopback(request.remote or "")

    def _check(self, request: web.BaseRequest) -> tuple[web.Response | None, ApiKey | None]:
        header_bytes = sum(len(name) + len(value) for name, value in request.raw_headers)
        if header_bytes > MAX_HEADER_BYTES:
            message = f"the headers have {header_bytes} bytes, the limit is {MAX_HEADER_BYTES}"
            return error_response(431, message, kind="too_large"), None
        if self._is_local and not _names_this_machine(request):
            return web.Response(status=403, body=REFUSED, content_type="text/plain"), None
        is_probe = request.path in OPEN_PATHS and request.method in ("GET", "HEAD")
        if is_probe or not self._access.needs_key:
            return None, None
        headers = [(name.lower(), value) for name, value in request.raw_headers]
        key = self._access.key_of({"headers": headers})
        if key is None:
            return error_response(401, "a valid API key is required", kind="unauthorized"), None
        return None, key


def _names_this_machine(request: web.BaseRequest) -> bool:
    try:
        return is_loopback(urlsplit(f"//{request.headers.get('Host', 'localhost')}").hostname or "")
    except ValueError:  # no host at all
        return False
