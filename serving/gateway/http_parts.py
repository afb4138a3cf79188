"""Parts of HTTP messages that are passed on: headers, bodies, the sockets to replicas."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

from multidict import CIMultiDict

PART_BYTES = 256 << 10
"""Larger bodies are sent in parts of this size, so that other streams go on between them."""

SILENT_S, PROBE_S, NUM_PROBES = 10, 5, 3
"""After 10 s of silence TCP asks thrice in 15 s whether the replica's machine is still there."""

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that concern one connection. Source: RFC 9110, section 7.6.1."""

_OF_REQUEST = HOP_BY_HOP | {"host", "content-length", "expect"}


def request_headers(headers: Mapping[str, str], content: bytes) -> CIMultiDict[str]:
    """The headers of a request with this body for a replica; keys are passed on unchanged."""
    passed = _without(headers, _OF_REQUEST)
    passed["Content-Length"] = str(len(content))
    return passed


def response_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The headers of a replica's answer for the client."""
    return _without(headers, HOP_BY_HOP)


def payload(content: bytes) -> bytes | AsyncIterator[bytes]:
    """A body as aiohttp sends it."""
    return content if len(content) <= PART_BYTES else _parts(content)


def socket_with_probes(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices when the other machine is gone, for an entry of getaddrinfo."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", SILENT_S),
        ("TCP_KEEPINTVL", PROBE_S),
        ("TCP_KEEPCNT", NUM_PROBES),
    ):
        if hasattr(socket, option):  # not on every system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made


def _without(headers: Mapping[str, str], left_out: frozenset[str]) -> CIMultiDict[str]:
    named = {each.strip().lower() for each in headers.get("Connection", "").split(",")}
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in left_out and name.lower() not in named
    )


async def _parts(content: bytes) -> AsyncIterator[bytes]:
    view = memoryview(content)
    for start in range(0, len(content), PART_BYTES):
        yield bytes(view[start : start + PART_BYTES])
