"""Lets the models of langchain-openai carry the deadline when a recorded graph calls them.

LangChain's callbacks see a call begin, but cannot change its request. So `_send_request`, by which
each client of the package openai sends its requests, is wrapped, in the classes OpenAI and
AsyncOpenAI. The wrapper acts only in a model call that an attached graph records, and only if our
server is to answer it; any other request, in a run or outside one, is passed on as it is.

`_send_request` is no public name. A version of openai without it is logged, and its calls carry no
deadline; `slo_http_client` uses public names only.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from typing import Any

from orchestrator.execution.carried_slo import current_handover
from orchestrator.slo_http.body import api_root
from orchestrator.slo_http.own_servers import OwnServers
from orchestrator.slo_http.sending import is_ours, is_ours_in_thread, send, send_in_thread

log = logging.getLogger(__name__)

_METHOD = "_send_request"
_servers = OwnServers()
_lock = threading.Lock()
_wrapped: set[Any] = set()


def carry_deadlines() -> None:
    """Wrap the classes of openai, once, if it is loaded: otherwise no model uses it."""
    openai = sys.modules.get("openai")
    if openai is None:
        return
    with _lock:
        for client, wrap in ((openai.AsyncOpenAI, _async_method), (openai.OpenAI, _sync_method)):
            if client in _wrapped:
                continue
            _wrapped.add(client)
            original = getattr(client, _METHOD, None)
            if original is None:
                reason = "%s of openai %s has no %s: its calls carry no deadline"
                log.warning(reason, client.__name__, openai.__version__, _METHOD)
                continue
            setattr(client, _METHOD, wrap(original))


def _async_method(original: Any) -> Any:
    @functools.wraps(original)
    async def send_request(client: Any, request: Any, **options: Any) -> Any:
        async def forward(changed: Any) -> Any:
            return await original(client, changed, **options)

        root, handover = api_root(request), current_handover()
        if root is None or handover is None:
            return await forward(request)
        if not await is_ours(request, forward, root=root, servers=_servers):
            response = await forward(request)
            _servers.learn(root, response)
            return response
        carried = await handover.wait()
        return await send(request, forward, root=root, carried=carried, servers=_servers)

    return send_request


def _sync_method(original: Any) -> Any:
    @functools.wraps(original)
    def send_request(client: Any, request: Any, **options: Any) -> Any:
        def forward(changed: Any) -> Any:
            return original(client, changed, **options)

        root, handover = api_root(request), current_handover()
        if root is None or handover is None:
            return forward(request)
        if not is_ours_in_thread(request, forward, root=root, servers=_servers):
            response = forward(request)
            _servers.learn(root, response)
            return response
        carried = handover.wait_in_thread()
        return send_in_thread(request, forward, root=root, carried=carried, servers=_servers)

    return send_request
