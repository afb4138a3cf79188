"""The JSON body of a request, and the tags in it.

Requests are those of httpx or of httpx2, which are alike; neither is imported here.
"""

from __future__ import annotations

import json
from typing import Any

from serving.engine.server.responses import TAGGED_PATHS
from serving.slo import TAG_PREFIX, Slo, to_tags

_ARGUMENTS = "vllm_xargs"
_DEPENDS_ON_BODY = ("content-length", "transfer-encoding")


def api_root(request: Any) -> str | None:
    """The root of the API that a request may carry tags to, as "http://host/v1"; None: it may not.

    That is a POST to one of TAGGED_PATHS, perhaps below a path of a reverse proxy.
    """
    if request.method != "POST":
        return None
    path = request.url.path
    for tagged in TAGGED_PATHS:
        if path.endswith(tagged):
            prefix = path.removesuffix(tagged)
            return str(request.url.copy_with(path=f"{prefix}/v1", query=None, fragment=None))
    return None


def with_tags(request: Any, slo: Slo) -> Any:
    """The same request with the tags of an SLO; itself if it cannot have any, or has its own.

    It has its own if its body has any tag. It cannot have any if its body is compressed, is
    streamed, is no JSON object or asks for beam search, which our server refuses with tags.
    """
    tags = to_tags(slo)
    document = _document_of(request)
    if not tags or document is None or document.get("use_beam_search"):
        return request
    arguments = document.get(_ARGUMENTS)
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict) or any(key.startswith(TAG_PREFIX) for key in arguments):
        return request
    body = json.dumps(document | {_ARGUMENTS: arguments | tags}, separators=(",", ":")).encode()
    headers = [
        (name, value)
        for name, value in request.headers.multi_items()
        if name.lower() not in _DEPENDS_ON_BODY
    ]
    return type(request)(
        request.method,
        request.url,
        headers=headers,
        content=body,
        extensions=request.extensions,
    )


def _document_of(request: Any) -> dict[str, Any] | None:
    if "content-encoding" in request.headers:
        return None
    try:
        document = json.loads(request.content)
    except RuntimeError:  # RequestNotRead: its body is a stream, which is read when it is sent
        return None
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
