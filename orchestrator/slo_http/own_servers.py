"""Which servers are ours: only they are sent tags, since others may refuse unknown fields."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlsplit

from serving.engine.server.slo_middleware import SCHEDULER_HEADER

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 5.0
"""Limit on each phase of asking a server which one it is, in seconds."""

_NEVER_OURS = (".openai.com", ".azure.com")


class OwnServers:
    """Knows, by the root of its API, whether a server is ours.

    Our server names its scheduler in a header of every response that it makes itself. A server of
    which nothing is known is asked for its list of models, once. What a later response shows
    replaces what is known, as another server may have been started at the same address.
    """

    def __init__(self) -> None:
        self._are_ours: dict[str, bool] = {}

    def known(self, root: str) -> bool | None:
        """Whether a server is ours; None if it has to be asked."""
        if f".{urlsplit(root).hostname or ''}".endswith(_NEVER_OURS):
            return False
        return self._are_ours.get(root)

    def learn(self, root: str, response: Any) -> bool:
        """Whether a server that gave this response is ours.

        Of a failure without the header nothing is known: a proxy may have made it, or the check of
        the API key, in front of the header.
        """
        is_ours = bool(response.headers.get(SCHEDULER_HEADER))
        if is_ours or response.is_success:
            self._are_ours[root] = is_ours
        else:
            self._are_ours.pop(root, None)
        return is_ours


def identity_request(root: str, request: Any) -> Any:
    """The request that asks a server which one it is, with the credentials of another request."""
    headers = {
        name: request.headers[name]
        for name in ("authorization", "user-agent")
        if name in request.headers
    }
    phases = ("connect", "read", "write", "pool")
    timeout = dict.fromkeys(phases, ASK_TIMEOUT_S)
    return type(request)("GET", f"{root}/models", headers=headers, extensions={"timeout": timeout})


def log_unidentified(root: str, error: Exception) -> None:
    """Log that a server could not be asked: the request itself goes to it without tags."""
    log.warning("%s was not asked whether it takes deadlines: %r", root, error)
